"""One index that is given more than once: under two names, as two versions, to two stages."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.core.errors import PlanError
from gristmill.dedup import DedupIndex, ExactDeduplicationStage
from gristmill.dedup.index.stage_indexes import StageIndexes
from gristmill.text import JsonlReader, JsonlWriter
from tests.dedup.index_snapshots import NEW, OLD, ONLY_NEW, STAGES, ids, indexed, run, write


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("spelled", ["{}/link/index", "{}/new/../index", "file://{}/index", "{}/index/"])
def test_an_index_is_the_same_however_its_place_is_spelled(tmp_path: Path, stage: str, spelled: str) -> None:
    index, new = indexed(stage, tmp_path), write(tmp_path / "new", x=NEW)
    (tmp_path / "link").symlink_to(tmp_path)
    for _ in range(2):
        made = STAGES[stage](id_field="id", against=[spelled.format(tmp_path)], extend=index)
        run(new, tmp_path / "out", made, tmp_path / "run")
        assert ids(tmp_path / "out") == ONLY_NEW
        assert len(DedupIndex(index)) == 120


def test_a_run_dir_is_the_same_however_it_is_spelled(tmp_path: Path) -> None:
    index, new = indexed("exact", tmp_path), write(tmp_path / "new", x=NEW)
    (tmp_path / "link").symlink_to(tmp_path)
    for run_dir in ("link/run", "new/../run", "run"):
        write(new, **{f"y{len(run_dir)}": [{"id": run_dir, "text": run_dir}]})
        run(new, tmp_path / "out", ExactDeduplicationStage(id_field="id", extend=index), tmp_path / run_dir)
    assert len(DedupIndex(index)) == len(ids(tmp_path / "out")) + 60 == 123


def test_stores_that_are_reached_in_other_ways_are_others() -> None:
    one, other = ({"endpoint_url": f"http://{name}"} for name in ("one", "other"))
    given = [DedupIndex("s3://bucket/index", options) for options in (one, other, one, None)]
    assert len(StageIndexes("stage", "exact", {}, given, DedupIndex("s3://bucket/index", other)).indexes) == 3


def test_a_copy_of_the_index_is_refused_once_it_has_what_the_run_itself_has_added(tmp_path: Path) -> None:
    index, new, copy = indexed("exact", tmp_path), write(tmp_path / "new", x=NEW), tmp_path / "copy"
    stage = ExactDeduplicationStage(id_field="id", against=[str(copy)], extend=DedupIndex(index, snapshot="new"))
    shutil.copytree(index, copy)
    for _ in range(2):
        run(new, tmp_path / "out", stage, tmp_path / "run")
    shutil.rmtree(copy)
    shutil.copytree(index, copy)
    with pytest.raises(
        PlanError, match=r"/copy has rows that this run has added to the one at .*/index before \('new'\)"
    ):
        run(new, tmp_path / "out", stage, tmp_path / "run")
    assert ids(tmp_path / "out") == ONLY_NEW
    assert len(DedupIndex(index)) == 120


@pytest.mark.parametrize(
    ("against", "extends", "message"),
    [
        ([1], True, "version 1 and as the last"),
        ([1, 2], False, "version 1 and as version 2"),
        ([2, None], False, "version 2 and as the last"),
    ],
)
def test_two_versions_of_one_index_are_refused(tmp_path: Path, against: Any, extends: bool, message: str) -> None:
    index = indexed("exact", tmp_path)
    run(write(tmp_path / "new", x=NEW), tmp_path / "out", ExactDeduplicationStage(id_field="id", extend=index))
    given = [DedupIndex(index, version=version) for version in against]
    stage = ExactDeduplicationStage(against=given, extend=index if extends else None)
    with pytest.raises(PlanError, match=f"the index at {index} is given as .*{message}.*give it once"):
        Pipeline("p", stages=[stage]).plan([DocumentBatch(OLD)])


@pytest.mark.parametrize("options", [{"extend": "index"}, {"against": ["new/../index"]}])
@pytest.mark.parametrize("adds_last", [False, True])
def test_stages_that_would_find_what_another_has_just_added_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], adds_last: bool
) -> None:
    index = indexed("exact", tmp_path)
    monkeypatch.chdir(tmp_path)
    stages: list[Any] = [ExactDeduplicationStage(extend=index), ExactDeduplicationStage("id", **options)]
    stages[0].name, stages[1].name = "texts", "ids"
    stages = [JsonlReader("new"), *stages[:: -1 if adds_last else 1], JsonlWriter("out")]
    write(tmp_path / "new", x=NEW)
    with pytest.raises(PlanError, match=rf"stages '.*' and '.*' share the index at {index}.*Give each stage an index"):
        Pipeline("p", stages=stages).run(LocalExecutor(0), "run")
    assert not os.path.exists("run")
    assert DedupIndex(index).versions == [1]
