"""Lists of words and names that the user gives as a list or as a file.

A file has one entry per line, in UTF-8. Blank lines and lines that begin with # are skipped, and a file whose name ends
in .gz is decompressed. Workers read the files, not constructors. Nothing is downloaded.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from gristmill.core.errors import InputError

EntriesOrFile: TypeAlias = "str | os.PathLike[str] | Sequence[str]"


def check_entries_file(purpose: str, entries: EntriesOrFile) -> None:
    """Raise if it is a file that does not exist."""
    if isinstance(entries, str | os.PathLike) and not Path(entries).expanduser().is_file():
        raise InputError(
            f"{purpose}: the file {os.fspath(entries)} does not exist: give a file with one entry per line, or a list"
        )


def read_entries(purpose: str, entries: EntriesOrFile) -> list[str]:
    """The entries, without white space at their ends."""
    if not isinstance(entries, str | os.PathLike):
        return [entry.strip() for entry in entries]
    check_entries_file(purpose, entries)
    path = Path(entries).expanduser()
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    try:
        lines = raw.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{purpose}: {path} is not UTF-8: {error}") from error
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
