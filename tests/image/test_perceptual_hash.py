"""Perceptual hashes, and deduplication by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.core.errors import GristmillError
from gristmill.dedup import Keep, PerceptualHashDeduplicationStage
from gristmill.image import ImagePerceptualHashStage
from gristmill.image.decode import decode
from gristmill.image.perceptual_hash import hashes
from tests.image.photo_fixtures import FOLDER, NAMES, batch, copies, rows, saved


@pytest.mark.parametrize(
    ("name", "method", "wanted"),
    [
        # what the ImageHash library gives
        ("astronaut", "phash", 0xC2924C5532BDDFC8),
        ("astronaut", "dhash", 0xCD8DD91D897293A7),
        ("astronaut", "ahash", 0x7F7F7FC744F8D050),
        ("chelsea", "phash", 0xB15FE6465121175E),
        ("chelsea", "dhash", 0x5414589AAB6FA785),
        ("chelsea", "ahash", 0x82808E4B09A373E7),
        ("coffee", "phash", 0xBB8320376C0F3637),
        ("coffee", "dhash", 0xF3E96933160B1B36),
        ("coffee", "ahash", 0x3F3FBFBB818081C3),
        ("rocket", "phash", 0xC0371BEC1BE51267),
        ("rocket", "dhash", 0xE0C0C090909090D1),
        ("rocket", "ahash", 0x00002078F8FCFC7C),
    ],
)
def test_the_bits_that_others_give(name: str, method: str, wanted: int) -> None:
    pixels = decode((FOLDER / f"{name}.jpg").read_bytes())
    assert hashes([pixels], method) == [wanted]


@pytest.mark.parametrize("method", ["phash", "dhash", "ahash"])
def test_copies_are_near_and_other_pictures_are_not(method: str) -> None:
    given = [data for name in NAMES for data in copies(name).values()]
    found = [row[method] for row in rows([ImagePerceptualHashStage(method)], batch(given))]
    each = len(given) // len(NAMES)
    for left, one in enumerate(found):
        for right, other in enumerate(found):
            bits = (one ^ other).bit_count()
            assert bits <= 6 if left // each == right // each else bits >= 16, (left, right)


def test_pictures_of_one_colour_have_no_hash_and_bad_ones_are_set_aside() -> None:
    given = [saved(Image.new("RGB", (80, 80), "navy")), b"no picture", (FOLDER / "coffee.jpg").read_bytes()]
    found = rows([ImagePerceptualHashStage(hash_field="bits")], batch(given), max_errors=5)
    assert [(row["id"], row["bits"] is None) for row in found] == [(0, True), (2, False)]
    with pytest.raises(ValueError, match="phash, dhash, ahash"):
        ImagePerceptualHashStage("md5")


def test_resized_and_recompressed_copies_are_dropped() -> None:
    given = [data for name in NAMES for data in copies(name).values()]
    widths = [decode(data).shape[1] for data in given]
    stages = [ImagePerceptualHashStage(), PerceptualHashDeduplicationStage(keep="highest", score_field="width")]
    found = rows(stages, batch(given[:9], width=widths[:9]), batch_from(given, widths, 9))
    assert [row["id"] for row in found] == [3, 10, 17, 24]  # the enlarged one of each


def batch_from(given: list[bytes], widths: list[int], start: int) -> Any:
    made = batch(given[start:], width=widths[start:])
    numbers = pa.array(range(start, len(given)), pa.int64())
    return made.with_column("id", numbers)


# -- the column of hashes ------------------------------------------------------------------------------------


def kept(column: pa.Array, batch_rows: int = 50, **options: Any) -> list[int]:
    table = pa.table({"id": range(len(column)), "phash": column, "size": [-row for row in range(len(column))]})
    tasks = [DocumentBatch(table.slice(start, batch_rows)) for start in range(0, max(len(column), 1), batch_rows)]
    stage = PerceptualHashDeduplicationStage(**options)
    result = Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=tasks)
    return [row["id"] for task in result for row in task.to_rows()]


@pytest.mark.parametrize("radius", [0, 3, 8, 12])
def test_all_pairs_within_the_radius_are_found(radius: int) -> None:
    """Against brute force."""
    rng = np.random.default_rng(radius)
    base = rng.integers(0, 2**64, 60, dtype=np.uint64)
    bits = np.repeat(base, 4)
    for row in range(len(bits)):
        for bit in rng.choice(64, rng.integers(0, 9), replace=False):
            bits[row] ^= np.uint64(1) << np.uint64(bit)
    near = np.bitwise_count(bits[:, None] ^ bits[None, :]) <= radius
    group = list(range(len(bits)))
    for left in range(len(bits)):
        for right in np.flatnonzero(near[left]).tolist():
            low, high = sorted((group[left], group[right]))
            group = [low if one == high else one for one in group]
    wanted = sorted(set(group))
    assert kept(pa.array(bits), radius=radius, num_partitions=3) == wanted


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array([], pa.uint64()), []),
        (pa.array([7, 7, None, None, 2**63], pa.uint64()), [0, 2, 3, 4]),
        (pa.array([-1, -1, -(2**62)], pa.int64()), [0, 2]),
        (pa.array(["00000000000000ff", "00000000000000FF", None, "f" * 16]), [0, 2, 3]),
        (pa.array([b"\0" * 8, b"\0" * 8, b"\xff" * 8], pa.binary(8)), [0, 2]),
        (pa.nulls(2), [0, 1]),
    ],
)
def test_how_hashes_may_be_stored(column: pa.Array, wanted: list[int]) -> None:
    assert kept(column, radius=1) == wanted


def test_which_is_kept_and_refusals() -> None:
    assert kept(pa.array([5, 4, 5], pa.uint64()), keep=Keep("highest", "size")) == [0]
    with pytest.raises(ValueError, match="0 to 12 bits"):
        PerceptualHashDeduplicationStage(radius=13)
    with pytest.raises(GristmillError, match="needs 64-bit hashes in column 'phash', which holds double"):
        kept(pa.array([0.5, 0.5]))
