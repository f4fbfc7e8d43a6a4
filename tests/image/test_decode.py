"""Decoding: every kind of image becomes RGB by one rule, and what cannot be decoded says why."""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from gristmill import ImageBatch
from gristmill.image import BadImage, decoded, header, headers_of, pixels_of
from gristmill.image import decode_image as decode
from tests.image.image_fixtures import encode, encoded, picture

KINDS = ("jpeg", "png", "webp", "gif", "bmp", "tiff", "avif")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff", "avif"])
def test_exif_orientation_is_applied(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(1, kind, exif=exif.tobytes())
    shown = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    pixels = decode(data)
    assert np.array_equal(pixels, np.asarray(shown))
    found = header(data)
    assert (found.height, found.width, 3) == pixels.shape
    assert found.format == kind


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("1", "png"), ("L", "jpeg"), ("P", "gif"), ("CMYK", "jpeg"), ("CMYK", "tiff"), ("LA", "png"), ("RGBA", "webp")],
)
def test_every_mode_becomes_rgb(mode: str, kind: str) -> None:
    data = encode(picture(2).convert(mode), kind)
    pixels = decode(data)
    assert pixels.shape == (48, 64, 3)
    assert pixels.dtype == np.uint8
    plain = decode(encode(picture(2).convert("L").convert("RGB") if mode in ("L", "LA") else picture(2), "png"))
    assert abs(float(pixels.mean()) - float(plain.mean())) < 12
    assert not pixels.flags.writeable  # stages share them


def test_what_is_transparent_is_white() -> None:
    image = picture(3).convert("RGBA")
    image.putalpha(0)
    assert (decode(encode(image, "png")) == 255).all()
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    assert (decode(encode(palette, "gif", transparency=1)) == 255).all()


def test_sixteen_bits_become_the_upper_eight() -> None:
    deep = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)
    assert np.array_equal(decode(encode(Image.fromarray(deep), "png"))[:, :, 0].ravel(), np.arange(256))
    floats = Image.fromarray(np.array([[0.0, 0.5, 1.0, 7.0]], np.float32))
    assert decode(encode(floats, "tiff"))[0, :, 0].tolist() == [0, 127, 255, 255]


@pytest.mark.parametrize("kind", ["gif", "webp", "png", "tiff", "avif"])
def test_of_several_frames_the_first_is_taken_and_all_are_counted(kind: str) -> None:
    data = encode(picture(1), kind, save_all=True, append_images=[picture(2), picture(3)])
    assert header(data).frames == 3
    alone = decode(encode(picture(1), kind))
    assert np.abs(decode(data).astype(int) - alone).mean() < 6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0, 0.02, 0.5, 0.9])
def test_an_image_that_is_cut_short_is_refused(kind: str, share: float) -> None:
    data = encoded(1, kind, width=200, height=160)
    with pytest.raises(BadImage):
        decode(data[: int(len(data) * share)])


def test_a_damaged_jpeg_is_refused_where_libjpeg_would_go_on_in_grey() -> None:
    data = bytearray(encoded(1, width=300, height=300, quality=95))
    middle = len(data) // 2
    data[middle : middle + 20] = b"\xff\xd0" * 10
    with pytest.raises(BadImage, match="a damaged jpeg"):
        decode(bytes(data))
    assert decode(encoded(1) + b"what cameras leave behind").shape == (48, 64, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_more_pixels_than_allowed_are_refused_before_decoding(kind: str) -> None:
    data = encoded(1, kind)
    with pytest.raises(BadImage, match=r"64 x 48 pixels are more than max_pixels=3,000"):
        decode(data, max_pixels=3000)
    assert decode(data, max_pixels=64 * 48).shape == (48, 64, 3)


def test_a_bomb_of_a_few_bytes_is_refused() -> None:
    data = bytearray(encoded(1, "png"))
    data[16:24] = struct.pack(">II", 50_000, 50_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    assert header(data).pixels == 2_500_000_000
    with pytest.raises(BadImage, match="max_pixels"):
        decode(data)


@pytest.mark.parametrize("data", [b"", b"<html></html>", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"%PDF-1.7"])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    for work in (decode, header):
        with pytest.raises(BadImage):
            work(data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_picture_is_decoded_small(kind: str) -> None:
    data = encoded(1, kind, width=640, height=480)
    small = decode(data, at_least=100)
    assert 100 <= min(small.shape[:2]) < 240
    whole = Image.fromarray(decode(data)).resize((small.shape[1], small.shape[0]), Image.Resampling.BOX)
    assert np.abs(small.astype(int) - np.asarray(whole)).mean() < 3
    assert decode(encoded(1, kind), at_least=100).shape == (48, 64, 3)


# -- batches -----------------------------------------------------------------------------------------------------


def batch(*images: bytes | None) -> ImageBatch:
    import pyarrow as pa

    return ImageBatch(pa.table({"image": pa.array(list(images), pa.large_binary())}))


def test_pixels_are_decoded_once_and_go_with_their_rows() -> None:
    first = decoded(batch(*(encoded(i) for i in range(4))))
    assert decoded(first).objects["pixels"] is first.objects["pixels"]
    kept = first.take([2, 0])
    assert kept.objects["pixels"][0] is first.objects["pixels"][2]


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(threads: int) -> None:
    images = batch(*(encoded(i, kind) for i in range(5) for kind in KINDS))
    found = pixels_of(images, threads=threads)
    want = [decode(value) for value in images.data.column("image").to_pylist()]
    assert all(np.array_equal(one, other) for one, other in zip(found, want, strict=True))


def test_pixels_do_not_travel_with_the_bytes_that_they_are_made_of() -> None:
    sent: Any = decoded(batch(encoded(1)))
    sent.objects["own"] = [1]
    headers_of(sent)
    got = pickle.loads(pickle.dumps(sent, 5))
    assert list(got.objects) == ["own"]
    assert np.array_equal(decoded(got).objects["pixels"][0], sent.objects["pixels"][0])
    alone = ImageBatch({"image_id": ["a"]}, objects={"pixels": [sent.objects["pixels"][0]]})
    assert len(pickle.loads(pickle.dumps(alone, 5)).objects["pixels"]) == 1


def test_small_pictures_do_not_depend_on_what_was_decoded_before() -> None:
    one, two = batch(encoded(1, width=800, height=600)), batch(encoded(1, width=800, height=600))
    decoded(one)
    assert np.array_equal(pixels_of(one, at_least=100)[0], pixels_of(two, at_least=100)[0])
