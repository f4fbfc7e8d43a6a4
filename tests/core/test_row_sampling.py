"""Which rows Sample keeps: the numbers it draws, batches of all kinds, and its parameters."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill import Batch, DocumentBatch, Sample
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.deciding_stage import DecidingStage
from gristmill.core.row_sampling import draw_uniform
from gristmill.core.task import Lineage
from tests.core.row_sampling_reference import MASK, number_of, splitmix

ROWS = 100_000


def batch_of(positions: Iterable[int], file: str | None = "a.jsonl", **columns: Any) -> Batch:
    table = pa.table({**columns, POSITION: pa.array(positions, pa.int64())})
    return Batch(table, metadata={} if file is None else {"file": file})


def named(batch: Batch, task_id: str, source: str) -> Batch:
    return batch.named(Lineage(task_id, source))


def numbers(stage: Sample, batch: Batch) -> list[float]:
    found: list[float] = stage.decide(batch).scores["Sample"].to_pylist()
    return found


def kept(stage: Any, batch: Batch) -> set[int]:
    return set(stage.process(batch).data.column(POSITION).to_pylist())


@pytest.fixture(scope="module")
def many() -> Batch:
    return batch_of(range(0, 37 * ROWS, 37))


# -- the numbers -------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2**63 - 1), max_size=30), st.integers(0, MASK))
@example([], 0)
@example([0, 2**63 - 1], MASK)
def test_a_column_draws_what_each_row_would_draw(positions: list[int], key: int) -> None:
    drawn = draw_uniform(pa.array(positions, pa.uint64()), key)
    assert drawn.type == pa.float64()
    assert drawn.to_pylist() == [splitmix(position, key) for position in positions]
    assert all(0 <= number < 1 for number in drawn.to_pylist())


@given(st.text(), st.integers(), st.text(min_size=1), st.lists(st.integers(0, 2**62), min_size=1, max_size=5))
def test_a_number_comes_from_seed_name_file_and_position(file: str, seed: int, name: str, positions: list[int]) -> None:
    batch = named(batch_of(positions, file or None), "s.3", "s")
    found = numbers(Sample(0.5, seed=seed).with_(name=name), batch)
    assert found == [number_of(file or "s", position, seed, name) for position in positions]


def test_the_numbers_are_these_for_all_time() -> None:
    """A sample that one version drew, the next one must be able to draw again."""
    assert numbers(Sample(0.5), batch_of([0, 17, 2**40])) == [
        0.17602852669925662,
        0.5513334128951144,
        0.6480560298341651,
    ]


@pytest.mark.parametrize("fraction", [0.001, 0.01, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("seed", [0, 1, -7, 2**70])
def test_the_share_is_close_to_the_fraction(many: Batch, fraction: float, seed: int) -> None:
    share = Sample(fraction, seed).process(many).num_items / ROWS
    assert abs(share - fraction) < 5 * (fraction * (1 - fraction) / ROWS) ** 0.5


@pytest.mark.parametrize("step", [1, 2, 64, 1000, 4096, 2**20])
def test_regular_positions_leave_no_pattern(step: int) -> None:
    """Each tenth of the numbers gets its tenth of the rows: lines of one length have offsets that are multiples."""
    found = numbers(Sample(0.5), batch_of(range(0, step * 10_000, step)))
    tenths = [sum(tenth <= number * 10 < tenth + 1 for number in found) for tenth in range(10)]
    assert all(850 < tenth < 1150 for tenth in tenths)
    repeats = sum((a < 0.5) == (b < 0.5) for a, b in pairwise(found))
    assert 4700 < repeats < 5300


@given(st.floats(0, 1), st.floats(0, 1), st.integers())
def test_a_smaller_sample_is_a_part_of_a_larger_one(one: float, other: float, seed: int) -> None:
    batch = batch_of(range(300))
    small, large = kept(Sample(min(one, other), seed), batch), kept(Sample(max(one, other), seed), batch)
    assert small <= large
    assert kept(Sample(0, seed), batch) == set()
    assert len(kept(Sample(1, seed), batch)) == 300


def overlap(batch: Batch, one: Sample, other: Sample) -> float:
    return len(kept(one, batch) & kept(other, batch)) / ROWS


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Sample(0.5), Sample(0.5, seed=1)),
        (Sample(0.5, seed=1), Sample(0.5, seed=-1)),
        (Sample(0.5), Sample(0.5).with_(name="second")),
    ],
    ids=["seed", "sign", "name"],
)
def test_other_seeds_and_names_draw_independently(many: Batch, one: Sample, other: Sample) -> None:
    assert abs(overlap(many, one, other) - 0.25) < 0.01


@pytest.mark.parametrize("files", [("a", "b"), ("x/0001.jsonl", "x/0002.jsonl")])
def test_files_draw_independently_at_equal_positions(files: tuple[str, str]) -> None:
    one, other = (numbers(Sample(0.5), batch_of(range(20_000), file)) for file in files)
    both = sum(a < 0.5 and b < 0.5 for a, b in zip(one, other, strict=True))
    assert abs(both / 20_000 - 0.25) < 0.02


# -- batches -----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), max_size=6), st.integers(0, 30))
def test_chunks_and_slices_draw_what_the_whole_draws(sizes: list[int], start: int) -> None:
    whole = batch_of(range(sum(sizes)))
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    chunks = [pa.array(range(end - size, end), pa.int64()) for end, size in zip(ends, sizes, strict=True)]
    cut = whole.with_data(pa.table({POSITION: pa.chunked_array(chunks, pa.int64())}))
    decision = Sample(0.5).decide(cut)
    assert isinstance(decision.keep, pa.Array)
    assert decision.keep.to_pylist() == Sample(0.5).decide(whole).keep.to_pylist()
    assert kept(Sample(0.5), whole.slice(start)) == {row for row in kept(Sample(0.5), whole) if row >= start}


def test_a_row_does_not_look_at_its_neighbours(many: Batch) -> None:
    thinned = many.take(range(0, ROWS, 3))
    assert kept(Sample(0.3), thinned) == kept(Sample(0.3), many) & set(thinned.data.column(POSITION).to_pylist())


def test_rows_without_a_position_are_known_by_task_and_place() -> None:
    stage = Sample(0.5)
    batch = named(Batch({"n": list(range(50))}), "t.4", "t")
    assert numbers(stage, batch) == [number_of("t.4", place) for place in range(50)]
    other = named(batch.with_data(batch.data), "t.5", "t")
    assert numbers(stage, batch) != numbers(stage, other)


@pytest.mark.parametrize(
    "column", [pa.array([1, None, 3]), pa.nulls(3), pa.array(["a", "b", "c"]), pa.array([0.5, 1.5, 2.5])], ids=str
)
def test_positions_that_name_no_row_count_as_none(column: pa.Array) -> None:
    batch = named(Batch({POSITION: column}), "t.4", "t")
    assert numbers(Sample(0.5), batch) == [number_of("t.4", place) for place in range(3)]


@pytest.mark.parametrize("kind", [pa.int32(), pa.uint64(), pa.int64()], ids=str)
def test_the_width_of_a_position_does_not_matter(kind: pa.DataType) -> None:
    batch = Batch({POSITION: pa.array([3, 5], kind)}, metadata={"file": "a"})
    assert numbers(Sample(0.5), batch) == [number_of("a", 3), number_of("a", 5)]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"text": pa.nulls(0, pa.string()), POSITION: pa.nulls(0, pa.int64())}),
        pa.table({"text": pa.chunked_array([], pa.string()), POSITION: pa.chunked_array([], pa.int64())}),
        pa.table({"text": pa.nulls(0, pa.string())}),
        pa.table({}),
    ],
    ids=["empty", "no chunks", "no positions", "no columns"],
)
def test_an_empty_batch_keeps_its_columns(table: pa.Table) -> None:
    out = Sample(0.5).process(DocumentBatch(table))
    assert type(out) is DocumentBatch
    assert out.data.schema == table.schema
    assert out.num_items == 0


def test_objects_stay_with_their_rows() -> None:
    batch = Batch({POSITION: list(range(40))}, objects={"frame": [f"frame {row}" for row in range(40)]})
    out = Sample(0.5).process(batch)
    assert 0 < out.num_items < 40
    assert out.objects["frame"] == [f"frame {row}" for row in out.data.column(POSITION).to_pylist()]


# -- parameters --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [-0.1, 1.1, 10, float("nan"), float("inf"), True, False, "0.5", None])
def test_a_fraction_that_is_none_is_refused(fraction: Any) -> None:
    with pytest.raises(ValueError, match=r"Sample: fraction is .*, must be a share from 0 to 1"):
        Sample(fraction)


@pytest.mark.parametrize("seed", [1.0, True, "1", None])
def test_a_seed_that_is_no_whole_number_is_refused(seed: Any) -> None:
    with pytest.raises(TypeError, match=r"Sample: seed is .*, must be a whole number"):
        Sample(0.5, seed)


def test_it_is_a_stage_that_decides() -> None:
    stage = Sample(0.25, 3)
    assert isinstance(stage, DecidingStage)
    assert (stage.name, stage.fraction, stage.seed) == ("Sample", 0.25, 3)
    decision = stage.decide(batch_of(range(100)))
    assert list(decision.scores) == ["Sample"]
    assert decision.keep.to_pylist() == [number < 0.25 for number in decision.scores["Sample"].to_pylist()]
