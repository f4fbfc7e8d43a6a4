"""Fragments and their commit, by hand: what tests of writers start from."""

from itertools import pairwise
from pathlib import Path

import orjson
import pyarrow as pa

from gristmill.core.arrow.table_conversion import POSITION, rows_to_table
from gristmill.core.task import GatherTask, Lineage
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import CommitFiles, WriteFragments
from gristmill.io.write.jsonl_format import JsonlFormat
from gristmill.samples.batch import DocumentBatch

PARTITION = "web-0123abcd"


def batches(rows, cuts=(), partition=PARTITION, source="s"):
    """The rows as a reader would give them, cut into blocks at `cuts`."""
    edges = [0, *sorted(cuts), len(rows)]
    for index, (start, end) in enumerate(pairwise(edges)):
        if start < end:
            table = rows_to_table(rows[start:end])
            positions = pa.array(range(start, end), pa.int64())
            table = table.append_column(POSITION, positions) if table.num_columns else pa.table({POSITION: positions})
            metadata = {"partition": partition} if partition else {}
            batch = DocumentBatch(table, metadata=metadata, dataset_name="web")
            yield batch.named(Lineage(f"{source}.{index}", source))


def gathered(fragments, source="s"):
    return GatherTask(list(fragments)).named(Lineage(source, source))


class Writer:
    """The two stages of a writer, driven by hand."""

    def __init__(self, path, form=None, fields=None, mode="ignore", prepare=True):
        target = OutputDirectory(path)
        self.write = WriteFragments(target, form or JsonlFormat(), fields, mode)
        self.commit = CommitFiles(target, form or JsonlFormat(), fields, mode)
        for stage in (self.write, self.commit) if prepare else ():
            stage.check()
            stage.prepare_run({})

    def fragments(self, rows, cuts=(), partition=PARTITION, source="s"):
        found = []
        for batch in batches(rows, cuts, partition, source):
            found.append(self.write.process(batch).named(batch.lineage))
        return found

    def run(self, rows, cuts=(), partition=PARTITION, source="s"):
        return self.commit.process(gathered(self.fragments(rows, cuts, partition, source), source))


def tree(path):
    """Every file below a directory and what it holds."""
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(Path(path).rglob("*")) if p.is_file()}


ROWS = [{"id": i, "text": f"row {i}"} for i in range(10)]
LINES = b"".join(orjson.dumps(row) + b"\n" for row in ROWS)
