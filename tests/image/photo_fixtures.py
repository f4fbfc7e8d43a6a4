"""Real photographs, and what happens to them in the world."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from gristmill import LocalExecutor, Pipeline
from gristmill.image.batch import ImageBatch

FOLDER = Path(__file__).parent / "photos"
NAMES = ("astronaut", "chelsea", "coffee", "rocket")


def photo(name: str) -> Image.Image:
    return Image.open(FOLDER / f"{name}.jpg").convert("RGB")


def saved(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    data = BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def copies(name: str) -> dict[str, bytes]:
    """A photograph as it was, and as it comes again."""
    image = photo(name)
    return {
        "original": (FOLDER / f"{name}.jpg").read_bytes(),
        "low quality": saved(image, quality=30),
        "half size": saved(image.resize((image.width // 2, image.height // 2)), quality=85),
        "larger": saved(image.resize((image.width * 2, image.height * 2), Image.Resampling.BICUBIC), quality=90),
        "png": saved(image, "PNG"),
        "webp": saved(image, "WEBP", quality=60),
        "brighter": saved(image.point(lambda value: min(255, int(value * 1.1 + 8))), quality=80),
    }


def tiled(image: Image.Image) -> Image.Image:
    """With a mark laid over it again and again."""
    over = Image.new("RGBA", image.size, (0, 0, 0, 0))
    pen, font = ImageDraw.Draw(over), ImageFont.load_default(20)
    for top in range(0, image.height, 70):
        for left in range(0, image.width, 110):
            pen.text((left + top // 70 % 2 * 30, top), "(c) STOCK", fill=(255, 255, 255, 110), font=font)
    return Image.alpha_composite(image.convert("RGBA"), over).convert("RGB")


def letterboxed(image: Image.Image) -> Image.Image:
    wide = Image.new("RGB", (image.width, image.height * 3 // 2))
    wide.paste(image, (0, image.height // 4))
    return wide


def printed() -> Image.Image:
    page = Image.new("RGB", (400, 300), "white")
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(14)
    for line in range(18):
        pen.text((6, 16 * line), "Raw data in, training data out: a line of print, again", fill="black", font=font)
    return page


def blurred(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(4))


def noise(seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (300, 300, 3), dtype=np.uint8))


def batch(images: list[bytes | None], **columns: list[Any]) -> ImageBatch:
    table = {"id": list(range(len(images))), "image": pa.array(images, pa.large_binary()), **columns}
    return ImageBatch(pa.table(table))


def rows(stages: list[Any], *batches: ImageBatch, **settings: Any) -> list[dict[str, Any]]:
    result = Pipeline("p", stages=stages).run(LocalExecutor(0), initial_tasks=list(batches), **settings)
    return [row for task in result for row in task.to_rows()]
