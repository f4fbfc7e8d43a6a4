"""Small batches share temporary files: same bytes, few files, and attempts that fail leave nothing in them."""

import os
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor, Pipeline, ProcessingStage
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.text import JsonlReader, JsonlWriter, ParquetWriter

ROWS = 300


class OneByOne(ProcessingStage):
    """Each row becomes a task; some have another column."""

    name = "one_by_one"

    def __init__(self, late=False, fails=""):
        self.late, self.fails = late, fails

    def process(self, task):
        for row in range(task.num_items):
            if self.fails and row == ROWS // 2 and not os.path.exists(self.fails):
                open(self.fails, "w").close()
                os._exit(1)
            one = task.slice(row, 1)
            if self.late and row % 7 == 3:
                one = one.with_data(one.data.append_column("late", [[row]]))
            yield one


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"id":{row},"text":"row {row}"}}\n' for row in range(ROWS)))
    return path


def run(corpus, out, writer, stage=None, workers=0, **options):
    stages = [JsonlReader(str(corpus)), *([stage] if stage else []), writer(str(out), **options)]
    Pipeline("shared", stages=stages).run(LocalExecutor(num_workers=workers))
    assert not (out.parent / f"{out.name}.run" / "_tmp").exists()
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.mark.parametrize(
    ("writer", "options"),
    [
        (JsonlWriter, {}),
        (JsonlWriter, {"compression": "gzip"}),
        (JsonlWriter, {"target_file_size": 1000}),
        (ParquetWriter, {}),
        (ParquetWriter, {"target_file_size": 2000}),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_output_does_not_depend_on_how_rows_are_cut(tmp_path, corpus, writer, options, workers):
    whole = run(corpus, tmp_path / "whole", writer, **options)
    assert run(corpus, tmp_path / "cut", writer, OneByOne(), workers, **options) == whole


@pytest.mark.parametrize("writer", [JsonlWriter, ParquetWriter])
def test_columns_that_come_and_go_are_in_every_row(tmp_path, corpus, writer):
    files = run(corpus, tmp_path / "out", writer, OneByOne(late=True))
    (name, content), *_ = files.items()
    late = (
        pq.read_table(tmp_path / "out" / name)["late"].to_pylist()
        if writer is ParquetWriter
        else [None if b'"late":null' in line else int(line[:-1].rpartition(b":")[2]) for line in content.splitlines()]
    )
    assert late == [row if row % 7 == 3 else None for row in range(ROWS)]


def test_one_row_tasks_of_a_source_make_few_files(tmp_path, corpus, monkeypatch):
    made = Counter()
    real = OutputDirectory.create
    monkeypatch.setattr(OutputDirectory, "create", lambda self, path: made.update(["file"]) or real(self, path))
    run(corpus, tmp_path / "out", JsonlWriter, OneByOne())
    assert made["file"] < 10


@pytest.mark.parametrize("writer", [JsonlWriter, ParquetWriter])
def test_a_worker_that_dies_between_them_loses_and_doubles_nothing(tmp_path, corpus, writer):
    whole = run(corpus, tmp_path / "whole", writer)
    dies = OneByOne(fails=str(tmp_path / "died"))
    assert run(corpus, tmp_path / "out", writer, dies, workers=2) == whole
    assert (tmp_path / "died").exists()


def test_directories_are_not_removed_and_made_again_for_every_source(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    for number in range(60):
        (tmp_path / "in" / f"{number:03}.jsonl").write_text('{"text":"x"}\n')
    removed = Counter()
    real = Path.rmdir
    monkeypatch.setattr(Path, "rmdir", lambda path: removed.update(["rmdir"]) or real(path))
    stages = [JsonlReader(str(tmp_path / "in"), files_per_partition=1), JsonlWriter(str(tmp_path / "out"))]
    Pipeline("many", stages=stages).run(LocalExecutor(num_workers=0))
    assert len(list((tmp_path / "out").iterdir())) == 60
    assert removed["rmdir"] < 60
    assert not (tmp_path / "out.run" / "_tmp").exists()
