"""Figure: read, decode and resize images. JPEG photographs of 300 to 1,400 pixels in a WebDataset archive.

CPU seconds of one process for the same archive: Gristmill's pipeline (read, decode, resize), the `webdataset` library
with Pillow, and libjpeg-turbo alone, in a bare loop over bytes that lie in memory. Also what it costs to send decoded
pixels to another process, beside decoding them again there. Megabytes are those of the archive; memory is that of a
process that does nothing else.

The targets: at least the throughput of webdataset per CPU second, and no more than 20% above libjpeg-turbo for reading
and decoding. Images are cut from the photographs of examples/images, each at a place and of a size of its own.
"""

from __future__ import annotations

import io
import pickle
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from process_measurement import WORK, measure, stable

from gristmill import ImageBatch, LocalExecutor, Pipeline, ProcessingStage
from gristmill.image import WebDatasetReader, decode_image, decoded, pixels_of

PHOTOS = Path(__file__).resolve().parents[1] / "examples" / "images" / "photos"
SIDE = 224
_ROUNDING = 2


def run(rounds: int = 3, images: int = 600) -> dict[str, Any]:
    path = archive(images)
    own = [WebDatasetReader(str(path)), _Decode()]
    whole = [WebDatasetReader(str(path)), _Resize()]
    encoded = [bytes(member) for member in _members(path)]
    found: dict[str, list[float]] = {}
    walls: dict[str, list[float]] = {}
    moved: dict[str, list[float]] = {}
    memory: list[float] = []
    _pipeline(own)  # so that every module has its byte code, and memory for pixels is there
    for _ in range(rounds):
        cases: dict[str, Callable[[], int]] = {
            "turbo": lambda: _turbo(encoded),
            "read_decode": lambda: _pipeline(own),
            "read_decode_resize": lambda: _pipeline(whole),
            "webdataset_pillow": lambda: _webdataset(path),
        }
        for name, case in cases.items():
            began, on_the_clock = time.process_time(), time.perf_counter()
            count = case()
            found.setdefault(name, []).append(time.process_time() - began)
            walls.setdefault(name, []).append(time.perf_counter() - on_the_clock)
            assert count == images, f"{name} gave {count} images of {images}"
        for name, seconds in _moving(encoded[:100]).items():
            moved.setdefault(name, []).append(seconds)
        memory.append(measure([sys.executable, __file__, str(path)], memory=True).together)
    size = path.stat().st_size / 1e6
    return {
        "images": images,
        "archive_mb": round(size, 1),
        **{f"{name}_ms": stable([1000 * one / images for one in values]) for name, values in found.items()},
        **{f"{name}_wall_ms": stable([1000 * one / images for one in values]) for name, values in walls.items()},
        **{f"{name}_mb_per_cpu_s": stable([size / one for one in values], 1) for name, values in found.items()},
        **{f"{name}_ms": stable([1000 * one / 100 for one in values]) for name, values in moved.items()},
        "read_decode_memory_mb": stable(memory, 0),
        "same_pixels": sum(_same(one) for one in encoded[:50]),
        "compared": len(encoded[:50]),
        "over_turbo": stable([a / b for a, b in zip(found["read_decode"], found["turbo"], strict=True)]),
        "times_webdataset": stable(
            [b / a for a, b in zip(found["read_decode_resize"], found["webdataset_pillow"], strict=True)]
        ),
    }


def archive(images: int) -> Path:
    """A tar of photographs, with captions, made once."""
    from PIL import Image

    path = WORK / f"images-{images}.tar"
    if path.exists():
        return path
    WORK.mkdir(exist_ok=True)
    photos = [Image.open(photo).convert("RGB") for photo in sorted(PHOTOS.glob("*.jpg"))]
    random = np.random.default_rng(1)
    draft = path.with_suffix(".draft")
    with tarfile.open(draft, "w") as tar:
        for number in range(images):
            photo = photos[number % len(photos)]
            scale, left, top = random.uniform(0.8, 2.0), random.uniform(0, 0.2), random.uniform(0, 0.2)
            box = (left * photo.width, top * photo.height, photo.width, photo.height)
            size = (int(scale * (box[2] - box[0])), int(scale * (box[3] - box[1])))
            out = io.BytesIO()
            photo.resize(size, Image.Resampling.BICUBIC, box).save(out, "jpeg", quality=90)
            for extension, data in (("jpg", out.getvalue()), ("txt", f"photograph {number}".encode())):
                member = tarfile.TarInfo(f"{number:06}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    draft.rename(path)
    return path


def _members(path: Path) -> list[bytes]:
    with tarfile.open(path) as tar:
        return [tar.extractfile(member).read() for member in tar if member.name.endswith(".jpg")]  # type: ignore[union-attr]


class _Decode(ProcessingStage[ImageBatch, ImageBatch]):
    def process(self, task: ImageBatch) -> ImageBatch:
        batch = decoded(task, self)
        batch.objects.clear()
        return batch


class _Resize(ProcessingStage[ImageBatch, ImageBatch]):
    def process(self, task: ImageBatch) -> ImageBatch:
        from PIL import Image

        for pixels in pixels_of(task, self, at_least=SIDE):
            assert pixels is not None
            Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        task.objects.clear()
        return task


def _pipeline(stages: list[Any]) -> int:
    result = Pipeline("images", stages=stages).run(LocalExecutor(num_workers=0))
    return sum(task.num_items for task in result)


def _webdataset(path: Path) -> int:
    import webdataset
    from PIL import Image

    count = 0
    for image, _ in webdataset.WebDataset(str(path), shardshuffle=False).decode("pil").to_tuple("jpg", "txt"):
        image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        count += 1
    return count


def _turbo(encoded: list[bytes]) -> int:
    import simplejpeg

    for data in encoded:
        simplejpeg.decode_jpeg(data)
    return len(encoded)


def _same(data: bytes) -> bool:
    """Whether the pixels are those of another decoder, which may round in another way."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as picture:
        theirs = np.asarray(picture.convert("RGB"))
    ours = decode_image(data)
    return ours.shape == theirs.shape and int(np.abs(ours.astype(int) - theirs).max()) <= _ROUNDING


def _moving(encoded: list[bytes]) -> dict[str, float]:
    """What each way to have pixels in another process costs, by way of a file in shared memory."""
    pixels = [decode_image(data) for data in encoded]
    shared = Path("/dev/shm") / "gristmill-benchmark-pixels"
    began = time.process_time()
    buffers: list[pickle.PickleBuffer] = []
    pickle.dumps(pixels, 5, buffer_callback=buffers.append)
    with shared.open("wb") as out:
        for buffer in buffers:
            out.write(buffer.raw())
    data = np.memmap(shared, np.uint8, "r")
    data.sum()  # whoever gets them looks at them
    sent = time.process_time() - began
    shared.unlink()
    began = time.process_time()
    for one in encoded:
        decode_image(one)
    return {"send_pixels": sent, "decode_again": time.process_time() - began}


if __name__ == "__main__":
    from process_measurement import show

    if len(sys.argv) > 1:
        _pipeline([WebDatasetReader(sys.argv[1]), _Decode()])
    else:
        show(run())
