"""Names that data brings along never stop a run: of columns, of files, of links, of members of archives."""

from __future__ import annotations

import io
import json
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage
from gristmill.core.records.run_directory import Run
from gristmill.image import WebDatasetReader
from gristmill.text import JsonlReader, JsonlWriter

HERE = LocalExecutor(num_workers=0)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def copied(folder: Path, **options: Any) -> tuple[list[int], list[Any]]:
    """The ids of the rows in the output, and the quarantined records."""
    stages = [JsonlReader(str(folder / "in"), **options), JsonlWriter(str(folder / "out"))]
    done = Pipeline("copy", stages=stages).run(HERE, run_dir=folder / "run", max_errors=100)
    lines = [line for path in (folder / "out").glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["id"] for line in lines), list(done.quarantined())


@pytest.mark.parametrize("untidy", [False, True])
def test_a_line_with_a_reserved_name_in_a_late_file_is_quarantined(tmp_path: Path, untidy: bool) -> None:
    write(tmp_path / "in/a.jsonl", [{"id": 1}, {"id": 2}])
    write(
        tmp_path / "in/b.jsonl", [{"id": 3}, {"id": 4, "__position__": 7}, {"id": 5}, {"__position__": None, "id": 6}]
    )
    with open(tmp_path / "in/b.jsonl", "a") as file:
        file.write("broken\n" if untidy else "")
    kept, quarantined = copied(tmp_path)
    assert kept == [1, 2, 3, 5]
    found = {one.position: one.error for one in quarantined if "broken" not in (one.content or "")}
    assert found == dict.fromkeys((10, 49), "has a field '__position__', a name that is reserved: rename it")
    assert json.loads(next(one.content for one in quarantined if one.position == 10))["id"] == 4


def test_a_reserved_name_that_is_not_read_does_no_harm(tmp_path: Path) -> None:
    write(tmp_path / "in/a.jsonl", [{"id": 1}])
    write(tmp_path / "in/b.jsonl", [{"id": 4, "__position__": 7}])
    assert copied(tmp_path, fields=["id"]) == ([1, 4], [])


def test_links_to_nowhere_are_quarantined_and_other_files_are_read(tmp_path: Path) -> None:
    write(tmp_path / "in/b.jsonl", [{"id": 1}])
    (tmp_path / "in/a.jsonl").symlink_to(tmp_path / "nowhere")
    (tmp_path / "in/c.jsonl").symlink_to(tmp_path / "in/c.jsonl")
    kept, quarantined = copied(tmp_path)
    assert kept == [1]
    assert sorted(Path(one.files[0]).name for one in quarantined) == ["a.jsonl", "c.jsonl"]


@pytest.mark.parametrize("name", ["a::b.jsonl", "zip::x.jsonl", "a*b?[c].jsonl", "simplecache::x.jsonl"])
def test_file_names_with_marks_of_urls_and_globs_are_names(tmp_path: Path, name: str) -> None:
    write(tmp_path / "in" / name, [{"id": 1}])
    write(tmp_path / "in/other.jsonl", [{"id": 2}])
    assert copied(tmp_path) == ([1, 2], [])


def test_members_with_a_leading_dot_are_quarantined_except_those_that_systems_add(tmp_path: Path) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "png")
    with tarfile.open(tmp_path / "shard.tar", "w") as archive:
        for name in ("a.png", ".hidden.png", "._a.png", "x/.DS_Store", "b.png"):
            member = tarfile.TarInfo(name)
            member.size = len(picture.getvalue())
            archive.addfile(member, io.BytesIO(picture.getvalue()))
    done = Pipeline("read", stages=[WebDatasetReader(str(tmp_path / "shard.tar"))]).run(HERE, max_errors=10)
    assert sum(task.num_rows for task in done) == 2
    assert [one.error for one in done.quarantined()] == [
        "'.hidden.png' has a name that begins with a dot, and so no key of a sample: rename it"
    ]


class Refuse(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Fails on rows below a limit."""

    name = "refuse"

    def __init__(self, below: int) -> None:
        self.below = below

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if any(number < self.below for number in task.data.column("id").to_pylist()):
            raise ValueError("too small")
        return task


def test_later_attempts_count_even_if_the_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in/a.jsonl", [{"id": number} for number in range(500)])
    now = time.time_ns()
    for attempt, below in enumerate((12, 10, 7)):
        monkeypatch.setattr(time, "time_ns", lambda at=now - attempt * 3600 * 10**9: at)
        stages = [JsonlReader(str(tmp_path / "in")), Refuse(below), JsonlWriter(str(tmp_path / "out"))]
        Pipeline("p", stages=stages).run(HERE, run_dir=tmp_path / "run", max_errors=0.5)
        lines = [line for path in (tmp_path / "out").glob("*.jsonl") for line in path.read_text().splitlines()]
        assert (len(lines), len(list(Run(tmp_path / "run").quarantined()))) == (500 - below, below)


@pytest.mark.parametrize("with_run_dir", [True, False])
def test_records_are_in_the_order_of_attempts_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_run_dir: bool
) -> None:
    write(tmp_path / "in/a.jsonl", [{"id": number} for number in range(50)])
    now, records = time.time_ns(), tmp_path / ("run" if with_run_dir else "out.run")
    order = []
    for attempt, below in enumerate((12, 10, 7)):
        monkeypatch.setattr(time, "time_ns", lambda at=now - attempt * 3600 * 10**9: at)
        stages = [JsonlReader(str(tmp_path / "in")), Refuse(below), JsonlWriter(str(tmp_path / "out"))]
        options = {"run_dir": records} if with_run_dir else {"scores": True}
        Pipeline("p", stages=stages).run(HERE, max_errors=0.5, **options)
        order.append(json.loads((records / "plan.json").read_text())["attempt"])
    for folder in ("ledger", "quarantine", "counts"):
        lines = [
            json.loads(line) for path in sorted((records / folder).iterdir()) for line in path.read_text().splitlines()
        ]
        assert list(dict.fromkeys(line["attempt"] for line in lines)) == order, folder
