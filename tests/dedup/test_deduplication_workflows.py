"""Workflows: from files to files; what is found at one time and removed at another is the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import ColumnError, GristmillError, InputError, PlanError
from gristmill.dedup import (
    ExactDeduplicationWorkflow,
    FuzzyDeduplicationStage,
    FuzzyDeduplicationWorkflow,
    TextDuplicatesRemovalWorkflow,
)
from gristmill.text import JsonlReader
from tests.dedup.jsonl_files import contents, texts, write

HERE = LocalExecutor(0)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    for number, name in enumerate(["a.jsonl", "deep/b.jsonl", "c.jsonl"]):
        rows = [{"name": f"{number}/{row}", "text": f"text {row * (number + 1) % 40}"} for row in range(30)]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("id_field", [None, "name"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_found_now_and_removed_later_in_other_blocks(
    corpus: Path, tmp_path: Path, kind: str, id_field: str | None
) -> None:
    if kind == "parquet":
        for path in corpus.rglob("*.jsonl"):
            rows = list(map(json.loads, path.read_text().splitlines()))
            pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"), row_group_size=7)
            path.unlink()
    common = {"input_path": str(corpus), "text_field": "text", "id_field": id_field}
    whole = ExactDeduplicationWorkflow(**common, output_path=tmp_path / "whole", input_blocksize=300).run(HERE)
    found = ExactDeduplicationWorkflow(**common, output_path=tmp_path / "found", perform_removal=False).run(HERE)
    assert (whole.documents, whole.duplicates, whole.clusters) == (90, found.duplicates, found.clusters)
    beside = [] if id_field else ["exact_id_generator.json"]
    assert sorted(path.name for path in (tmp_path / "found").iterdir()) == ["ExactDuplicateIds", "clusters", *beside]
    removed = TextDuplicatesRemovalWorkflow(
        str(corpus), found.clusters_path or "", tmp_path / "later", id_field=id_field, input_blocksize=500
    ).run(HERE)
    assert removed.duplicates == found.duplicates == 90 - sum(task.num_rows for task in whole.run)
    assert contents(tmp_path / "later").keys() == contents(tmp_path / "whole").keys()
    for name, raw in contents(tmp_path / "whole").items():
        assert contents(tmp_path / "later")[name] == raw or name.startswith("_")
    table = pq.read_table(found.clusters_path)
    assert table.equals(pq.read_table(whole.clusters_path))
    assert all(
        (name in {f"{f}/{r}" for f in range(3) for r in range(30)}) == bool(id_field)
        for name in table["id"].to_pylist()
    )


def test_fuzzy(tmp_path: Path) -> None:
    long = " ".join(f"word{number}" for number in range(200))
    rows = [long, "something else", long.replace("word7 ", "another "), long]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    workflow = FuzzyDeduplicationWorkflow(
        tmp_path / "in.jsonl", tmp_path / "out", cache_path=tmp_path / "cache", word_ngrams=5
    )
    first = workflow.run(HERE)
    assert texts(tmp_path / "out") == rows[:2]
    assert (first.documents, first.duplicates, first.clusters) == (4, 2, 1)
    again = workflow.run(HERE)
    assert (again.documents, again.duplicates, again.clusters) == (4, 2, 1)
    found = FuzzyDeduplicationWorkflow(tmp_path / "in.jsonl", tmp_path / "found", perform_removal=False).run(HERE)
    assert str(found).startswith("4 documents read, 2 duplicates in 1 cluster")


def test_nothing_found_is_nothing_removed(tmp_path: Path) -> None:
    for name, lines in (("none", ["a", "b"]), ("one", ["a"]), ("empty", [])):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in lines) or '{"text": null}\n')
        place = tmp_path / name
        found = ExactDeduplicationWorkflow(path, place / "found", perform_removal=False).run(HERE)
        assert (found.duplicates, found.clusters) == (0, 0)
        removed = TextDuplicatesRemovalWorkflow(path, found.clusters_path or "", place / "out").run(HERE)
        assert removed.duplicates == 0
        assert texts(place / "out") == (lines or [None])


def test_a_list_of_ids_of_ones_own_will_do(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": "x", "n": n}) + "\n" for n in [1, 2, None, 3]))
    pq.write_table(pa.table({"number": [3, 1, 9, None]}), tmp_path / "ids.parquet")
    workflow = TextDuplicatesRemovalWorkflow(
        tmp_path / "in.jsonl", tmp_path / "ids.parquet", tmp_path / "out", "n", "number"
    )
    assert workflow.run(HERE).duplicates == 2
    lines = next((tmp_path / "out").glob("*.jsonl")).read_text().splitlines()
    assert [json.loads(line)["n"] for line in lines] == [2, None]
    with pytest.raises(InputError, match="ids_to_remove_path.*does not exist"):
        TextDuplicatesRemovalWorkflow(tmp_path / "in.jsonl", tmp_path / "no", tmp_path / "out").run(HERE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_filetype": "csv"}, "input_filetype is 'csv', must be 'jsonl' or 'parquet'"),
        ({"assign_id": False}, "id_field="),
        ({"keep": "best"}, "must be one of first"),
        ({"columns": ["a"], "url_field": "u"}, "one of text_field, columns and url_field"),
    ],
)
def test_wrong_parameters_are_told_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExactDeduplicationWorkflow("in", "out", **options)


@pytest.mark.parametrize("workflow", [ExactDeduplicationWorkflow, FuzzyDeduplicationWorkflow])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"assign_id": False}, ValueError, "id_field="),
        ({"keep": "highest"}, ValueError, "score_field="),
        ({"memory_gb": -1}, ValueError, "memory_gb is -1"),
        ({"normalize": "case", "normalize_text": True}, TypeError, 'as in normalize=\\["case"\\]'),
        ({"normalize": ["cases"], "normalize_text": True}, ValueError, "Did you mean 'case'"),
        ({"output_mode": "replace"}, ValueError, "'replace', must be one of 'ignore', 'overwrite', 'error', 'append'"),
        ({"output_mode": "append", "write_kwargs": {"mode": "error"}}, ValueError, "write_kwargs has another mode"),
        (
            {"score_fields": "a"},
            TypeError,
            "Workflow has no parameter 'score_fields'. Did you mean 'score_field'",
        ),
        ({"output_modes": "a"}, TypeError, "Did you mean 'output_mode'"),
    ],
)
def test_both_kinds_take_the_same_parameters(
    workflow: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    workflow("in", "out", keep="highest", score_field="score", normalize_text=True, assign_id=True, memory_gb=2)
    with pytest.raises(error, match=message):
        workflow("in", "out", **options)


def test_a_third_path_is_not_taken_for_something_else() -> None:
    assert ExactDeduplicationWorkflow("in", "out", "content").stage().text_field == "content"
    with pytest.raises(TypeError, match="positional"):
        FuzzyDeduplicationWorkflow("in", "out", "content")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "curve"),
    [
        ({}, "29 bands of 8 rows"),
        ({"threshold": 0.9}, None),
        ({"num_bands": 20, "minhashes_per_band": 13}, "20 bands of 13 rows"),
        ({"num_bands": 10}, "10 bands of 13 rows"),
        ({"minhashes_per_band": 5, "threshold": 0.7}, "20 bands of 5 rows"),
    ],
)
def test_bands_are_chosen_by_the_threshold_unless_they_are_given(options: dict[str, Any], curve: str | None) -> None:
    found = FuzzyDeduplicationWorkflow("in", "out", **options).stage().curve()
    assert found.startswith(curve or "")
    if "num_bands" not in options and "minhashes_per_band" not in options:
        assert found == FuzzyDeduplicationStage(**options).curve()
    with pytest.raises(ValueError, match="must be 1 or more"):
        FuzzyDeduplicationWorkflow("in", "out", num_bands=0)


def test_a_low_threshold_finds_what_is_less_alike(tmp_path: Path) -> None:
    rows = [{"text": " ".join(f"w{seed}x{n}" for n in range(at, at + 60))} for seed in range(60) for at in (0, 13)]
    write(tmp_path / "in.jsonl", rows)
    options: dict[str, Any] = {"word_ngrams": 1, "threshold": 0.6}
    assert FuzzyDeduplicationWorkflow(tmp_path / "in.jsonl", tmp_path / "out", **options).run(HERE).duplicates > 50
    few = FuzzyDeduplicationWorkflow(
        tmp_path / "in.jsonl", tmp_path / "few", num_bands=20, minhashes_per_band=13, **options
    )
    with pytest.warns(RuntimeWarning, match="20 bands of 13.*or leave out both parameters to have them chosen"):
        assert few.run(HERE).duplicates < 20


@pytest.mark.parametrize("workflow", [ExactDeduplicationWorkflow, FuzzyDeduplicationWorkflow])
def test_what_does_not_count_is_listed_or_has_a_short_name(tmp_path: Path, workflow: Any) -> None:
    text = "Of all the texts that are nearly the same one is kept"
    write(
        tmp_path / "in.jsonl",
        [{"text": one} for one in (text, text.upper().replace(" ", "  "), f"{text} ﬁ", f"{text} fi")],
    )
    for number, (options, left) in enumerate(
        [
            ({}, 4),
            ({"normalize_text": True}, 3),
            ({"normalize": ["unicode"]}, 3),
            ({"normalize_text": True, "normalize": ["unicode"]}, 2),
        ]
    ):
        out = tmp_path / str(number)
        more = {} if workflow is ExactDeduplicationWorkflow else {"threshold": 0.98, "char_ngrams": 5}
        workflow(tmp_path / "in.jsonl", out, **options, **more).run(HERE)
        assert len(texts(out)) == left
        assert text in texts(out)


def test_an_index_knows_what_did_not_count(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [{"text": "one"}])
    index = str(tmp_path / "index")
    FuzzyDeduplicationWorkflow(tmp_path / "in.jsonl", tmp_path / "a", normalize_text=True, extend=index).run(HERE)
    with pytest.raises(PlanError, match=r"normalize is \['case', 'whitespace'\] there and \[\] here"):
        FuzzyDeduplicationWorkflow(tmp_path / "in.jsonl", tmp_path / "b", against=[index]).run(HERE)


def test_input_that_cannot_be_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(PlanError, match="choose one with input_filetype"):
        ExactDeduplicationWorkflow(tmp_path, tmp_path / "out").run(HERE)
    with pytest.raises(InputError, match="ExactDeduplicationWorkflow: .*does not exist"):
        ExactDeduplicationWorkflow(tmp_path / "none", tmp_path / "out").run(HERE)
    result = ExactDeduplicationWorkflow(
        tmp_path,
        tmp_path / "out",
        input_filetype="jsonl",
        output_filetype="parquet",
        write_kwargs={"compression": "gzip"},
    ).run(HERE)
    assert pq.read_table(result.run.files()[0])["text"].to_pylist() == ["a"]


def test_an_index_of_what_other_files_had(corpus: Path, tmp_path: Path) -> None:
    first = ExactDeduplicationWorkflow(corpus / "a.jsonl", tmp_path / "a", extend=str(tmp_path / "index")).run(HERE)
    options: dict[str, Any] = {"against": [str(tmp_path / "index")]}
    then = ExactDeduplicationWorkflow(corpus, tmp_path / "all", **options).run(HERE)
    found = ExactDeduplicationWorkflow(corpus, tmp_path / "found", perform_removal=False, **options).run(HERE)
    assert (first.duplicates, then.duplicates) == (0, found.duplicates)
    assert not set(texts(tmp_path / "a")) & set(texts(tmp_path / "all"))
    assert first.clusters == 0
    assert then.clusters == found.clusters == 34  # of most of them, the one that is kept is in the index
    with pytest.raises(PlanError, match="extend adds the kept rows to an index, and needs perform_removal"):
        ExactDeduplicationWorkflow(corpus, tmp_path / "no", perform_removal=False, extend="index").run(HERE)


def test_counts_of_a_resumed_run_are_those_of_all_attempts(corpus: Path, tmp_path: Path) -> None:
    found = ExactDeduplicationWorkflow(corpus, tmp_path / "found", perform_removal=False).run(HERE)
    workflow = TextDuplicatesRemovalWorkflow(
        corpus, found.clusters_path or "", tmp_path / "out", cache_path=tmp_path / "cache"
    )
    first = workflow.run(HERE)
    (corpus / "c.jsonl").touch()
    next((tmp_path / "out").glob("*c*.jsonl")).unlink()
    again = workflow.run(HERE)
    assert again.run.resumed
    assert (again.documents, again.duplicates) == (first.documents, first.duplicates) == (90, found.duplicates)


def test_the_cluster_table_may_not_lie_with_the_input(corpus: Path) -> None:
    with pytest.raises(PlanError, match="holds the input"):
        ExactDeduplicationWorkflow(corpus, corpus, perform_removal=False).run(HERE)


@pytest.mark.parametrize("workflow", [ExactDeduplicationWorkflow, FuzzyDeduplicationWorkflow])
def test_a_table_that_is_not_there_is_written_again(corpus: Path, tmp_path: Path, workflow: Any) -> None:
    options: dict[str, Any] = {"cache_path": tmp_path / "cache", "num_partitions": 3, "text_field": "text"}

    def find(name: str) -> Any:
        return workflow(corpus, tmp_path / name, perform_removal=False, **options).run(HERE)

    first, other = find("one"), find("two")  # what was found is known, and the table is wanted in another place
    assert 0 < first.duplicates == other.duplicates
    assert contents(tmp_path / "one/clusters") == contents(tmp_path / "two/clusters")
    for path in (tmp_path / "one/clusters").iterdir():
        path.unlink()
    assert find("one").duplicates == first.duplicates
    (corpus / "a.jsonl").write_text((corpus / "a.jsonl").read_text() + '{"text": "text 2"}\n')
    changed = find("one")
    assert (changed.duplicates, find("one").duplicates) == (find("three").duplicates, changed.duplicates)
    assert contents(tmp_path / "one/clusters") == contents(tmp_path / "three/clusters")


def test_the_files_of_an_identification_are_its_table_also_when_it_is_resumed(corpus: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"perform_removal": False, "cache_path": tmp_path / "cache", "num_partitions": 2}
    first, again = (ExactDeduplicationWorkflow(corpus, tmp_path / "found", **options).run(HERE) for _ in range(2))
    table = sorted(map(str, (tmp_path / "found/clusters").glob("*.parquet")))
    assert sorted(first.run.files()) == sorted(again.run.files()) == table != []


def test_a_table_that_another_run_has_replaced_is_written_again(tmp_path: Path) -> None:
    for name in ("a", "b"):  # of the same size
        rows = [{"id": f"{name}{number}", "text": f"{number % 3}"} for number in range(6)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def find(name: str) -> Any:
        options: dict[str, Any] = {"id_field": "id", "cache_path": tmp_path / f"cache-{name}"}
        place = tmp_path / "found"
        return ExactDeduplicationWorkflow(tmp_path / f"{name}.jsonl", place, perform_removal=False, **options).run(HERE)

    for name in ("a", "b", "a"):
        assert {found[0] for found in pq.read_table(find(name).clusters_path)["id"].to_pylist()} == {name}


def test_the_table_of_a_run_is_written_again(corpus: Path, tmp_path: Path) -> None:
    workflow = ExactDeduplicationWorkflow(corpus, tmp_path / "out", cache_path=tmp_path / "cache")
    first = workflow.run(HERE)
    before = contents(tmp_path / "cache/clusters")
    shutil.rmtree(tmp_path / "cache/clusters")
    again = workflow.run(HERE)
    assert (again.duplicates, again.clusters) == (first.duplicates, first.clusters)
    assert contents(tmp_path / "cache/clusters") == before


def test_parquet_files_of_others_are_neither_removed_nor_taken_for_the_table(corpus: Path, tmp_path: Path) -> None:
    place = tmp_path / "found/clusters"
    place.mkdir(parents=True)
    pq.write_table(pa.table({"id": ["precious"]}), place / "mine.parquet")
    (place / "notes.txt").write_text("mine too")
    find = ExactDeduplicationWorkflow(corpus, tmp_path / "found", perform_removal=False)
    with pytest.raises(PlanError, match=r"clusters has mine\.parquet, .* choose another directory"):
        find.run(HERE)
    (place / "mine.parquet").rename(tmp_path / "mine.parquet")
    first = find.run(HERE)
    assert first.duplicates == find.run(HERE).duplicates  # its own are replaced
    with pytest.raises(PlanError, match=r"clusters has segment\d-00000\.parquet, .* choose another directory"):
        FuzzyDeduplicationWorkflow(corpus, tmp_path / "found", perform_removal=False).run(HERE)
    assert (place / "notes.txt").read_text() == "mine too"


def test_columns_that_the_first_file_lacks_are_null_there(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "same"}\n{"text": "other"}\n')
    (tmp_path / "in" / "b.jsonl").write_text('{"text": "same", "score": 1, "name": "b"}\n')
    options: dict[str, Any] = {"keep": "highest", "score_field": "score", "id_field": "name"}
    result = ExactDeduplicationWorkflow(tmp_path / "in", tmp_path / "out", **options).run(HERE)
    assert texts(tmp_path / "out") == ["other", "same"]
    assert result.duplicates == 1
    with pytest.raises(ColumnError, match="needs column 'scores'"):
        ExactDeduplicationWorkflow(tmp_path / "in", tmp_path / "o", keep="highest", score_field="scores").run(HERE)


@pytest.mark.parametrize("kind", ["exact", "fuzzy"])
def test_lists_and_structs_pass_but_are_no_texts(tmp_path: Path, kind: str) -> None:
    table = pa.table(
        {"text": ["a b c", "a b c", "d e f"], "tags": [["x"], None, []], "more": [{"n": 1}, None, {"n": 2}]}
    )
    pq.write_table(table, tmp_path / "in.parquet")
    workflow: Any = ExactDeduplicationWorkflow if kind == "exact" else FuzzyDeduplicationWorkflow
    result = workflow(tmp_path / "in.parquet", tmp_path / "out").run(HERE)
    assert pq.read_table(result.run.files()[0]).equals(table.take([0, 2]))
    for field in ("tags", "more"):
        with pytest.raises(
            GristmillError, match=f"(?s)stage '.*column '{field}'.*(list|struct).*: (name|choose) a (text )?column"
        ):
            workflow(tmp_path / "in.parquet", tmp_path / "no", text_field=field).run(HERE)


def test_the_curve_and_the_quality_are_told(tmp_path: Path) -> None:
    rows = [{"text": " ".join(f"w{seed}x{n}" for n in range(60)) + end} for seed in range(20) for end in ("", " more")]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    workflow = FuzzyDeduplicationWorkflow(tmp_path / "in.jsonl", tmp_path / "out", word_ngrams=5, threshold=0.7)
    text = str(workflow.run(HERE)).splitlines()
    assert text[0].startswith("40 documents read, 20 duplicates in 20 clusters")
    assert text[1] == "recall of about 100.0%, precision of about 100.0%, by a sample"
    assert "bands of" in text[2]
    plan = Pipeline("p", stages=[JsonlReader(tmp_path / "in.jsonl"), workflow.stage()]).describe(verbose=True)
    assert all(line in plan for line in text[2:])


@pytest.mark.parametrize("removal", [True, False])
def test_a_resumed_run_tells_of_the_quality_that_there_is_now(tmp_path: Path, removal: bool) -> None:
    def near(name: str, seeds: range) -> None:
        texts = [" ".join(f"w{seed}x{n}" for n in range(60)) + end for seed in seeds for end in ("", " more")]
        write(tmp_path / "in" / name, [{"text": text} for text in texts])

    def expected(cache: str) -> tuple[list[str], Mapping[str, float]]:
        options: dict[str, Any] = {"word_ngrams": 5, "threshold": 0.7, "perform_removal": removal}
        out, cache_path = tmp_path / f"{cache}-out", tmp_path / cache
        result = FuzzyDeduplicationWorkflow(tmp_path / "in", out, cache_path=cache_path, **options).run(HERE)
        facts = json.loads((cache_path / "report.json").read_text())["stages"]
        assert result.counts == {
            name: count for stage in facts if "Fuzzy" in stage["name"] for name, count in stage["counts"].items()
        }
        return str(result).splitlines()[1:], result.counts

    near("a.jsonl", range(30))
    first = expected("cache")
    assert first[0][0] == "recall of about 100.0%, precision of about 100.0%, by a sample"
    assert expected("cache") == first
    near("b.jsonl", range(20, 40))  # all pairs are looked for again, and none is counted twice
    more = expected("cache")
    assert more == expected("cache") == expected("new")
    assert (more[1]["clusters"], more[1]["largest_cluster"], more[1]["estimated_recall"]) == (40, 4, 1)


def test_precision_tells_of_candidates_that_are_not_alike(tmp_path: Path) -> None:
    rows = [
        {"text": " ".join(f"w{seed}x{n}" for n in range(start, start + 60))} for seed in range(40) for start in (0, 30)
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options: dict[str, Any] = {"num_bands": 100, "minhashes_per_band": 1, "threshold": 0.8, "word_ngrams": 5}
    workflow = FuzzyDeduplicationWorkflow(tmp_path / "in.jsonl", tmp_path / "out", verify="none", **options)
    counts = workflow.run(HERE).run.summary()["FuzzyDeduplicationStage"].counts
    assert counts["estimated_precision"] == 0
    assert counts["sample_dropped"] > 5
