"""A run directory is for one snapshot of an index, wherever its files are now."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, Sample
from gristmill.core.errors import PlanError
from gristmill.dedup import DedupIndex, ExactDeduplicationStage, ExactDeduplicationWorkflow
from gristmill.text import JsonlReader, JsonlWriter
from tests.dedup.index_snapshots import KEPT, MORE, OLD, ONE, TWO, WITH_MORE, Corner, Rows, ids, run, write

# -- other files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "place", "now", "message"),
    [
        (None, None, "in", {"y": MORE}, "'v1', of other input.*this run another run_dir.*input of 'v1' too"),
        (None, None, "in2", {"x": MORE}, "'v1', of other input.*this run another run_dir.*input of 'v1' too"),
        (None, "new", "in", {"y": MORE}, "'v1', which is another snapshot.*another run_dir.*use its name.*'v1'"),
        ("old", None, "in", {"y": MORE}, "'old', of other input.*this run another run_dir"),
        ("old", "old", "in", {"y": MORE}, "'old', of other input.*this run another name, another run_dir"),
        ("old", "old", "in2", {"x": ONE, "y": MORE}, "'old', of other input.*input of 'old' too, at its earlier paths"),
        ("old", "new", "in", {"y": MORE}, "'old', which is another snapshot.*another run_dir.*use its name.*'old'"),
        ("old", "new", "in", {"x": ONE}, "'old', which is another snapshot"),
        ("old", "new", "in", {"x": TWO, "y": MORE}, "'old', which is another snapshot"),
    ],
)
def test_a_run_dir_is_not_used_for_another_snapshot(
    tmp_path: Path, first: str | None, second: str | None, place: str, now: dict[str, Rows], message: str
) -> None:
    corner = Corner(tmp_path)
    corner.add("run", first, x=ONE)
    known = corner.snapshots
    corner.source = tmp_path / place
    for _ in range(2):
        with pytest.raises(PlanError, match=f"the run in {tmp_path}/run has made {message}"):
            corner.add("run", second, **now)
        assert ids(corner.out) == KEPT
        assert corner.snapshots == known
    corner.source = tmp_path / "in"
    assert corner.add("run", first, x=ONE) == KEPT
    assert corner.add("run", first, x=ONE, y=MORE) == WITH_MORE


def test_additions_of_others_do_not_hide_those_of_the_run_dir(tmp_path: Path) -> None:
    corner = Corner(tmp_path)
    corner.add("run", x=ONE)
    assert corner.add(None, out="other", y=MORE) == ["b1"]
    with pytest.raises(PlanError, match="/run has made 'v1', of other input"):
        corner.add("run", y=MORE)  # which repeats what the other has done
    assert ids(corner.out) == KEPT


def test_a_cache_path_is_not_used_for_other_files(tmp_path: Path) -> None:
    def add(**files: Rows) -> list[str]:
        for path in (tmp_path / "in").glob("*"):
            path.unlink()
        options: dict[str, Any] = {"id_field": "id", "cache_path": tmp_path / "cache", "extend": tmp_path / "index"}
        ExactDeduplicationWorkflow(write(tmp_path / "in", **files), tmp_path / "out", **options).run(LocalExecutor(0))
        return ids(tmp_path / "out")

    assert add(day1=ONE) == KEPT
    with pytest.raises(PlanError, match="/cache has made 'v1', of other input.*the cache_path of a workflow"):
        add(day2=MORE)
    assert ids(tmp_path / "out") == KEPT
    assert add(day1=ONE, day2=MORE) == WITH_MORE


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("removed", [False, True])
def test_one_run_dir_may_be_used_for_snapshots_that_are_written_elsewhere(
    tmp_path: Path, named: bool, removed: bool
) -> None:
    corner = Corner(tmp_path)
    for day, (rows, wanted) in enumerate([(ONE, KEPT), (MORE, ["b1"]), (MORE, [])]):
        corner.source = tmp_path / f"in{day}"
        assert corner.add("run", f"day{day}" if named else None, out=f"out{day}", **{f"x{day}": rows}) == wanted
        if removed:
            shutil.rmtree(tmp_path / "run")
    assert [ids(tmp_path / f"out{day}") for day in range(3)] == [KEPT, ["b1"], []]


def test_another_run_whose_directory_has_the_same_name_adds_to_the_output(tmp_path: Path) -> None:
    corner = Corner(tmp_path)
    corner.add("run", x=ONE)
    shutil.rmtree(tmp_path / "run")
    corner.source = tmp_path / "in2"
    for _ in range(2):
        assert sorted(corner.add("run", y=MORE)) == WITH_MORE
    assert corner.snapshots == [("v1", 4), ("v2", 1)]


def test_tasks_that_are_written_nowhere_come_day_by_day(tmp_path: Path) -> None:
    for rows, wanted in ((ONE, 4), (MORE, 1), (MORE, 1)):
        stages: Any = [ExactDeduplicationStage(id_field="id", extend=str(tmp_path / "index"))]
        result = Pipeline("p", stages=stages).run(
            LocalExecutor(0), run_dir=tmp_path / "run", initial_tasks=[DocumentBatch(rows)]
        )
        assert result.summary().rows_out == wanted


# -- files that were moved -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [None, "january"])
@pytest.mark.parametrize(("before", "after"), [("in", "in2"), ("in/x.jsonl", "in/z.jsonl")])
def test_a_run_goes_on_with_files_that_were_moved(tmp_path: Path, name: str | None, before: str, after: str) -> None:
    corner = Corner(tmp_path)
    corner.add("run", name, x=ONE, y=TWO)
    known = corner.snapshots
    (tmp_path / before).rename(tmp_path / after)
    source = tmp_path / after.partition("/")[0]
    stage = ExactDeduplicationStage(id_field="id", extend=DedupIndex(tmp_path / "index", snapshot=name))
    for _ in range(2):
        run(source, corner.out, stage, tmp_path / "run")
        assert sorted(ids(corner.out)) == KEPT
        assert corner.snapshots == known
    [written] = [path for path in (source / "x.jsonl", source / "z.jsonl") if path.exists()]
    written.write_bytes(written.read_bytes())
    (source / "y.jsonl").write_bytes((source / "y.jsonl").read_bytes())
    run(write(source, zz=MORE), corner.out, stage, tmp_path / "run")  # and then there are more
    assert sorted(ids(corner.out)) == WITH_MORE
    assert [documents for _, documents in corner.snapshots] == [5]


def test_the_same_rows_elsewhere_are_another_snapshot_for_another_run(tmp_path: Path) -> None:
    corner = Corner(tmp_path)
    corner.add("run", x=ONE)
    corner.source = tmp_path / "copy"
    for run_dir in ("other", None):
        assert corner.add(run_dir, out="another", x=ONE) == []
    assert corner.snapshots == [("v1", 4)]


# -- what is told --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("files_per_partition", [1, 2])
@pytest.mark.parametrize(("now", "lost"), [({"y": None}, True), ({"y": MORE[:1]}, True), ({"z": TWO}, False)])
def test_what_may_have_lost_rows_is_told_however_files_are_read(
    tmp_path: Path, files_per_partition: int, now: dict[str, Rows | None], lost: bool
) -> None:
    def add(name: str) -> None:
        stages: Any = [JsonlReader(str(tmp_path / name), files_per_partition=files_per_partition)]
        stages += [ExactDeduplicationStage(id_field="id", extend=DedupIndex(tmp_path / "index", snapshot=name))]
        stages += [JsonlWriter(str(tmp_path / f"{name}-out"))]
        Pipeline("p", stages=stages).run(LocalExecutor(0), tmp_path / f"{name}-run")

    write(tmp_path / "a", x=ONE, y=MORE)
    write(tmp_path / "b", x=[*MORE, {"id": "c", "text": "new"}])
    add("a")
    add("b")
    for name, rows in now.items():
        (tmp_path / "a" / f"{name}.jsonl").unlink(missing_ok=True)
        write(tmp_path / "a", **({name: rows} if rows else {}))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        add("a")
    assert ["'a' is replaced, and may have lost rows" in str(one.message) for one in found] == [True] * lost


def test_other_stages_are_told_apart_from_other_files(tmp_path: Path) -> None:
    source, index = write(tmp_path / "in", x=OLD, empty=[]), str(tmp_path / "index")
    run(source, tmp_path / "out", ExactDeduplicationStage(id_field="id", extend=index))
    stages: Any = [JsonlReader(str(source)), Sample(0.5), ExactDeduplicationStage(id_field="id", extend=index)]
    with pytest.raises(
        PlanError, match="added before, as 'v1', and the rows that the pipeline makes of them have changed"
    ):
        Pipeline("p", stages=[*stages, JsonlWriter(str(tmp_path / "out"))]).run(LocalExecutor(0))
