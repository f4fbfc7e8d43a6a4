"""Versions of an index: what runs add, also those that are killed, repeated or at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gristmill.core.errors import PlanError
from gristmill.dedup import DedupIndex, ExactDeduplicationStage
from tests.dedup.snapshots import NEW, OLD, ONLY_NEW, STAGES, ids, indexed, numbered, run, text, tree, write

# -- versions ------------------------------------------------------------------------------------------------


def test_a_run_that_is_repeated_adds_nothing_and_gives_the_same(tmp_path: Path) -> None:
    index = indexed("exact", tmp_path)
    new = write(tmp_path / "new", x=NEW)
    for attempt, run_dir in enumerate([tmp_path / "run", tmp_path / "run", tmp_path / "other", None]):
        run(new, tmp_path / f"out{attempt // 2}", ExactDeduplicationStage(id_field="id", extend=index), run_dir)
        assert ids(tmp_path / f"out{attempt // 2}") == ONLY_NEW
    assert DedupIndex(index).versions == [1, 2]


def test_the_same_rows_in_another_place_are_another_snapshot(tmp_path: Path) -> None:
    index = indexed("exact", tmp_path)
    result = run(
        write(tmp_path / "same", x=OLD), tmp_path / "out", ExactDeduplicationStage(id_field="id", extend=index)
    )
    assert result.summary().rows_out == 0
    assert DedupIndex(index).versions == [1]


def test_a_run_with_more_input_adds_it_in_the_place_of_what_it_added_before(tmp_path: Path) -> None:
    index = indexed("exact", tmp_path)
    new = write(tmp_path / "new", x=NEW)
    stage = ExactDeduplicationStage(id_field="id", extend=index)
    run(new, tmp_path / "out", stage, tmp_path / "run")
    write(new, y=numbered("c", [text(50), text(500), text(100)]))
    run(new, tmp_path / "out", stage, tmp_path / "run")
    assert ids(tmp_path / "out") == [*ONLY_NEW, "c1"]
    assert [one["documents"] for one in DedupIndex(index).info()["snapshots"]] == [60, 61]
    more = write(tmp_path / "more", x=numbered("d", [text(500), text(501)]))  # another snapshot in the same directory
    run(more, tmp_path / "out", stage, tmp_path / "run")
    assert [one["documents"] for one in DedupIndex(index).info()["snapshots"]] == [60, 61, 1]


def test_versions_can_be_read_and_pruned(tmp_path: Path) -> None:
    index = indexed("exact", tmp_path)
    new = write(tmp_path / "new", x=NEW)
    stage = ExactDeduplicationStage(id_field="id", extend=DedupIndex(index, snapshot="new"))
    run(new, tmp_path / "out", stage, tmp_path / "run")
    write(new, y=numbered("c", [text(500)]))
    run(new, tmp_path / "out", stage, tmp_path / "run")
    assert DedupIndex(index).versions == [1, 2, 3]
    assert [len(DedupIndex(index, version=number)) for number in (1, 2, 3)] == [60, 120, 121]
    before = write(tmp_path / "again", x=NEW)
    result = run(before, tmp_path / "o", ExactDeduplicationStage(against=[DedupIndex(index, version=1)]))
    assert result.summary().rows_out == 60
    assert len(list((tmp_path / "index" / "data").iterdir())) == 3
    assert DedupIndex(index).prune(keep=2) == [1]
    assert DedupIndex(index).prune() == [2]
    assert (DedupIndex(index).versions, len(DedupIndex(index)), DedupIndex(index).check()) == ([3], 121, [])
    assert len(list((tmp_path / "index" / "data").iterdir())) == 2  # what the second version had in its place is gone
    assert [one["snapshot"] for one in DedupIndex(index).info()["snapshots"]] == ["old", "new"]
    with pytest.raises(PlanError, match=r"no version 2\. There are: 3"):
        DedupIndex(index, version=2).info()


class Meanwhile(DedupIndex):
    """An index that another run adds to while this one is at work."""

    def data(self, addition: str) -> Any:
        path = Path(self.path).parent / "meanwhile"
        if not path.exists():
            run(write(path, x=numbered("m", [text(100)])), path / "out", ExactDeduplicationStage(extend=self.path))
        return super().data(addition)


def test_of_two_runs_that_add_at_the_same_time_one_is_told_to_start_again(tmp_path: Path) -> None:
    index, new = indexed("exact", tmp_path), write(tmp_path / "new", x=NEW)
    stage = ExactDeduplicationStage(id_field="id", extend=Meanwhile(index))
    with pytest.raises(PlanError, match="at version 2 .* compared with version 1. .* start the run again"):
        run(new, tmp_path / "out", stage, tmp_path / "run")
    assert not ids(tmp_path / "out")
    run(new, tmp_path / "out", stage, tmp_path / "run")
    assert ids(tmp_path / "out") == [name for name in ONLY_NEW if name != "b60"]  # which the other run has kept
    assert [one["documents"] for one in DedupIndex(index).info()["snapshots"]] == [60, 1, 59]


def test_a_version_is_created_once(tmp_path: Path) -> None:
    index = DedupIndex(indexed("exact", tmp_path))
    with pytest.raises(FileExistsError):
        index.publish(index.there())


def test_runs_that_read_keep_the_version_they_began_with(tmp_path: Path) -> None:
    index, new = indexed("exact", tmp_path), write(tmp_path / "new", x=NEW)
    stages = [ExactDeduplicationStage(id_field="id", against=[Meanwhile(index)], num_partitions=n) for n in (1, 4)]
    run(new, tmp_path / "1", stages[0])
    assert ids(tmp_path / "1") == ONLY_NEW
    assert DedupIndex(index).versions == [1, 2]
    run(new, tmp_path / "2", stages[1])
    assert ids(tmp_path / "2") == [name for name in ONLY_NEW if name != "b60"]


DRIVER = """
import os, sys
from pathlib import Path
from gristmill import LocalExecutor, Pipeline
from gristmill.text import JsonlReader, JsonlWriter
from tests.dedup import test_index

