"""Filters for pictures, without models."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from gristmill import ImageBatch, LocalExecutor, Pipeline
from gristmill.image import (
    ImageAnimatedFilter,
    ImageAspectRatioFilter,
    ImageBlurFilter,
    ImageBorderFilter,
    ImageBrightnessFilter,
    ImageColourfulnessFilter,
    ImageContrastFilter,
    ImageEntropyFilter,
    ImageFileSizeFilter,
    ImageFilter,
    ImageFormatFilter,
    ImageResolutionFilter,
    ImageScore,
    ImageScoreFilter,
    ImageTextFilter,
    ImageWatermarkFilter,
)
from gristmill.image.decode import decode
from gristmill.image.score import grey
from tests.image.image_fixtures import encoded
from tests.image.photo_fixtures import batch, blurred, letterboxed, noise, photo, printed, rows, saved, tiled

GREY = Image.new("RGB", (300, 300), (128, 128, 128))
HALVES = Image.fromarray(np.repeat([[[0, 0, 0]] * 150 + [[255, 255, 255]] * 150], 300, 0).astype(np.uint8))
MOVING = BytesIO()
photo("coffee").save(MOVING, "GIF", save_all=True, append_images=[GREY])

CASES = [
    # filter, picture, score (None: whatever it is), kept
    (ImageResolutionFilter(min_side=200), photo("coffee"), 240, True),
    (ImageResolutionFilter(min_side=241), photo("coffee"), 240, False),
    (ImageResolutionFilter(min_side=None, max_side=200), photo("coffee"), 240, False),
    (ImageAspectRatioFilter(), photo("coffee"), 1.5, True),
    (ImageAspectRatioFilter(max_ratio=1.4), photo("coffee"), 1.5, False),
    (ImageAspectRatioFilter(), GREY.resize((40, 200)), 0.2, False),
    (ImageFileSizeFilter(min_bytes=10), photo("coffee"), None, True),
    (ImageFileSizeFilter(max_bytes=10_000, min_bytes=None), photo("coffee"), None, False),
    (ImageFormatFilter(["png"]), GREY, "png", True),
    (ImageFormatFilter(["jpeg", "webp"]), GREY, "png", False),
    (ImageAnimatedFilter(), GREY, 1, True),
    (ImageAnimatedFilter(), MOVING.getvalue(), 2, False),
    (ImageAnimatedFilter(max_frames=2), MOVING.getvalue(), 2, True),
    (ImageBlurFilter(), GREY, 0.0, False),
    (ImageBlurFilter(), photo("chelsea"), None, True),
    (ImageBlurFilter(), blurred(photo("chelsea")), None, False),
    (ImageEntropyFilter(), GREY, 0.0, False),
    (ImageEntropyFilter(min_entropy=0.5), HALVES, 1.0, True),
    (ImageEntropyFilter(), photo("rocket"), None, True),
    (ImageBrightnessFilter(), HALVES, 0.5, True),
    (ImageBrightnessFilter(), Image.new("RGB", (300, 300)), 0.0, False),
    (ImageBrightnessFilter(), Image.new("RGB", (300, 300), "white"), 1.0, False),
    (ImageContrastFilter(), HALVES, 0.5, True),
    (ImageContrastFilter(), GREY, 0.0, False),
    (ImageColourfulnessFilter(), GREY, 0.0, False),
    (ImageColourfulnessFilter(), photo("astronaut"), None, True),
    (ImageColourfulnessFilter(), photo("astronaut").convert("L"), 0.0, False),
    (ImageColourfulnessFilter(), Image.new("RGB", (300, 300), (255, 0, 0)), 85.5296, True),
    (ImageBorderFilter(), letterboxed(photo("coffee")), 1 / 3, False),
    (ImageBorderFilter(), photo("coffee"), 0.0, True),
    (ImageBorderFilter(), GREY, 1.0, False),
    (ImageTextFilter(), printed(), None, False),
    (ImageTextFilter(), photo("astronaut"), None, True),
    (ImageTextFilter(), photo("rocket"), None, True),
    (ImageTextFilter(), GREY, 0.0, True),
    (ImageWatermarkFilter(), tiled(photo("coffee")), None, False),
    (ImageWatermarkFilter(), tiled(photo("rocket")), None, False),
    (ImageWatermarkFilter(), photo("coffee"), None, True),
    (ImageWatermarkFilter(), photo("rocket"), None, True),
    (ImageWatermarkFilter(), noise(), None, True),
    (ImageWatermarkFilter(), GREY, 0.0, True),
]


@pytest.mark.parametrize(("tool", "picture", "score", "kept"), CASES)
def test_scores_and_verdicts(tool: ImageFilter, picture: Any, score: Any, kept: bool) -> None:
    data = picture if isinstance(picture, bytes) else saved(picture, "PNG")
    found = rows([ImageScore(tool, "score")], batch([data]))
    if isinstance(score, float):
        assert found[0]["score"] == pytest.approx(score, abs=1e-3)
    elif score is not None:
        assert found[0]["score"] == score
    assert bool(rows([ImageScoreFilter(tool)], batch([data]))) == kept
    assert bool(rows([ImageScoreFilter(tool, invert=True)], batch([data]))) == (not kept)


def test_sharpness_and_entropy_by_the_book() -> None:
    """Pixel by pixel, for a part of a photograph."""
    pixels = decode(saved(photo("chelsea").crop((60, 40, 100, 70)), "PNG"))
    image = grey(pixels).astype(float)
    found = [
        image[y - 1, x] + image[y + 1, x] + image[y, x - 1] + image[y, x + 1] - 4 * image[y, x]
        for y in range(1, image.shape[0] - 1)
        for x in range(1, image.shape[1] - 1)
    ]
    assert ImageBlurFilter().score_image(grey(pixels)) == pytest.approx(np.var(found), rel=1e-4)
    counts: dict[int, int] = {}
    for value in image.reshape(-1):
        counts[round(value)] = counts.get(round(value), 0) + 1
    entropy = -sum(count / image.size * np.log2(count / image.size) for count in counts.values())
    assert ImageEntropyFilter().score_image(grey(pixels)) == pytest.approx(entropy, abs=1e-6)


def test_several_filters_and_their_scores() -> None:
    pictures = [photo("coffee"), GREY, photo("rocket"), blurred(photo("coffee"))]
    stage = ImageScoreFilter([ImageEntropyFilter(), ImageBlurFilter()], score_field=["entropy", "sharpness"])
    assert stage.name == "ImageEntropyFilter, ImageBlurFilter"
    found = rows([stage], batch([saved(picture, "PNG") for picture in pictures]))
    assert [row["id"] for row in found] == [0, 2]
    assert all(row["entropy"] > 6 and row["sharpness"] > 50 for row in found)


def test_what_cannot_be_decoded_goes_to_quarantine() -> None:
    good, bad = saved(photo("coffee")), saved(photo("rocket"))[:4000]
    given = batch([good, bad, None, good, b"GIF89a"])
    for stage in (ImageScoreFilter(ImageEntropyFilter()), ImageScore(ImageEntropyFilter(), "score")):
        result = Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=[given], max_errors=10)
        assert [row["id"] for task in result for row in task.to_rows()] == [0, 3]
        messages = {one.row["id"]: one.error for one in result.quarantined() if one.row}
        assert set(messages) == {1, 2, 4}
        assert "truncated" in messages[1] or "damaged" in messages[1]
        assert "no bytes" in messages[2]


def test_rejected_rows_have_their_score(tmp_path: Path) -> None:
    stage = ImageScoreFilter(ImageResolutionFilter(min_side=250))
    given = batch([saved(photo("coffee")), saved(GREY)])
    result = Pipeline("p", stages=[stage]).run(
        LocalExecutor(0), run_dir=tmp_path / "run", initial_tasks=[given], rejected=tmp_path / "rejected"
    )
    assert [row["id"] for task in result for row in task.to_rows()] == [1]
    assert (result.summary()[stage.name].rows_in, result.summary()[stage.name].dropped) == (2, 1)
    found_rows = pq.read_table(tmp_path / "rejected").to_pylist()[0]
    assert found_rows["id"] == 0
    assert found_rows["rejected_score"] == 240
    assert found_rows["rejected_threshold"] == "min_side=250"


def test_verdicts_on_scores_alone() -> None:
    """What-if questions are answered without looking at pictures again."""
    stage = ImageScoreFilter([ImageEntropyFilter(min_entropy=4), ImageBlurFilter()], invert=True)
    found = stage.judge({"ImageEntropyFilter": pa.array([3.0, 5.0, None])})
    assert {name: column.to_pylist() for name, column in found.items()} == {"ImageEntropyFilter": [True, False, True]}


def test_a_filter_of_ones_own() -> None:
    class RedFilter(ImageFilter):
        def score_image(self, image: Any) -> float:
            return float((image[..., 0] > image[..., 1]).mean())

        def keep_image(self, score: float) -> bool:
            return score < 0.9

    pictures = [Image.new("RGB", (300, 300), "red"), photo("rocket")]
    assert [row["id"] for row in rows([ImageScoreFilter(RedFilter())], batch([saved(one) for one in pictures]))] == [1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImageScoreFilter([]), "empty list"),
        (lambda: ImageScoreFilter(ImageBlurFilter), r"write ImageBlurFilter\(\.\.\.\)"),
        (lambda: ImageScoreFilter([ImageBlurFilter(), ImageEntropyFilter()], "score"), "one column for each of 2"),
        (lambda: ImageEntropyFilter(min_entropy=5, max_entropy=2), "leaves nothing"),
        (lambda: ImageBlurFilter(min_sharpness="much"), "must be a number"),  # type: ignore[arg-type]
        (lambda: ImageFormatFilter(["jpg"]), "must be a list of jpeg"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_each_image_is_decoded_once_for_all_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a filter that looks at headers, or drops rows, comes before those that look at pixels."""
    decoding: Any = sys.modules[decode.__module__]
    counted: list[int] = []

    def counting(view: Any, *settings: Any, real: Any = decoding.decode, **named: Any) -> Any:
        counted.append(len(view))
        return real(view, *settings, **named)

    monkeypatch.setattr(decoding, "decode", counting)
    images = [encoded(seed, width=300 + seed, height=300 if seed else 40) for seed in range(5)]
    given = ImageBatch(pa.table({"image": pa.array(images, pa.large_binary())}))
    filters = [ImageResolutionFilter(100), ImageBlurFilter(0.0), ImageEntropyFilter(0.0), ImageBrightnessFilter(0, 255)]
    kept = ImageScoreFilter(filters).process(given)
    for stage in (ImageScoreFilter([ImageBrightnessFilter(0, 255)]), ImageScore(ImageEntropyFilter(0.0), "entropy")):
        kept = stage.process(kept)
    assert (kept.num_items, sorted(counted)) == (4, sorted(map(len, images[1:])))
