"""Exact deduplication keeps one row of each text, and tells which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.core.arrow import hash_partitioning
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.errors import PlanError
from gristmill.dedup import ExactDeduplicationStage, Keep
from gristmill.dedup.clusters.cluster_table import ID, OWNER, ids, join_row_names, row_name_parts
from gristmill.dedup.columns import arrow_numpy, column_hashes
from gristmill.io.exchange import shuffle_files
from gristmill.text import JsonlReader, JsonlWriter


def kept(batches: list[list[dict[str, Any]]], **options: Any) -> list[Any]:
    tasks = [DocumentBatch(rows) for rows in batches]
    result = Pipeline("p", stages=[ExactDeduplicationStage(**options)]).run(LocalExecutor(0), initial_tasks=tasks)
    return [row["id"] for task in result for row in task.to_rows()]


def rows(texts: list[Any], **columns: list[Any]) -> list[dict[str, Any]]:
    return [
        {"id": index, "text": text, **{name: values[index] for name, values in columns.items()}}
        for index, text in enumerate(texts)
    ]


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        ([], []),
        (["a"], [0]),
        (["a", "a", "a"], [0]),
        (["a", "b", "c"], [0, 1, 2]),
        (["", "", "a", ""], [0, 2]),
        ([None, "a", None, "a"], [0, 1, 2]),
        (["a", "a ", "A"], [0, 1, 2]),
        (["ü", "u\u0308"], [0, 1]),
    ],
)
def test_which_rows_are_kept(texts: list[Any], wanted: list[int]) -> None:
    assert kept([rows(texts)]) == wanted


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"normalize": ["case"]}, [0, 1, 3, 4]),
        ({"normalize": ["whitespace", "case"]}, [0, 3, 4]),
        ({"normalize": ["whitespace", "case", "punctuation"]}, [0, 4]),
        ({"normalize": ["unicode"]}, [0, 1, 2, 3, 4]),
        ({"normalize": ["whitespace", "case", "punctuation"], "keep": "longest"}, [3, 4]),
        ({"normalize": ["case", "whitespace", "punctuation"], "keep": "highest", "score_field": "q"}, [2, 4]),
    ],
)
def test_what_counts_as_equal_and_which_is_kept(options: dict[str, Any], wanted: list[int]) -> None:
    texts = ["a b", "a  b", "A B", "a, b!!", "c"]
    assert kept([rows(texts, q=[0.5, None, 0.9, 0.9, 0.0])], **options) == wanted


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([5, 5, None, 6, None], [0, 2, 3, 4]),
        ([5.0, 2.5, 5.0, 2.5], [0, 1]),
        ([True, False, True], [0, 1]),
        (["5", 5, 5.0, "five", ["5"], ["5"], "five"], [0, 3, 4]),
        ([b"a", b"b", b"a"], [0, 1]),
    ],
)
def test_values_that_are_no_text_are_compared_as_text(values: list[Any], wanted: list[int]) -> None:
    assert kept([rows(values)]) == wanted


def test_a_number_is_the_same_in_a_block_of_other_types() -> None:
    blocks = [[5], [5.0, 0.5], ["5", 5, "x"], ["x", "5"]]
    ids = iter(range(10))
    assert kept([[{"id": next(ids), "text": value} for value in block] for block in blocks]) == [0, 2, 5]


def test_no_url_is_never_a_duplicate() -> None:
    urls = ["", "", None, " ", "\n", "https://mill.example", "", "mill.example", "http://", "//www.mill.example/"]
    assert kept([rows(["same"] * 10, url=urls)], url_field="url") == [0, 1, 2, 3, 4, 5, 6, 8]


URLS = [
    "https://www.mill.example/a?x=1&y=2",
    "http://mill.example:80/a/?y=2&x=1&utm_source=n#top",
    "https://mill.example/b",
    None,
    "HTTPS://user@MILL.example:443/%62",
    "https://mill.example/b?fbclid=1",
    None,
]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"url_field": "url"}, [0, 2, 3, 6]),
        ({"columns": ["url"]}, [0, 1, 2, 3, 4, 5, 6]),
        ({"columns": ["lang", "site"]}, [0, 1, 2, 3, 5]),
        ({"columns": ["lang", "site"], "normalize": ["case"]}, [0, 2, 3, 5]),
        ({"columns": ["site"], "keep": "newest", "score_field": "day"}, [2, 3, 4, 5, 6]),
        ({"columns": ["site"], "keep": Keep("source", "lang", ["DE", "en"])}, [1, 3, 4, 5, 6]),
        ({"columns": ["site"], "keep": {"policy": "longest", "field": "url"}}, [1, 3, 4, 5, 6]),
    ],
)
def test_columns_and_urls(options: dict[str, Any], wanted: list[int]) -> None:
    table = rows(
        ["same"] * 7,
        url=URLS,
        lang=["de", "DE", "en", "en", "en", None, "en"],
        site=[1, 1, 1, None, None, 2, None],
        day=["2024-01-01", "2023-01-01", "2024-02-01", None, "2020-01-01", "2021-01-01", None],
    )
    assert sorted(kept([table], **options)) == wanted


def test_a_column_that_a_block_lacks_is_null_there(tmp_path: Path) -> None:
    lines = [{"id": 0, "text": "a"}, {"id": 1}, {"id": 2, "text": "b"}, {"id": 3, "text": "a", "score": 1}, {"id": 4}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for options, wanted in (({}, [0, 1, 2, 4]), ({"keep": "highest", "score_field": "score"}, [1, 2, 3, 4])):
        stages = [JsonlReader(str(tmp_path), blocksize=20), ExactDeduplicationStage(**options)]
        result = Pipeline("p", stages=stages).run(LocalExecutor(0))
        assert [row["id"] for task in result for row in task.to_rows()] == wanted


def test_little_memory_changes_nothing(tmp_path: Path) -> None:
    """Keys are sorted on disk, in more partitions."""
    texts = [f"{number * 7919 % 300} mill" for number in range(900)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(texts)))
    found = {}
    for memory in (None, 1e-6):
        place = tmp_path / str(memory)
        stage = ExactDeduplicationStage(memory_gb=memory)
        stages = [JsonlReader(str(tmp_path / "a.jsonl"), blocksize=5000), stage, JsonlWriter(str(place / "out"))]
        Pipeline("p", stages=stages).run(LocalExecutor(0), place / "run")
        out = [path.read_bytes() for path in (place / "out").glob("*.jsonl")]
        clusters = pq.read_table(place / "run" / "clusters").sort_by([("cluster", "ascending"), ("id", "ascending")])
        found[memory] = out, clusters.to_pylist(), len(list((place / "run" / "segments" / "2").glob("*.runs")))
    assert found[None][:2] == found[1e-6][:2]
    assert found[None][2] < found[1e-6][2]
    with pytest.raises(ValueError, match="memory_gb is 0, must be a number above 0"):
        ExactDeduplicationStage(memory_gb=0)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.sampled_from([None, "", "a", "b", "ab", "水"]), max_size=12), max_size=5),
    st.integers(1, 5),
)
def test_the_first_of_each_text_is_kept(batches: list[list[Any]], partitions: int) -> None:
    numbered = [
        [{"id": (number, index), "text": text} for index, text in enumerate(texts)]
        for number, texts in enumerate(batches)
    ]
    wanted, seen = [], set()
    for row in (row for batch in numbered for row in batch):
        if row["text"] is None or row["text"] not in seen:
            wanted.append(list(row["id"]))
            seen.add(row["text"])
    assert kept(numbered, num_partitions=partitions) == wanted


def test_output_files_are_those_of_a_run_without_it(tmp_path: Path) -> None:
    """Names, order, late columns and types; the duplicates lie in other files and blocks, and one file loses all."""
    (tmp_path / "in").mkdir()
    unique = [{"id": index, "text": f"t{index}", **({"late": [index]} if index > 30 else {})} for index in range(60)]
    (tmp_path / "in" / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in unique))
    (tmp_path / "in" / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in unique[:20]))
    (tmp_path / "in" / "d.jsonl").write_text('{"id": 99, "text": "t5"}\n{"id": 100, "text": "new"}\n')
    reader = JsonlReader(str(tmp_path / "in"), blocksize=400)
    Pipeline("plain", stages=[reader, JsonlWriter(str(tmp_path / "plain"))]).run(LocalExecutor(0))
    stages = [reader, ExactDeduplicationStage(id_field="id"), JsonlWriter(str(tmp_path / "out"))]
    result = Pipeline("dedup", stages=stages).run(LocalExecutor(2), tmp_path / "run", rejected=True)
    plain = {path.name[0]: path for path in (tmp_path / "plain").glob("*.jsonl")}
    found = {path.name[0]: path for path in (tmp_path / "out").glob("*.jsonl")}
    assert found["b"].name == plain["b"].name
    assert found["b"].read_bytes() == plain["b"].read_bytes()
    assert sorted(found) == ["b", "d"]
    assert found["d"].read_text() == '{"id":100,"text":"new"}\n'
    rejected = [row for path in result.rejected() for row in pq.read_table(path).to_pylist()]
    assert len(rejected) == result.summary()["ExactDeduplicationStage"].dropped == 21
    assert {row["rejected_by"] for row in rejected} == {"ExactDeduplicationStage"}
    last = next(row for row in rejected if row["id"] == 99)
    assert (last["rejected_partner"], last["rejected_file"], last["rejected_position"]) == ("5", "d.jsonl", 0)


def test_the_cluster_table_names_every_row_that_is_not_alone(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    texts = ["a", "b", "a", "c", "b", "a"]
    (tmp_path / "in" / "x.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for way, where in (("run", tmp_path / "run"), ("none", None)):
        stages = [
            JsonlReader(str(tmp_path / "in")),
            ExactDeduplicationStage(),
            JsonlWriter(str(tmp_path / way / "out")),
        ]
        Pipeline("p", stages=stages).run(LocalExecutor(0), where)
    table = pq.read_table(tmp_path / "run" / "clusters").to_pylist()
    assert table == pq.read_table(tmp_path / "none" / "out.run" / "clusters").to_pylist()
    clusters: dict[str, list[Any]] = {}
    for row in table:
        clusters.setdefault(row["cluster"], []).append((row["kept"], row["partner"]))
        assert row["similarity"] == 1.0
        assert row["kept"] == (row["id"] == row["cluster"])
    sizes = sorted(len(members) for members in clusters.values())
    assert sizes == [2, 3]
    for cluster, members in clusters.items():
        assert sorted(members, key=str) == [(False, cluster)] * (len(members) - 1) + [(True, None)]


def test_wrong_arguments_are_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep is 'best', must be one of first, longest, highest, newest, source"):
        ExactDeduplicationStage(keep="best")
    with pytest.raises(ValueError, match="score_field"):
        ExactDeduplicationStage(keep="highest")
    for options, message in (
        ({"keep": "newest"}, "score_field"),
        ({"keep": "longest", "score_field": "x"}, "is for keep='highest' and keep='newest'"),
        ({"keep": "source"}, r"Keep\('source', field=..., order="),
        ({"keep": "longest", "columns": ["a"]}, r"Keep\('longest', field="),
        ({"keep": Keep(), "score_field": "x"}, "leave out score_field"),
        ({"columns": ["a"], "url_field": "b"}, "one of text_field, columns and url_field"),
        ({"url_field": "b", "normalize": ["case"]}, "url_field always compares normalised URLs"),
    ):
        with pytest.raises(ValueError, match=message):
            ExactDeduplicationStage(**options)
    with pytest.raises(ValueError, match="normalize has no 'cases'. Did you mean 'case'"):
        ExactDeduplicationStage(normalize=["cases"])
    (tmp_path / "a.jsonl").write_text('{"texts": "a"}\n')
    with pytest.raises(PlanError, match="needs column 'text'.*Did you mean 'texts'"):
        Pipeline("p", stages=[JsonlReader(str(tmp_path)), ExactDeduplicationStage()]).plan()


@given(
    st.lists(st.tuples(st.text(max_size=5), st.lists(st.integers(0, 2**63 - 1), max_size=5)), max_size=4),
    st.integers(0, 9),
)
def test_short_names_of_rows_stand_for_their_names(files: list[tuple[str, list[int]]], start: int) -> None:
    batches = [
        DocumentBatch(pa.table({POSITION: pa.array(places, pa.int64())}), metadata={"file": name})
        for name, places in files
    ]
    empty = pa.schema([(ID, pa.uint64()), (OWNER, pa.uint64())]).empty_table()
    short = [(places, pa.repeat(owner, len(places))) for owner, places in map(row_name_parts, batches)]
    table = pa.concat_tables([empty, *(pa.table(columns, [ID, OWNER]) for columns in short)])
    names = [name for batch in batches for name in ids("s", batch, None).to_pylist()]
    assert join_row_names(table.slice(start)).to_pylist() == names[start:]


def test_without_kernels_files_and_clusters_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [{"text": None if number % 11 == 0 else f"text {number % 60}"} for number in range(400)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(name: str) -> tuple[bytes, list[dict[str, Any]]]:
        stages = [
            JsonlReader(str(tmp_path / "in.jsonl"), blocksize=2000),  # so that runs of many batches become one
            ExactDeduplicationStage(num_partitions=3),
            JsonlWriter(str(tmp_path / name)),
        ]
        Pipeline("p", stages=stages).run(LocalExecutor(0), run_dir=str(tmp_path / f"run-{name}"))
        (file,) = (tmp_path / name).glob("*.jsonl")
        return file.read_bytes(), pq.read_table(tmp_path / f"run-{name}" / "clusters").to_pylist()

    found = run("usual")
    assert (found[0].count(b"\n"), len(found[1])) == (97, 363)
    for module in (hash_partitioning, arrow_numpy, column_hashes, shuffle_files):
        monkeypatch.setattr(module, "kernels", None)
    assert run("python") == found
