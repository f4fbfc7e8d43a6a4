"""Runs over files that an index knows: no row that was kept gets lost from the output, or the run does not start."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.core.errors import PlanError
from gristmill.dedup import DedupIndex, ExactDeduplicationStage
from tests.dedup.index_snapshots import (
    GROWN,
    KEPT,
    MORE,
    ONE,
    TWO,
    WITH_MORE,
    Corner,
    Rows,
    from_scratch,
    ids,
    numbered,
    text,
)


@pytest.fixture(params=["exact", pytest.param("fuzzy", marks=pytest.mark.slow)])
def corner(request: pytest.FixtureRequest, tmp_path: Path) -> Corner:
    return Corner(tmp_path, request.param)


# -- files that have changed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "now", "message"),
    [
        ({"x": ONE}, {"x": GROWN}, "their content has changed"),
        ({"x": ONE}, {"x": TWO}, "their content has changed"),
        ({"x": ONE}, {"x": []}, "their content has changed"),
        ({"x": ONE, "y": MORE}, {"x": ONE, "y": MORE[1:]}, "some of them are unchanged, while others have"),
        ({"x": ONE, "y": MORE}, {"x": ONE}, "some of them are unchanged, while others have changed or are missing"),
        ({"x": ONE, "y": MORE}, {"x": GROWN, "z": MORE}, "their content has changed"),
    ],
)
@pytest.mark.parametrize("run_dir", ["run", None])
def test_files_that_have_changed_are_refused_unless_they_have_a_name(
    tmp_path: Path, then: dict[str, Rows], now: dict[str, Rows], message: str, run_dir: str | None
) -> None:
    corner = Corner(tmp_path)
    before = corner.add(run_dir, **then)
    known = corner.snapshots
    way_out = r"use its name, .*snapshot='v1'\), and run_dir='.*/run'" if run_dir else "rebuild the index"
    for _ in range(2):
        with pytest.raises(
            PlanError, match=f"added before, as 'v1'.*{message}.*{way_out}.*another snapshot, .*name it.* of its own"
        ):
            corner.add(run_dir, **now)
        assert ids(corner.out) == before
        assert corner.snapshots == known
    new = {row["text"] for rows in now.values() for row in rows} - {
        row["text"] for rows in then.values() for row in rows
    }
    assert len(corner.add(run_dir and "other-run", "corrected", "other", **now)) == len(new)
    assert ids(corner.out) == before


@pytest.mark.parametrize("name", ["january", None])
def test_a_snapshot_is_replaced_by_its_name_and_its_run_dir(corner: Corner, name: str | None) -> None:
    corner.add("run", name, x=ONE)
    for files in ({"x": GROWN}, {"x": TWO, "y": MORE}, {"x": ONE, "z": TWO}, {"z": GROWN}):
        kept = corner.add("run", name or "v1", **files)
        assert kept == from_scratch(files)
        assert corner.snapshots == [(name or "v1", len(kept))]
        assert corner.add("run", **files) == kept  # again, without the name


def test_a_name_that_another_addition_has_is_refused(tmp_path: Path) -> None:
    corner = Corner(tmp_path)
    corner.add("run", "january", x=ONE)
    for run_dir, files in (("other", {"x": GROWN}), (None, {"x": GROWN}), (None, {"y": MORE})):
        with pytest.raises(PlanError, match=r"already has a snapshot 'january'.* by the run in .*/run.*another name"):
            corner.add(run_dir, "january", **files)
        assert ids(corner.out) == KEPT
    assert corner.snapshots == [("january", 4)]
    assert corner.add("other", "january", x=ONE) == KEPT  # the same rows


def test_rows_that_come_from_no_file_are_replaced_by_their_name(tmp_path: Path) -> None:
    def add(snapshot: str | None, rows: Rows) -> int:
        stage = ExactDeduplicationStage(extend=DedupIndex(tmp_path / "index", snapshot=snapshot))
        result = Pipeline("p", stages=[stage]).run(
            LocalExecutor(0), run_dir=tmp_path / "run", initial_tasks=[DocumentBatch(rows)]
        )
        return result.summary().rows_out

    assert [add("january", ONE), add("january", GROWN), add(None, GROWN), add(None, MORE)] == [4, 5, 5, 1]
    assert len(DedupIndex(tmp_path / "index")) == 6


def test_what_was_compared_with_rows_that_are_no_more_is_told(tmp_path: Path) -> None:
    corner = Corner(tmp_path)
    corner.add("run", "january", x=ONE)
    assert corner.add("run2", "february", "feb", y=MORE) == ["b1"]
    with pytest.warns(RuntimeWarning, match="'january' is replaced.* Repeat the runs that added 'february'"):
        corner.add("run", "january", x=TWO)
    assert corner.add("run2", "february", "feb", y=MORE) == ["b0", "b1"]
    assert corner.snapshots == [("january", 2), ("february", 2)]


# -- more files ----------------------------------------------------------------------------------------------


def test_a_repetition_elsewhere_takes_nothing_away_from_the_run_that_it_repeats(corner: Corner) -> None:
    corner.add("run", x=ONE)
    for run_dir in ("elsewhere", None):
        assert corner.add(run_dir, out="copy", id_field=None, x=ONE) == KEPT
        assert corner.add("run", x=ONE) == KEPT
    assert corner.add("run", x=ONE, y=MORE) == WITH_MORE
    assert corner.snapshots == [("v1", 5)]


def test_a_run_is_not_compared_with_its_own_rows_if_another_has_had_its_files(corner: Corner) -> None:
    corner.add("run", x=ONE)
    assert corner.add("elsewhere", "all", "copy", x=ONE, y=MORE) == ["b1"]
    for _ in range(2):
        assert corner.add("run", x=ONE, y=MORE) == WITH_MORE
    assert corner.snapshots == [("all", 5)]


@pytest.mark.parametrize(("first", "second"), [(None, None), ("run", None), (None, "run"), ("run", "other")])
def test_more_files_need_the_run_dir_of_those_before(tmp_path: Path, first: str | None, second: str | None) -> None:
    corner = Corner(tmp_path)
    corner.add(first, x=ONE)
    with pytest.raises(PlanError, match="added before, as 'v1'.*and there are more files now.*name it"):
        corner.add(second, x=ONE, y=MORE)
    assert ids(corner.out) == KEPT
    assert corner.snapshots == [("v1", 4)]
    assert corner.add("run", x=ONE) == KEPT  # it now belongs to this directory, if it had none
    assert corner.add("run", x=ONE, y=MORE) == WITH_MORE


# -- names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("v1", "v2"), ("v2", "v1"), ("january", "february")])
def test_names_that_are_like_made_ones_are_names(tmp_path: Path, names: tuple[str, str]) -> None:
    corner = Corner(tmp_path)
    assert corner.add(None, names[0], "1", x=ONE) == KEPT
    assert corner.add(None, names[1], "2", x=ONE) == []
    assert corner.snapshots == [(names[0], 4)]


def test_made_names_are_free_ones(tmp_path: Path) -> None:
    corner = Corner(tmp_path)
    corner.add(None, "v2", "1", x=ONE)
    corner.add(None, None, "2", y=MORE)
    assert corner.snapshots == [("v2", 4), ("v2.1", 1)]


@pytest.mark.parametrize("id_field", ["id", None])
def test_what_had_no_name_can_be_given_one(tmp_path: Path, id_field: str | None) -> None:
    corner = Corner(tmp_path)
    corner.add("run", x=ONE)
    assert corner.add(None, "january", "copy", id_field, x=ONE) == KEPT
    assert corner.snapshots == [("january", 4)]
    assert corner.add("run", x=ONE, y=MORE) == WITH_MORE
    assert corner.snapshots == [("january", 5)]


def test_snapshots_of_two_names_are_never_made_one(tmp_path: Path) -> None:
    corner = Corner(tmp_path)
    corner.add("run", "january", "1", x=ONE)
    assert corner.add("other", "february", "2", x=ONE, y=MORE) == ["b1"]
    with pytest.raises(PlanError, match="were added as 'february' and as 'january'. Say which of them this run is"):
        corner.add("run", x=ONE, y=MORE)
    assert corner.add("run", "january", "1", x=ONE, y=MORE) == KEPT
    assert corner.snapshots == [("february", 1), ("january", 4)]


def test_a_snapshot_beside_others_of_its_files_is_repeated_by_its_name(tmp_path: Path) -> None:
    corner = Corner(tmp_path)
    corner.add(None, x=ONE)
    assert corner.add(None, "all", "copy", x=ONE, y=MORE) == ["b1"]
    with pytest.raises(PlanError, match="added before, as 'v1', and there are more files now.*name it"):
        corner.add(None, x=ONE, y=MORE)
    assert corner.add(None, x=ONE) == KEPT
    assert corner.add(None, "all", "copy", x=ONE, y=MORE) == ["b1"]
    assert corner.snapshots == [("v1", 4), ("all", 1)]


# -- any order -----------------------------------------------------------------------------------------------

SOME = st.fixed_dictionaries({"x": st.sampled_from([ONE, GROWN])}, optional={"y": st.sampled_from([MORE, MORE[1:]])})


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["run", "other", None]), SOME), min_size=2, max_size=5))
def test_output_is_that_of_a_run_from_scratch_or_is_left_alone(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[str | None, dict[str, Any]]]
) -> None:
    corner = Corner(tmp_path_factory.mktemp("corner"))
    for number, (run_dir, files) in enumerate(runs):
        before = ids(corner.out)
        try:
            kept = corner.add(run_dir, **files)
        except PlanError:
            assert number
            assert ids(corner.out) == before
        else:
            assert kept == from_scratch(files)
        assert sum(documents for _, documents in corner.snapshots) == len(ids(corner.out))


ANY = st.dictionaries(st.sampled_from("xyz"), st.sampled_from([ONE, GROWN, MORE]), min_size=1)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from(["run", "other", None]), st.sampled_from(["in", "moved"]), ANY), max_size=6),
)
@example([("run", "in", {"x": ONE}), ("run", "in", {"y": MORE}), ("run", "in", {"x": ONE, "y": MORE})])
@example([("run", "in", {"x": ONE}), ("run", "moved", {"x": MORE}), ("run", "moved", {"x": ONE})])
@example([(None, "in", {"x": ONE}), ("run", "in", {"y": MORE}), ("run", "in", {"x": ONE})])
def test_every_text_that_was_read_is_in_the_output_of_some_run(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[str | None, str, dict[str, Any]]]
) -> None:
    corner = Corner(tmp_path_factory.mktemp("corner"))
    texts = {row["id"]: row["text"] for row in [*GROWN, *MORE]}
    wanted: set[str] = set()
    for run_dir, source, files in runs:
        corner.source = corner.folder / source
        with suppress(PlanError):
            corner.add(run_dir, out=f"out-{run_dir or source}", **files)
            wanted |= {row["text"] for rows in files.values() for row in rows}
        found = {texts[name] for out in corner.folder.glob("out-*") for name in ids(out)}
        assert found == wanted
        assert sum(documents for _, documents in corner.snapshots) == len(wanted)


# -- what is told of files -----------------------------------------------------------------------------------


def test_versions_do_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    corner = Corner(tmp_path)
    corner.add("run", **{f"x{number}": numbered("a", [text(number)]) for number in range(30)})
    [version] = (tmp_path / "index" / "versions").iterdir()
    [origins] = (tmp_path / "index" / "origins").iterdir()
    assert len(origins.read_text().splitlines()) == 30
    assert json.loads(version.read_text())["additions"][0]["origins"] == origins.name
    files = {f"x{number}": numbered("a", [text(number)]) for number in range(31)}
    assert len(corner.add("run", **files)) == 31
    assert len(list(origins.parent.iterdir())) == 2
    (origins.parent / "left").write_text("")
    assert DedupIndex(tmp_path / "index").prune(unfinished=True) == [1]
    assert len(list(origins.parent.iterdir())) == 1
    assert DedupIndex(tmp_path / "index").check() == []


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"\xff")])
def test_damage_to_what_is_told_of_files_is_told(tmp_path: Path, damage: Any) -> None:
    corner = Corner(tmp_path)
    corner.add("run", x=ONE)
    [origins] = (tmp_path / "index" / "origins").iterdir()
    damage(origins)
    assert len(DedupIndex(tmp_path / "index").check()) == 1
    with pytest.raises(
        PlanError, match=f"{origins}, the list of input files of snapshot 'v1', is missing or has changed"
    ):
        corner.add("run", x=ONE, y=MORE)
    assert ids(corner.out) == KEPT
