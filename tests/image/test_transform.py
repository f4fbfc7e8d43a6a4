"""Stages that change pictures."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from PIL import Image

from gristmill.image import ImageConvertStage, ImageResizeStage
from gristmill.image.decode import decode
from gristmill.image.image_header import header
from tests.image.photo_fixtures import FOLDER, batch, photo, rows, saved

COFFEE = (FOLDER / "coffee.jpg").read_bytes()  # 360 x 240


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"width": 180}, (180, 120)),
        ({"width": 180, "height": 60}, (90, 60)),
        ({"width": 120, "mode": "cover"}, (180, 120)),
        ({"width": 120, "mode": "crop"}, (120, 120)),
        ({"width": 50, "height": 70, "mode": "exact"}, (50, 70)),
        ({"width": 1000}, (360, 240)),
        ({"width": 720, "enlarge": True}, (720, 480)),
    ],
)
def test_sizes(options: dict[str, Any], size: tuple[int, int]) -> None:
    found = rows(
        [ImageResizeStage(**options)], batch([COFFEE, saved(photo("coffee"), "PNG")], extension=["jpg", "PNG"])
    )
    known = [header(row["image"]) for row in found]
    assert [(one.width, one.height) for one in known] == [size, size]
    assert [one.format for one in known] == ["jpeg", "png"]
    assert [row["extension"].lower() for row in found] == ["jpg", "png"]
    if size == (360, 240):
        assert found[0]["image"] == COFFEE  # never encoded anew for nothing


def test_a_smaller_picture_shows_the_same() -> None:
    small = decode(rows([ImageResizeStage(90)], batch([COFFEE]))[0]["image"]).astype(float)
    wanted = photo("coffee").resize((90, 60), Image.Resampling.LANCZOS)
    assert abs(small - decode(saved(wanted, "PNG"))).mean() < 4


@pytest.mark.parametrize("kind", ["png", "webp", "bmp", "tiff", "gif", "jpeg"])
def test_formats(kind: str) -> None:
    given = batch([COFFEE], extension=["jpeg"], caption=["a cup"])
    found = rows([ImageConvertStage(kind)], given)[0]
    assert header(found["image"]).format == kind
    assert found["caption"] == "a cup"
    assert found["extension"] == {"jpeg": "jpeg"}.get(kind, kind)
    assert (found["image"] == COFFEE) == (kind == "jpeg")
    assert abs(decode(found["image"]).astype(float) - decode(COFFEE)).mean() < 6


def test_what_cannot_be_decoded_is_set_aside() -> None:
    found = rows([ImageConvertStage("png")], batch([b"nothing", COFFEE]), max_errors=5)
    assert [row["id"] for row in found] == [1]


def test_other_columns_stay_as_they_are() -> None:
    found = rows([ImageConvertStage("png", always=True)], batch([COFFEE], vector=pa.array([[1.0, 2.0]])))
    assert found[0]["vector"] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImageResizeStage(0), "width is 0"),
        (lambda: ImageResizeStage(10, mode="stretch"), "fit, cover, crop or exact"),
        (lambda: ImageConvertStage("jpg"), "must be one of jpeg"),
        (lambda: ImageConvertStage("jpeg", quality=0), "from 1 to 100"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
