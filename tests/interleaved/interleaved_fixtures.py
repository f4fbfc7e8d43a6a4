"""Interleaved documents in every form, made here: tars of MINT-1T, Parquet, conversations, PDF and HTML."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gristmill import LocalExecutor, Pipeline
from gristmill.core.result import Result


def picture(number: int = 0, width: int = 48, height: int = 32, form: str = "PNG") -> bytes:
    """A small picture, different for each number."""
    pixels = np.random.default_rng(number).integers(0, 255, (height, width, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form)
    return out.getvalue()


def smooth_picture(width: int = 64, height: int = 64) -> bytes:
    ramp = np.linspace(0, 255, width, dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(np.broadcast_to(ramp[None, :, None], (height, width, 3)).copy()).save(out, "PNG")
    return out.getvalue()


def tar_bytes(files: Mapping[str, bytes] | Sequence[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items() if isinstance(files, Mapping) else files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def mint_files(key: str, texts: Sequence[str | None], images: Sequence[str | None], **more: Any) -> dict[str, bytes]:
    """The files of one document; images that are names of files beside it are made."""
    names = [name for name in images if name and "://" not in name]
    content = {"texts": list(texts), "images": list(images), **more}
    return {f"{key}.json": json.dumps(content).encode()} | {name: picture(at) for at, name in enumerate(names)}


def write_mint(folder: Path, documents: int = 6, per_tar: int = 3) -> Path:
    """Tars of documents, each with two pictures among three texts."""
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, documents, per_tar):
        files: dict[str, bytes] = {}
        for number in range(first, min(first + per_tar, documents)):
            key = f"doc{number:03}"
            texts = [f"Document {number} begins here.", None, "It goes on in the middle.", None, "And this is its end."]
            images = [None, f"{key}.0.png", None, f"{key}.1.png", None]
            files |= {
                f"{key}.json": json.dumps({"texts": texts, "images": images, "url": f"https://a.b/{number}"}).encode()
            }
            files |= {f"{key}.{at}.png": picture(10 * number + at) for at in (0, 1)}
        (folder / f"shard-{first // per_tar:04}.tar").write_bytes(tar_bytes(files))
    return folder


def run(*stages: Any, workers: int = 0, **settings: Any) -> Result:
    return Pipeline("interleaved", stages=list(stages)).run(LocalExecutor(num_workers=workers), **settings)


def rows(*stages: Any, **settings: Any) -> list[dict[str, Any]]:
    """The rows that leave a pipeline."""
    found: list[dict[str, Any]] = []
    for task in Pipeline("interleaved", stages=list(stages)).run(LocalExecutor(num_workers=0), **settings):
        found += task.to_rows()
    return found
