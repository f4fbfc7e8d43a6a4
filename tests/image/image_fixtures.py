"""Pictures, archives and stages for tests of images."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gristmill import ImageBatch, LocalExecutor, Pipeline, ProcessingStage
from gristmill.image.decode import decoded

INLINE = LocalExecutor(num_workers=0)


def picture(seed: int = 0, width: int = 64, height: int = 48) -> Image.Image:
    """A smooth picture with colours of its own."""
    coarse = np.random.default_rng(seed).integers(0, 255, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(seed: int = 0, kind: str = "jpeg", width: int = 64, height: int = 48, **options: Any) -> bytes:
    return encode(picture(seed, width, height), kind, **options)


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def archive(path: Path, files: Iterable[tuple[str, bytes]], mode: str = "w") -> Path:
    """A tar as Python's own library writes it."""
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def samples(count: int, prefix: str = "s") -> list[tuple[str, bytes]]:
    """The files of some samples, each an image with caption, metadata, label and one file more."""
    files: list[tuple[str, bytes]] = []
    for number in range(count):
        key = f"{prefix}{number:04}"
        files += [
            (f"{key}.jpg", encoded(number)),
            (f"{key}.txt", f"caption {number}".encode()),
            (f"{key}.json", b'{"number":%d}' % number),
            (f"{key}.cls", b"%d" % (number % 3)),
            (f"{key}.npy", bytes([number % 256]) * 5),
        ]
    return files


class Decode(ProcessingStage[ImageBatch, ImageBatch]):
    """Asks for pixels, and notes how bright each image is."""

    name = "decode"

    def process(self, task: ImageBatch) -> ImageBatch:
        import pyarrow as pa

        batch = decoded(task, self)
        means = [float(pixels.mean()) for pixels in batch.objects["pixels"]]
        return batch.with_column("brightness", pa.array(means, pa.float64()))


def run(*stages: Any, executor: Any = INLINE, max_errors: Any = None, **options: Any) -> Any:
    return Pipeline("images", stages=list(stages)).run(executor, max_errors=max_errors, **options)


def rows(*stages: Any, **options: Any) -> list[dict[str, Any]]:
    return [row for batch in run(*stages, **options) for row in batch.to_rows()]


def contents(folder: Path) -> Mapping[str, bytes]:
    """Every file that was written, by name; the manifest tells of times and is left out."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found if "_manifest" not in path.name}
