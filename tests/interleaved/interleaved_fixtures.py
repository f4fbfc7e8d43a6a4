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


def pdf(*pages: Sequence[tuple[str, float, float] | tuple[bytes, float, float, float, float]]) -> bytes:
    """A PDF, written by hand. A page has lines (text, x, y) and JPEG pictures (data, x, y, width, height)."""
    objects: list[bytes] = [b"", b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for parts in pages:
        shown, named = [], []
        for part in parts:
            if isinstance(part[0], str):
                shown.append(f"BT /F1 12 Tf {part[1]} {part[2]} Td ({part[0]}) Tj ET")
                continue
            data, x, y, width, height = part  # type: ignore[misc]
            with Image.open(io.BytesIO(data)) as image:
                size = image.size
            head = f"<< /Type /XObject /Subtype /Image /Width {size[0]} /Height {size[1]} /ColorSpace /DeviceRGB "
            head += f"/BitsPerComponent 8 /Filter /DCTDecode /Length {len(data)} >>\nstream\n"
            objects.append(head.encode() + data + b"\nendstream")
            named.append(f"/I{len(objects)} {len(objects)} 0 R")
            shown.append(f"q {width} 0 0 {height} {x} {y} cm /I{len(objects)} Do Q")
        content = "\n".join(shown).encode()
        objects.append(b"<< /Length %d >>\nstream\n%b\nendstream" % (len(content), content))
        resources = f"<< /Font << /F1 3 0 R >> /XObject << {' '.join(named)} >> >>"
        page = f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {len(objects)} 0 R "
        page += f"/Resources {resources} >>"
        objects.append(page.encode())
        kids.append(f"{len(objects)} 0 R")
    objects[0] = b"<< /Type /Catalog /Pages 2 0 R >>"
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>".encode()
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    size = len(objects) + 1
    end = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\n"
    end += f"startxref\n{len(out)}\n%%EOF\n"
    return out + end.encode()
