"""Versions of an index: what runs add, also those that are killed, repeated or at the same time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor, Pipeline, Sample
from gristmill.core.errors import PlanError
from gristmill.dedup import DedupIndex, ExactDeduplicationStage
from gristmill.text import JsonlReader, JsonlWriter
from tests.dedup.index_snapshots import NEW, OLD, ONLY_NEW, STAGES, ids, indexed, numbered, run, text, tree, write

# -- versions ------------------------------------------------------------------------------------------------


def test_a_run_that_is_repeated_adds_nothing_and_gives_the_same(tmp_path: Path) -> None:
    index = indexed("exact", tmp_path)
    new = write(tmp_path / "new", x=NEW)
    for attempt, run_dir in enumerate([tmp_path / "run", tmp_path / "run", tmp_path / "other", None]):
        run(new, tmp_path / f"out{attempt // 2}", ExactDeduplicationStage(id_field="id", extend=index), run_dir)
        assert ids(tmp_path / f"out{attempt // 2}") == ONLY_NEW
    assert DedupIndex(index).versions == [1, 2]


@pytest.mark.parametrize("options", [{"num_partitions": 8}, {"memory_gb": 1e-7}])
def test_what_was_added_stays_whole_when_a_run_is_repeated_with_other_partitions(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    old, index = write(tmp_path / "old", x=OLD[:1], y=OLD[1:2]), str(tmp_path / "index")
    for number, some in enumerate([{}, options, {}, options]):
        run(old, tmp_path / f"{number}", ExactDeduplicationStage(id_field="id", extend=index, **some))
        assert ids(tmp_path / f"{number}") == ["a0", "a1"]
        assert all(DedupIndex(index, version=version).check() == [] for version in DedupIndex(index).versions)
        assert len(DedupIndex(index)) == 2
    run(write(tmp_path / "new", z=OLD[:3]), tmp_path / "out", ExactDeduplicationStage(id_field="id", against=[index]))
    assert ids(tmp_path / "out") == ["a2"]


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
    run(new, tmp_path / "copy", ExactDeduplicationStage(extend=index))  # again, with other ids and no directory
    write(new, y=numbered("c", [text(50), text(500), text(100)]))
    run(new, tmp_path / "out", stage, tmp_path / "run")
    assert ids(tmp_path / "out") == [*ONLY_NEW, "c1"]
    assert [one["documents"] for one in DedupIndex(index).info()["snapshots"]] == [60, 61]
    more = write(tmp_path / "more", x=numbered("d", [text(500), text(501)]))
    run(more, tmp_path / "more-out", stage, tmp_path / "more-run")
    assert [one["documents"] for one in DedupIndex(index).info()["snapshots"]] == [60, 61, 1]


def documents(index: str) -> dict[str, int]:
    return {one["snapshot"]: one["documents"] for one in DedupIndex(index).info()["snapshots"]}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("options", [{"id_field": None}, {"keep": "longest"}, {"num_partitions": 3}])
def test_a_run_is_known_again_by_what_it_compares(tmp_path: Path, stage: str, options: dict[str, Any]) -> None:
    index = indexed(stage, tmp_path)
    old, out = tmp_path / "old", tmp_path / "old-out"
    before = ids(out)
    run(old, out, STAGES[stage](**{"id_field": "id", "extend": index, **options}))
    assert ids(out) == before
    assert documents(index) == {"old": 60}
    assert DedupIndex(index).check() == []


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_is_known_again_however_its_input_is_cut(tmp_path: Path, stage: str) -> None:
    old = write(tmp_path / "old", x=OLD[:40], y=OLD[40:], z=[])
    for number, cut in enumerate([{"blocksize": 2_000}, {"blocksize": 700}, {"files_per_partition": 2}]):
        dedup, out = STAGES[stage](id_field="id", extend=str(tmp_path / "index")), tmp_path / f"{number}"
        Pipeline("p", stages=[JsonlReader(str(old), **cut), dedup, JsonlWriter(str(out))]).run(LocalExecutor(0))
        assert ids(out) == [f"a{number}" for number in range(60)]
    assert len(DedupIndex(tmp_path / "index")) == 60


@pytest.mark.parametrize("stage", STAGES)
def test_a_snapshot_with_another_name_is_never_replaced(tmp_path: Path, stage: str) -> None:
    january, february = numbered("j", [text(1), text(2)]), numbered("f", [text(2), text(3)])
    wanted = {"january": ["j0", "j1"], "february": ["f1"], "march": []}
    for month, rows in {"january": january, "february": february, "march": january}.items():
        source = write(tmp_path / "incoming", latest=rows)
        named = DedupIndex(tmp_path / "index", snapshot=month)
        run(source, tmp_path / month, STAGES[stage](id_field="id", extend=named), tmp_path / f"{month}-run")
        assert ids(tmp_path / month) == wanted[month]
    assert documents(str(tmp_path / "index")) == {"january": 2, "february": 1}


def test_files_that_were_written_again_and_pipelines_that_have_changed_are_no_new_snapshots(tmp_path: Path) -> None:
    index = indexed("exact", tmp_path)
    new = write(tmp_path / "new", x=NEW)
    stage = ExactDeduplicationStage(id_field="id", extend=DedupIndex(index, snapshot="new"))
    run(new, tmp_path / "out", stage, tmp_path / "run")
    os.utime(new / "x.jsonl", (1, 1))
    write(new, y=numbered("c", [text(500)]))
    run(new, tmp_path / "out", stage, tmp_path / "run")
    assert ids(tmp_path / "out") == [*ONLY_NEW, "c0"]
    stages = [JsonlReader(str(new)), Sample(0.5), stage, JsonlWriter(str(tmp_path / "out"))]
    Pipeline("p", stages=stages).run(LocalExecutor(0), tmp_path / "run")
    kept = ids(tmp_path / "out")
    assert 0 < len(kept) < 61
    assert set(kept) <= {row["id"] for row in NEW} | {"c0"}
    assert documents(index) == {"old": 60, "new": len(kept)}


def test_what_was_compared_with_what_is_replaced_is_compared_with_what_takes_its_place(tmp_path: Path) -> None:
    index = str(tmp_path / "index")
    stage = ExactDeduplicationStage(id_field="id", extend=index)
    first = write(tmp_path / "1", x=numbered("a", [text(1)]))
    second = write(tmp_path / "2", x=numbered("b", [text(1), text(2)]))
    run(first, tmp_path / "out1", stage, tmp_path / "run1")
    run(second, tmp_path / "out2", stage, tmp_path / "run2")
    assert ids(tmp_path / "out2") == ["b1"]
    run(write(first, y=numbered("c", [text(3), text(2)])), tmp_path / "out1", stage, tmp_path / "run1")
    assert ids(tmp_path / "out1") == ["a0", "c0"]
    run(second, tmp_path / "out2", stage)
    assert ids(tmp_path / "out2") == ["b1"]


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
    with pytest.raises(PlanError, match=r"no version 2\. Its versions: 3"):
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
    with pytest.raises(PlanError, match="at version 2, .* compared with version 1. .* start the run again"):
        run(new, tmp_path / "out", stage, tmp_path / "run")
    assert not ids(tmp_path / "out")
    run(new, tmp_path / "out", stage, tmp_path / "run")
    assert ids(tmp_path / "out") == [name for name in ONLY_NEW if name != "b60"]  # which the other run has kept
    assert [one["documents"] for one in DedupIndex(index).info()["snapshots"]] == [60, 1, 59]


def test_of_two_runs_that_add_the_same_rows_at_the_same_time_one_is_told_to_start_again(tmp_path: Path) -> None:
    rows = numbered("m", [text(100)])  # those of the other run
    stage = ExactDeduplicationStage(extend=Meanwhile(tmp_path / "index"))
    new = write(tmp_path / "new", x=rows)
    with pytest.raises(PlanError, match=r"at version 1, .*\(v1\).* compared with version 0. .* start the run again"):
        run(new, tmp_path / "out", stage, tmp_path / "run")
    assert not ids(tmp_path / "out")
    run(new, tmp_path / "out", stage, tmp_path / "run")
    assert (ids(tmp_path / "out"), ids(tmp_path / "meanwhile" / "out")) == ([], ["m0"])
    assert documents(str(tmp_path / "index")) == {"v1": 1}


def test_a_snapshot_is_told_by_the_name_that_it_has_now(tmp_path: Path) -> None:
    def message(run_dir: str) -> set[str | None]:
        stage = ExactDeduplicationStage(id_field="id", against=[str(tmp_path / "index")])
        run(tmp_path / "new", tmp_path / "out" / run_dir, stage, tmp_path / run_dir)
        return set(pq.read_table(tmp_path / run_dir / "clusters").column("snapshot").to_pylist())

    old = write(tmp_path / "old", x=OLD[:3])
    write(tmp_path / "new", x=OLD[:2])
    for snapshot, name in ((None, "v1"), ("january", "january")):
        extend = DedupIndex(tmp_path / "index", snapshot=snapshot)
        run(old, tmp_path / "old-out", ExactDeduplicationStage(id_field="id", extend=extend))
        assert message("run") == message(f"new-{name}") == {name}


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
from tests.dedup import test_dedup_index

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
    made = test_dedup_index.STAGES[stage](id_field="id", num_partitions=2, extend=str(folder / "index"))
    test_dedup_index.run(root / "new", folder / "out", made, folder / "run")
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
    files = {name: raw for name, raw in tree(folder / "index").items() if not name.endswith(".draft")}
    without = re.compile(re.escape(str(folder)).encode() + rb'|(?<="mark": ")[0-9a-f]{16}')
    return {name: without.sub(b"", raw) for name, raw in files.items()}
