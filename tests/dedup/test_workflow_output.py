"""Output directories of workflows: what one run writes is not mixed with what others have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor
from gristmill.core.errors import InputError, PlanError
from gristmill.dedup import ExactDeduplicationWorkflow, TextDuplicatesRemovalWorkflow
from tests.dedup.jsonl_files import contents, texts, write

HERE = LocalExecutor(0)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for number, name in enumerate(["a.jsonl", "c.jsonl"]):
        write(tmp_path / "in" / name, [{"text": f"text {row * (number + 1) % 40}"} for row in range(30)])
    return tmp_path / "in"


@pytest.mark.parametrize("kept", [False, True])
def test_output_of_other_input_is_not_left_beside_ours(tmp_path: Path, kept: bool) -> None:
    write(tmp_path / "in" / "a.jsonl", [{"text": "same"}])
    options: dict[str, Any] = {"cache_path": tmp_path / "cache"} if kept else {}
    out = tmp_path / "out"
    for _ in range(2):  # again is nothing else
        ExactDeduplicationWorkflow(tmp_path / "in", out, **options).run(HERE)
    (tmp_path / "in" / "a.jsonl").rename(tmp_path / "in" / "b.jsonl")
    again = ExactDeduplicationWorkflow(tmp_path / "in", out, **options)
    if not kept:
        with pytest.raises(InputError, match=r"(?s)ExactDeduplicationWorkflow: .*out has a-.*output_mode='overwrite'"):
            again.run(HERE)
        assert [path.name[0] for path in out.glob("*.jsonl")] == ["a"]
        again = ExactDeduplicationWorkflow(tmp_path / "in", out, write_kwargs={"mode": "overwrite"})
    again.run(HERE)
    assert [path.name[0] for path in out.glob("*.jsonl")] == ["b"]


@pytest.mark.parametrize(
    ("mode", "left"), [("ignore", ["mine", "same"]), ("append", ["mine", "same"]), ("overwrite", ["same"])]
)
def test_what_becomes_of_files_that_are_there(tmp_path: Path, mode: str, left: list[str]) -> None:
    write(tmp_path / "in" / "a.jsonl", [{"text": "same"}])
    write(tmp_path / "out" / "0.jsonl", [{"text": "mine"}])
    (tmp_path / "out" / "notes.txt").write_text("of another kind")
    for other in ({}, {"output_mode": "error"}):
        with pytest.raises(InputError, match=r"has 0\.jsonl"):
            ExactDeduplicationWorkflow(tmp_path / "in", tmp_path / "out", **other).run(HERE)
    ExactDeduplicationWorkflow(tmp_path / "in", tmp_path / "out", output_mode=mode).run(HERE)
    assert texts(tmp_path / "out") == left
    with pytest.raises(PlanError, match="output_mode.*needs perform_removal"):
        ExactDeduplicationWorkflow(tmp_path / "in", tmp_path / "f", output_mode=mode, perform_removal=False).run(HERE)


def test_the_input_is_not_called_a_stranger(corpus: Path) -> None:
    with pytest.raises(PlanError, match="the input"):
        ExactDeduplicationWorkflow(corpus, corpus).run(HERE)


@pytest.mark.parametrize("kept", [False, True])
def test_rows_are_not_removed_twice_into_one_directory(corpus: Path, tmp_path: Path, kept: bool) -> None:
    found = ExactDeduplicationWorkflow(corpus, tmp_path / "found", perform_removal=False).run(HERE)
    options: dict[str, Any] = {"cache_path": tmp_path / "cache"} if kept else {}
    workflow = TextDuplicatesRemovalWorkflow(corpus, found.clusters_path or "", tmp_path / "out", **options)
    for _ in range(2):
        workflow.run(HERE)
    (corpus / "a.jsonl").rename(corpus / "b.jsonl")
    with pytest.raises(InputError, match="TextDuplicatesRemovalWorkflow: .*has a-.*which this run does not write"):
        workflow.run(HERE)


def test_output_of_an_input_file_that_is_gone_goes_too(corpus: Path, tmp_path: Path) -> None:
    workflow = ExactDeduplicationWorkflow(corpus, tmp_path / "out", cache_path=tmp_path / "cache")
    workflow.run(HERE)
    (corpus / "a.jsonl").unlink()
    workflow.run(HERE)
    ExactDeduplicationWorkflow(corpus, tmp_path / "new").run(HERE)
    there, wanted = contents(tmp_path / "out"), contents(tmp_path / "new")
    assert there == wanted
    manifests = [json.loads((tmp_path / f"{name}.run" / "manifest.json").read_text()) for name in ("out", "new")]
    assert [{file["name"] for file in manifest["files"]} for manifest in manifests] == [set(wanted)] * 2
