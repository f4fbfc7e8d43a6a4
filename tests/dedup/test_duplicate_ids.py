"""Duplicates found by one script and removed by the next, in the files that NeMo Curator has for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor
from gristmill.core.errors import InputError, PlanError
from gristmill.core.task import FileGroupTask
from gristmill.dedup import (
    CURATOR_DEDUP_ID_STR,
    ExactDeduplicationWorkflow,
    FuzzyDeduplicationWorkflow,
    SemanticDeduplicationWorkflow,
    TextDuplicatesRemovalWorkflow,
)
from tests.dedup.jsonl_files import contents

HERE = LocalExecutor(0)
WORKFLOWS = [(ExactDeduplicationWorkflow, "Exact"), (FuzzyDeduplicationWorkflow, "Fuzzy")]


@pytest.fixture(params=["jsonl", "parquet"])
def corpus(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, str]:
    """Three files in two directories, many of whose texts are the same, and all of more than 24 characters."""
    for number, name in enumerate(["a", "deep/b", "c"]):
        rows = [
            {"number": 100 * number + row, "text": f"the text of number {row * (number + 1) % 40} is not short"}
            for row in range(30)
        ]
        path = tmp_path / "in" / f"{name}.{request.param}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if request.param == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "in", request.param


def data(folder: Path) -> dict[str, bytes]:
    return {name: raw for name, raw in contents(folder).items() if not name.startswith("_")}


@pytest.mark.parametrize(("workflow", "kind"), WORKFLOWS)
def test_found_by_one_script_and_removed_by_the_next(
    corpus: tuple[Path, str], tmp_path: Path, workflow: Any, kind: str
) -> None:
    source, filetype = str(corpus[0]), corpus[1]
    workflow(input_path=source, output_path=str(tmp_path / "at_once")).run(HERE)

    output, cache = f"{tmp_path}/found", f"{tmp_path}/cache"
    result = workflow(
        input_path=source, cache_path=cache, output_path=output, input_filetype=filetype, text_field="text",
        perform_removal=False, input_blocksize="1GiB", env_vars=None,
    ).run(executor=HERE)  # fmt: skip
    ids = pq.read_table(f"{output}/{kind}DuplicateIds")
    assert ids.schema == pa.schema([(CURATOR_DEDUP_ID_STR, pa.int64())])
    assert len(set(ids[0].to_pylist())) == ids.num_rows == result.get_metadata("num_duplicates") > 20
    state = f"{output}/{kind.lower()}_id_generator.json"
    assert result.get_metadata("id_generator_path") == state
    assert result.get_metadata("num_duplicates_removed") is None

    removal = TextDuplicatesRemovalWorkflow(
        input_path=source,
        ids_to_remove_path=f"{output}/{kind}DuplicateIds",
        output_path=f"{tmp_path}/later",
        input_filetype=filetype,
        input_blocksize=400,
        id_field=CURATOR_DEDUP_ID_STR,
        duplicate_id_field=CURATOR_DEDUP_ID_STR,
        id_generator_path=state,
        output_filetype=filetype,
        drop_id_field=True,
    )
    assert removal.run(HERE).get_metadata("num_duplicates_removed") == ids.num_rows
    assert data(tmp_path / "later") == data(tmp_path / "at_once") != {}


def test_the_column_of_ids_is_written_unless_it_is_not_wanted(corpus: tuple[Path, str], tmp_path: Path) -> None:
    ExactDeduplicationWorkflow(corpus[0], tmp_path / "found", perform_removal=False).run(HERE)
    common: Any = {
        "input_path": corpus[0],
        "ids_to_remove_path": tmp_path / "found" / "ExactDuplicateIds",
        "duplicate_id_field": CURATOR_DEDUP_ID_STR,
        "id_generator_path": tmp_path / "found" / "exact_id_generator.json",
        "output_filetype": "parquet",
    }
    columns = {
        "all": ({}, ["number", "text", CURATOR_DEDUP_ID_STR]),
        "some": ({"output_fields": ["text"]}, ["text"]),
        "few": ({"input_fields": ["number"]}, ["number", CURATOR_DEDUP_ID_STR]),
    }
    for name, (options, wanted) in columns.items():
        TextDuplicatesRemovalWorkflow(**common, output_path=tmp_path / name, **options).run(HERE)
        tables = [pq.read_table(path) for path in (tmp_path / name).glob("*.parquet")]
        assert {tuple(table.column_names) for table in tables} == {tuple(wanted)}
    limited = TextDuplicatesRemovalWorkflow(**common, output_path=tmp_path / "one", input_task_limit=1).run(HERE)
    assert limited.documents == 30


@pytest.mark.parametrize(("workflow", "kind"), WORKFLOWS)
def test_ids_of_ones_own_keep_their_name_and_type(
    corpus: tuple[Path, str], tmp_path: Path, workflow: Any, kind: str
) -> None:
    found = workflow(corpus[0], tmp_path / "found", assign_id=False, id_field="number", perform_removal=False).run(HERE)
    ids = pq.read_table(tmp_path / "found" / f"{kind}DuplicateIds")
    assert ids.schema == pa.schema([("number", pa.int64())])
    assert not list((tmp_path / "found").glob("*.json"))
    assert found.get_metadata("id_generator_path") is None
    removed = TextDuplicatesRemovalWorkflow(
        corpus[0], tmp_path / "found" / f"{kind}DuplicateIds", tmp_path / "out", "number", "number"
    ).run(HERE)
    assert removed.duplicates == ids.num_rows == found.duplicates


def test_ids_of_several_types_are_text(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": 1, "text": "x"}, {"id": 2, "text": "x"}, {"id": "b", "text": "x"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ExactDeduplicationWorkflow(tmp_path / "in.jsonl", tmp_path / "out", id_field="id", perform_removal=False).run(HERE)
    assert pq.read_table(tmp_path / "out" / "ExactDuplicateIds")["id"].to_pylist() == ["2", "b"]


def test_nothing_found_is_an_empty_table_and_a_second_run_replaces_the_first(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    for texts, wanted in ((["x", "x"], 1), (["x", "y"], 0), (["x", "x", "x"], 2)):
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        ExactDeduplicationWorkflow(path, tmp_path / "out", perform_removal=False).run(HERE)
        assert pq.read_table(tmp_path / "out" / "ExactDuplicateIds").num_rows == wanted


def test_embeddings_are_only_compared_unless_removal_is_asked_for(tmp_path: Path) -> None:
    rows = [{"image_id": f"i{number}", "embedding": [float(number % 3), 1.0]} for number in range(9)]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / "0.parquet")
    result = SemanticDeduplicationWorkflow(
        input_path=str(tmp_path / "in"), output_path=str(tmp_path / "out"), n_clusters=1, id_field="image_id",
        embedding_field="embedding", eps=0.01, cache_path=str(tmp_path / "cache"), metadata_fields=["image_id"],
    ).run(kmeans_executor=HERE, pairwise_executor=HERE)  # fmt: skip
    ids = pq.read_table(tmp_path / "out" / "duplicates")
    assert ids.column_names == ["id"]
    assert len({int(name[1:]) % 3 for name in ids["id"].to_pylist()}) == 3
    assert ids.num_rows == result.get_metadata("num_duplicates") == 6


def test_files_of_tasks_are_read_instead_of_a_path(corpus: tuple[Path, str], tmp_path: Path) -> None:
    tasks = [FileGroupTask([str(path)]) for path in sorted(corpus[0].glob("*.*"))]
    for number, arguments in enumerate([(tasks,), (None,)]):
        workflow = FuzzyDeduplicationWorkflow(output_path=str(tmp_path / str(number)), perform_removal=False)
        options = {} if arguments[0] else {"initial_tasks": tasks}
        assert workflow.run(*arguments, **options).documents == 60
        with pytest.raises(PlanError, match="no input: set input_path"):
            workflow.run(HERE)
    with pytest.raises(TypeError, match="needs output_path"):
        FuzzyDeduplicationWorkflow(input_path="in")
    with pytest.raises(TypeError, match="list of FileGroupTask"):
        workflow.run(["in"])  # type: ignore[list-item]


def test_what_cannot_be_removed_is_not_copied_in_silence(corpus: tuple[Path, str], tmp_path: Path) -> None:
    ExactDeduplicationWorkflow(corpus[0], tmp_path / "found", perform_removal=False).run(HERE)
    ids, state = tmp_path / "found" / "ExactDuplicateIds", tmp_path / "found" / "exact_id_generator.json"

    def refusal(error: type[Exception], message: str, source: Any = corpus[0], **options: Any) -> None:
        with pytest.raises(error, match=message):
            TextDuplicatesRemovalWorkflow(source, ids, tmp_path / "out", **options).run(HERE)

    refusal(InputError, "are numbers.*id_generator_path", duplicate_id_field=CURATOR_DEDUP_ID_STR)
    refusal(InputError, "has no column 'id'", id_generator_path=state)
    with_state: Any = {"duplicate_id_field": CURATOR_DEDUP_ID_STR, "id_generator_path": state}
    refusal(InputError, "has no numbers for b", source=corpus[0] / "deep", **with_state)
    refusal(InputError, "does not exist", **{**with_state, "id_generator_path": tmp_path / "none.json"})
    theirs = {"next_id": 30, "batch_registry": {"0d3ab5f0-7f0c-5f5c-8f5c-0123456789ab": [0, 29]}}
    for content, message in ((json.dumps(theirs), "written by NeMo Curator"), ("[]", "is not the JSON file")):
        (tmp_path / "other.json").write_text(content)
        refusal(InputError, message, **{**with_state, "id_generator_path": tmp_path / "other.json"})
    pq.write_table(pa.table({CURATOR_DEDUP_ID_STR: [1]}), ids / "part.0.parquet")
    with pytest.raises(PlanError, match=r"part\.0\.parquet.*read as ids of duplicates"):
        ExactDeduplicationWorkflow(corpus[0], tmp_path / "found", perform_removal=False).run(HERE)