root, stage, most = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def attempt(folder, die_at):
    count = 0
    def count_down(do):
        def done(*args, **kwargs):
            nonlocal count
            count += 1
            if count == die_at:
                os.kill(os.getpid(), 9)
            return do(*args, **kwargs)
        return done
    Path.replace, os.link = count_down(Path.replace), count_down(os.link)
    made = test_index.STAGES[stage](id_field="id", num_partitions=2, extend=str(folder / "index"))
    test_index.run(root / "new", folder / "out", made, folder / "run")
    (folder / "count").write_text(str(count))

def fork(folder, die_at):
    pid = os.fork()
    if not pid:
        attempt(folder, die_at)
        os._exit(0)
    return os.waitpid(pid, 0)[1]

assert fork(root / "whole", 0) == 0
number = int((root / "whole" / "count").read_text())
killed = 0
for die_at in range(number, 0, -max(number // most, 1)):
    killed += fork(root / str(die_at), die_at) == 9  # the last may not come: books are written by time
    assert fork(root / str(die_at), 0) == 0
assert killed
"""


@pytest.mark.parametrize(
    ("stage", "most"), [("exact", 2), *(pytest.param(stage, 1000, marks=pytest.mark.slow) for stage in STAGES)]
)
def test_a_run_that_is_killed_anywhere_adds_once_and_the_same_bytes(tmp_path: Path, stage: str, most: int) -> None:
    write(tmp_path / "new", x=NEW, y=OLD)
    subprocess.run(
        [sys.executable, "-W", "error", "-c", DRIVER, str(tmp_path), stage, str(most)],
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    whole = tmp_path / "whole"
    attempts = [path for path in tmp_path.iterdir() if path.name.isdecimal()]
    assert len(attempts) >= 2
    for attempt in attempts:
        assert added(attempt) == added(whole)
        assert ids(attempt / "out") == ids(whole / "out")
        assert DedupIndex(attempt / "index").versions == [1]


def added(folder: Path) -> dict[str, bytes]:
    """The files of an index, but for what tells of the run that made it."""
    files = tree(folder / "index").items()
    return {name: raw.replace(str(folder).encode(), b"") for name, raw in files if not name.endswith(".draft")}
