"""Which document of a cluster is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage
from gristmill.core.arrow.table_conversion import json_array
from gristmill.core.errors import ColumnError
from gristmill.core.executor import Executor
from gristmill.dedup import (
    ExactDeduplicationStage,
    FuzzyDeduplicationStage,
    PerceptualHashDeduplicationStage,
    SimHashDeduplicationStage,
)
from gristmill.dedup.clusters.connected_components import components
from gristmill.dedup.clusters.keep_policy import Keep, choose_kept
from gristmill.dedup.clusters.timestamp_parsing import unix_seconds
from gristmill.text import JsonlReader


def kept(rank: pa.Array, ids: list[Any] | None = None) -> Any:
    table = pa.table({"id": ids or list(range(len(rank))), "cluster": [7] * len(rank), "rank": rank})
    [one] = choose_kept(table).filter(pa.compute.field("kept"))["id"].to_pylist()
    return one


@pytest.mark.parametrize(
    ("keep", "values", "wanted"),
    [
        (Keep(), ["b", "a", "c"], 0),
        (Keep("longest", "x"), ["b", "éé", "a" * 3, "bbb", None], 2),
        (Keep("highest", "x"), [0.5, None, 0.9, 0.9, float("nan")], 2),
        (Keep("highest", "x"), [3, 5, -1, 5], 1),
        (Keep("newest", "x"), ["2024-01-01", None, "2024-05-01T10:00:00Z", "2024-05-01T10:00:00+02:00", "soon"], 2),
        (Keep("newest", "x"), [datetime(2020, 1, 1), datetime(2021, 1, 1), None], 1),
        (Keep("newest", "x"), [date(2022, 1, 1), date(2021, 1, 1)], 0),
        (Keep("newest", "x"), [1, 3, 2], 1),
        (Keep("newest", "x"), ["Wed, 01 Jan 2025 10:00:00 GMT", "Fri, 03 Jan 2025 08:00:00 GMT", "2023-01-01"], 1),
        (Keep("newest", "x"), [1_704_067_200_000, 1_704_067_300, 1_704_067_201], 1),
        (Keep("source", "x", ["wiki", "books"]), ["web", None, "books", "wiki", "wiki"], 3),
        (Keep("source", "x", ["wiki"]), ["web", "other"], 0),
    ],
)
def test_policies(keep: Keep, values: list[Any], wanted: int) -> None:
    assert kept(keep.rank(pa.table({"x": pa.array(values)}))) == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("best",), "'best' is unknown, must be one of first, longest"),
        (("highest",), "needs a column: field="),
        (("highest", 5), "field must be the name of a column, not 5"),
        (("source", "x"), "needs the values of its column"),
        (("source", "x", "wiki"), r"order must be a list of values, the best first, as in order=\['wiki'\]"),
        (("source", "x", {"wiki", "web"}), "order must be a list of values"),
        (("source", "x", [["wiki"]]), r"order holds text, numbers and the like, not \['wiki'\]"),
        (("newest", "x", ["wiki"]), "order goes with keep='source'"),
    ],
)
def test_policies_that_cannot_be_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Keep(*arguments)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (5, "SimHashDeduplicationStage: keep is 5, must be one of first, .*, or a Keep"),
        (None, "keep is None, must be one of"),
        ({"polcy": "newest"}, "keep has no 'polcy'. Did you mean 'policy'"),
        ({"policy": "source", "field": "x", "order": "wiki"}, "SimHashDeduplicationStage: .*order must be a list"),
    ],
)
def test_a_stage_refuses_what_is_no_policy(keep: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        SimHashDeduplicationStage(keep=keep)


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(ColumnError, match="'highest' needs the column 'score'; the columns are id, text"):
        Keep("highest", "score").rank(pa.table({"id": [1], "text": ["a"]}))


def test_ids_may_be_strings() -> None:
    assert kept(pa.array([1.0, 2.0, 2.0]), ["a", "c", "b"]) == "b"


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=25),
    st.lists(st.integers(0, 3), min_size=16, max_size=16),
    st.randoms(),
)
def test_each_cluster_keeps_its_best_whatever_the_order(
    edges: list[tuple[int, int]], ranks: list[int], draw: Any
) -> None:
    pairs = pa.table(
        {
            "u": pa.array([min(edge) for edge in edges], pa.int64()),
            "v": pa.array([max(edge) for edge in edges], pa.int64()),
            "similarity": pa.array([1 / (1 + sum(edge)) for edge in edges], pa.float64()),
        }
    )
    clusters = components(pairs["u"], pairs["v"])
    clusters = clusters.append_column(
        "rank", pa.array([float(ranks[one]) for one in clusters["id"].to_pylist()], pa.float64())
    )
    order = list(range(len(clusters)))
    draw.shuffle(order)
    found = choose_kept(clusters, pairs)
    assert choose_kept(clusters.take(pa.array(order, pa.int64())), pairs).equals(found)
    members: dict[int, list[int]] = {}
    for row in clusters.to_pylist():
        members.setdefault(row["cluster"], []).append(row["id"])
    for row in found.to_pylist():
        best = min(members[row["cluster"]], key=lambda one: (-ranks[one], one))
        assert row["kept"] == (row["id"] == best)
        assert row["partner"] == (None if row["kept"] else best)
        compared = not row["kept"] and {(row["id"], best), (best, row["id"])} & set(edges)
        assert row["similarity"] == (1 / (1 + row["id"] + best) if compared else None)
    assert found["kept"].to_pylist().count(False) == len(clusters) - len(members)


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), None])
def test_large_whole_numbers_are_told_apart(kind: pa.DataType | None) -> None:
    values = [0, 5, 2**53, 2**53 + 1, 2**53 + 2, 10**18, 10**18 + 1, 10**18 + 2, 2**62, 2**63 - 2**20]
    column = json_array(values) if kind is None else pa.array(values, kind)
    ranks = Keep("highest", "score").rank(pa.table({"score": column})).to_pylist()
    assert ranks == sorted(set(ranks))
    assert len(ranks) == len(values)


@pytest.mark.parametrize("kind", [pa.uint64(), pa.decimal128(38), None])
def test_whole_numbers_of_more_than_63_bits_are_told_apart(kind: pa.DataType | None) -> None:
    values = [5, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**63 + 128, 10**19, 2**64 - 2**20, 2**64 - 1]
    if kind != pa.uint64():
        below = [-value for value in reversed(values) if value <= 2**63 or kind]  # JSON has no more below zero
        values = [-(10**30), *below, 0, *values, 2**64, 10**30]
    column = json_array(values) if kind is None else pa.array(values, kind)
    ranks = Keep("highest", "score").rank(pa.table({"score": column})).to_pylist()
    assert ranks == sorted(set(ranks))
    assert len(ranks) == len(values)


def test_of_several_hashes_the_highest_is_kept() -> None:
    batch = DocumentBatch(pa.table({"text": ["a"] * 3, "n": pa.array([2**63, 2**64 - 1, 2**63 - 1], pa.uint64())}))
    stage = ExactDeduplicationStage(keep="highest", score_field="n")
    [found] = Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=[batch])
    assert [row["n"] for row in found.to_rows()] == [2**64 - 1]


whole_numbers = st.integers(-(2**63), 2**64 - 1) | st.integers(0, 66).flatmap(
    lambda bits: st.integers(2**bits - 3, 2**bits + 3)
)


@given(st.lists(whole_numbers | st.floats(allow_nan=False, allow_infinity=False) | whole_numbers.map(float)))
def test_ranks_are_in_the_order_of_numbers(values: list[int | float]) -> None:
    ranks = [Keep("highest", "x").rank(pa.table({"x": json_array([value])}))[0].as_py() for value in values]
    order = sorted(range(len(values)), key=lambda place: values[place])
    assert [ranks[place] for place in order] == sorted(ranks)


def test_ranks_do_not_depend_on_the_type_of_a_block() -> None:
    values = [-1e300, -(2**60), -3, 0, 2**53, 10**18, 2**62, 2**63 - 2**20, 2**63, 2**64 - 2048, 1e300, float("inf")]
    keep = Keep("highest", "score")
    floats = keep.rank(pa.table({"score": pa.array(map(float, values), pa.float64())})).to_pylist()
    assert floats == sorted(set(floats))
    whole = keep.rank(pa.table({"score": pa.array(values[1:8], pa.int64())})).to_pylist()
    assert whole == floats[1:8]
    for column in (pa.array(values[3:10], pa.uint64()), pa.array(values[3:10], pa.decimal128(38))):
        assert keep.rank(pa.table({"score": column})).to_pylist() == floats[3:10]


# -- times -----------------------------------------------------------------------------------------------------

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC).timestamp()
TIMES: list[tuple[Any, float | None]] = [
    ("2024-05-01T12:00:00", NOON),
    (" 2024-05-01 12:00:00.500 ", NOON + 0.5),
    ("2024-05-01T14:00:00+02:00", NOON),
    ("2024-05-01T07:00:00-0500", NOON),
    ("2024-05-01t12:00:00z", NOON),
    ("2024-05-01 12:00:00 UTC", NOON),
    ("2024-05-01T12:00:00.123456789Z", NOON + 0.123456),
    ("2024/05/01 12:00", NOON),
    ("20240501T120000Z", NOON),
    ("20240501120000", NOON),
    ("Wed, 01 May 2024 12:00:00 GMT", NOON),
    ("Wed, 1 May 2024 14:00:00 +0200", NOON),
    ("Wednesday, 01-May-24 12:00:00 GMT", NOON),
    ("Wed May  1 12:00:00 2024", NOON),
    ("2024-05-01", NOON - 12 * 3600),
    ("20240501", NOON - 12 * 3600),
    ("2024-05", NOON - 12 * 3600),
    ("1 May 2024", NOON - 12 * 3600),
    ("2024", datetime(2024, 1, 1, tzinfo=UTC).timestamp()),
    (str(int(NOON)), NOON),
    (str(int(NOON) * 1000), NOON),
    (int(NOON), NOON),
    (NOON * 1e3, NOON),
    (int(NOON) * 10**6, NOON),
    (20240501, NOON - 12 * 3600),
    (20240501120000, NOON),
    (2024, datetime(2024, 1, 1, tzinfo=UTC).timestamp()),
    *((kind("20240230"), 20240230.0) for kind in (str, int)),
    *((kind("20241301"), 20241301.0) for kind in (str, int)),
    *((kind("20240501126000"), 20240501126.0) for kind in (str, int)),
    ("2024-02-30", None),
    ("Wed, 31 Apr 2024 12:00:00 GMT", None),
    ("2024-05-01T12:00:00+24:00", None),
    ("0000-01-01", None),
    ("soon", None),
    ("", None),
    ("9" * 5000, None),
    (True, None),
    ([2024], None),
    (None, None),
]


def test_times_are_read_as_crawls_have_them_whatever_else_is_in_the_block() -> None:
    values, wanted = zip(*TIMES, strict=True)
    assert unix_seconds(json_array(values)).to_pylist() == list(wanted)
    whole = [(value, time) for value, time in TIMES if type(value) is int]
    assert unix_seconds(pa.array([value for value, _ in whole])).to_pylist() == [time for _, time in whole]
    texts = [(value, time) for value, time in TIMES if isinstance(value, str)]
    assert unix_seconds(pa.array([value for value, _ in texts])).to_pylist() == [time for _, time in texts]
    for value, time in texts:
        assert unix_seconds(pa.array([value])).to_pylist() == [time], value
    for kind in (pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ms", "America/New_York"), pa.date64()):
        noon = pa.array([None, int(NOON) * (10**9 if kind == pa.timestamp("ns") else 1)], pa.int64())
        column = noon.cast(kind) if kind == pa.timestamp("s") else pa.array([None, datetime(2024, 5, 1, 12)]).cast(kind)
        assert unix_seconds(column.slice(1)).to_pylist() == [NOON if kind != pa.date64() else NOON - 12 * 3600]


@settings(max_examples=100)
@given(st.datetimes(timezones=st.timezones()), st.text(max_size=12))
def test_times_are_the_same_one_by_one_and_all_at_once(time: datetime, noise: str) -> None:
    texts = [time.isoformat(), time.isoformat(" ")[:19], f"{time:%Y-%m-%d}", noise, f"{time:%Y-%m-%d}{noise}"]
    with suppress(ValueError, OverflowError):
        texts.append(format_datetime(time.astimezone(UTC).replace(microsecond=0), usegmt=True))
    assert unix_seconds(pa.array(texts)).to_pylist() == unix_seconds(json_array(texts)).to_pylist()
    with suppress(OverflowError):
        assert unix_seconds(pa.array(texts))[0].as_py() == pytest.approx(time.astimezone(UTC).timestamp(), abs=1e-3)


# -- what a run tells ------------------------------------------------------------------------------------------


def counted(
    tmp_path: Path, stage: ProcessingStage[Any, Any], values: Sequence[Any], executor: Executor | None = None
) -> tuple[list[int], dict[str, float]]:
    """The rows that a stage keeps of some with the same text, and what it counts of its policy."""
    rows = [{"n": n, "text": "the same words in every row", "x": value} for n, value in enumerate(values)]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = Pipeline("p", stages=[JsonlReader(str(source), blocksize=200), stage]).run(executor or LocalExecutor(0))
    counts = result.summary()[stage.name].counts
    found = [row["n"] for task in result for row in task.to_rows()]
    return found, {name: value for name, value in counts.items() if name.startswith("keep_")}


@pytest.mark.parametrize(
    "kind",
    [ExactDeduplicationStage, FuzzyDeduplicationStage, SimHashDeduplicationStage],
    ids=lambda kind: kind.__name__,
)
def test_rows_that_cannot_be_ranked_are_counted_and_told(tmp_path: Path, kind: Any) -> None:
    stage = kind(keep="newest", score_field="x")
    dates = ["Wed, 01 Jan 2025 10:00:00 GMT", "yesterday", None, "2026-01-01", "", "tomorrow", 1_735_000_000, "?"] * 3
    result = f"stage '{stage.name}': keep='newest' found no time in column 'x' in 37.5% of the rows .9 of 24."
    with pytest.warns(RuntimeWarning, match=result):
        found = counted(tmp_path, stage, dates)
    assert found == ([3], {"keep_unreadable": 9, "keep_missing": 6})


def test_counts_do_not_depend_on_workers(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="9 of 24"):
        found = counted(
            tmp_path,
            ExactDeduplicationStage(keep="newest", score_field="x"),
            ["2025-01-01", "yesterday", None, "2026-01-01", "", "tomorrow", 1_735_000_000, "?"] * 3,
            LocalExecutor(2),
        )
    assert found == ([3], {"keep_unreadable": 9, "keep_missing": 6})


def test_rows_beside_one_that_is_set_aside_are_counted_once() -> None:
    rows = [{"n": n, "hash": "not a hash" if n == 2 else "0" * 16, "x": "soon"} for n in range(5)]
    stage = PerceptualHashDeduplicationStage("hash", keep="newest", score_field="x")
    with pytest.warns(RuntimeWarning, match="no time in column '.*' in any of 4 rows"):
        result = Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=[DocumentBatch(rows)], max_errors=1)
    assert len(result.quarantined()) == 1
    assert result.summary()[stage.name].counts["keep_unreadable"] == 4


@pytest.mark.parametrize(
    ("keep", "values", "expected"),
    [
        (Keep("newest", "x"), ["soon", "late", "now"], "no time .*in any of 3 rows .3 have another value, 0 have"),
        (Keep("highest", "x"), ["high", "low", "low"], "no number .*in any of 3 rows.*the first row of each.*numbers"),
        (Keep("highest", "x"), [None, None, 1], None),
        (Keep("highest", "x"), [None, "", None], "no number .*in any of 3 rows .0 have another value, 3 have"),
        (Keep("highest", "x"), [[1], [2], [3]], "no number .*in any of 3 rows"),
        (Keep("newest", "x"), [[1], [2], [3]], "no time .*in any of 3 rows"),
        (Keep("source", "x", ["wiki"]), ["Wiki", "web", "web"], "no value of its order .*in any of 3 rows.*spelled"),
        (Keep("source", "x", ["web"]), ["web", "mail", "wiki"], None),
        (Keep("longest", "x"), [[1], [1], [1, 2]], None),
    ],
)
def test_a_column_of_no_use_is_told(tmp_path: Path, keep: Keep, values: list[Any], expected: str | None) -> None:
    stage = ExactDeduplicationStage(keep=keep)
    if expected is None:
        assert len(counted(tmp_path, stage, values)[0]) == 1
        return
    with pytest.warns(RuntimeWarning, match=expected):
        assert counted(tmp_path, stage, values)[0] == [0]


def test_each_stage_tells_what_it_cannot_read(tmp_path: Path) -> None:
    rows = [{"text": f"the words of row {n} and no others {n}", "a": "soon", "b": "much"} for n in range(5)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stages = [
        JsonlReader(str(tmp_path / "in.jsonl")),
        ExactDeduplicationStage(keep="newest", score_field="a"),
        FuzzyDeduplicationStage(keep="highest", score_field="b"),
    ]
    with pytest.warns(RuntimeWarning) as caught:
        Pipeline("p", stages=stages).run(LocalExecutor(0))
    messages = [str(one.message) for one in caught]
    assert [column for column in ("'a'", "'b'") for one in messages if f"column {column}" in one] == ["'a'", "'b'"]
