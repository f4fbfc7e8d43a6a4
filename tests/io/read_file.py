"""A file, read to its end: what tests of formats start from."""

import pyarrow as pa

from gristmill.core.task import FileSlice
from gristmill.io.storage.file_input import FileInput


def rows_of(read, path, blocksize=16 * 2**20, part=None, **settings):
    bad = []
    source = FileInput(part or FileSlice(str(path)), blocksize=blocksize, on_bad=bad.append)
    tables = list(read(source, **settings))
    return pa.concat_tables(tables) if tables else None, tables, bad
