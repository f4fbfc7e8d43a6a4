"""Figure: read, change, filter and write documents of text and pictures. Tars of MINT-1T, pictures of about 20 kB.

CPU seconds of one process for the same tars: Gristmill's pipelines, and a plain loop with `tarfile`, `orjson` and
pyarrow that makes the same Parquet of items, with neither quarantine nor any promise. Also what it costs that items
follow a text that was changed, beside the same change of the text alone.
"""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from process_measurement import WORK, stable

from gristmill import LocalExecutor, Pipeline
from gristmill.interleaved import InterleavedBatch, InterleavedParquetWriterStage, InterleavedWebdatasetReader
from gristmill.samples.batch import DocumentBatch
from gristmill.text import Modify

HERE = LocalExecutor(num_workers=0)
PARAGRAPH = "The mill by the river has ground the corn of the village for three hundred years, and still turns. " * 4


def run(rounds: int = 3, documents: int = 2000) -> dict[str, Any]:
    path = tars(documents)
    size = path.stat().st_size / 1e6
    cases: dict[str, Callable[[], int]] = {
        "read": lambda: _pipeline(path, []),
        "read_loop": lambda: len(_loop(path, with_pictures=False)),
        "read_write": lambda: _pipeline(path, [InterleavedParquetWriterStage(str(WORK / "interleaved-out"))]),
        "read_write_loop": lambda: _write_loop(path),
    }
    found: dict[str, list[float]] = {}
    following: list[float] = []
    for name, case in cases.items():
        case()
        assert name
    for _ in range(rounds):
        for name, case in cases.items():
            began = time.process_time()
            case()
            found.setdefault(name, []).append(time.process_time() - began)
        following.append(_following(path))
    return {
        "documents": documents,
        "archive_mb": round(size, 1),
        **{f"{name}_us": stable([1e6 * one / documents for one in values]) for name, values in found.items()},
        "read_over_loop": stable([a / b for a, b in zip(found["read"], found["read_loop"], strict=True)]),
        "read_write_over_loop": stable(
            [a / b for a, b in zip(found["read_write"], found["read_write_loop"], strict=True)]
        ),
        "items_follow_us": stable([1e6 * one / documents for one in following]),
    }


def tars(documents: int) -> Path:
    """A tar of documents, each with five texts and two pictures, made once."""
    path = WORK / f"mint-{documents}.tar"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    with tarfile.open(path.with_suffix(".new"), "w") as tar:
        for number in range(documents):
            key = f"{number:06}"
            texts = [f"{number} {PARAGRAPH}", None, PARAGRAPH, PARAGRAPH, None, PARAGRAPH, "The end."]
            images = [None, f"{key}.0.jpg", None, None, f"{key}.1.jpg", None, None]
            files = {f"{key}.json": orjson.dumps({"texts": texts, "images": images, "url": f"https://a.b/{key}"})}
            files |= {f"{key}.{at}.jpg": random.bytes(20_000) for at in range(2)}
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    path.with_suffix(".new").rename(path)
    return path


def _pipeline(path: Path, stages: list[Any]) -> int:
    done = Pipeline("interleaved", stages=[InterleavedWebdatasetReader(str(path)), *stages]).run(HERE)
    return sum(task.num_items for task in done)


def _loop(path: Path, with_pictures: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with tarfile.open(path) as tar:
        pictures: dict[str, Any] = {}
        members = list(tar)
        for member in members:
            if not member.name.endswith(".json"):
                pictures[member.name] = member
        for member in members:
            if member.name.endswith(".json"):
                content = orjson.loads(tar.extractfile(member).read())  # type: ignore[union-attr]
                for position, (text, image) in enumerate(zip(content["texts"], content["images"], strict=True)):
                    place = pictures.get(image)
                    data = tar.extractfile(place).read() if place is not None and with_pictures else None  # type: ignore[union-attr]
                    offset = None if place is None else place.offset_data
                    row = {"sample_id": member.name[:-5], "position": position, "text_content": text}
                    rows.append({**row, "binary_content": data, "offset": offset})
    return rows


def _write_loop(path: Path) -> int:
    rows = _loop(path, with_pictures=True)
    schema = [("sample_id", pa.string()), ("position", pa.int32()), ("text_content", pa.string())]
    schema += [("binary_content", pa.large_binary()), ("offset", pa.int64())]
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(schema)), WORK / "loop.parquet", compression="zstd")
    return len(rows)


def _following(path: Path) -> float:
    """The seconds that items take to follow a change of every text."""
    batches = [
        InterleavedBatch(task.data) for task in Pipeline("r", stages=[InterleavedWebdatasetReader(str(path))]).run(HERE)
    ]
    stage = Modify(lambda text: text.replace("mill", "MILL"))
    spent = []
    for kind in (DocumentBatch, InterleavedBatch):
        tasks = [batch if kind is InterleavedBatch else DocumentBatch(batch.data) for batch in batches]
        began = time.process_time()
        for task in tasks:
            stage.process(task)
        spent.append(time.process_time() - began)
    return spent[1] - spent[0]


if __name__ == "__main__":
    print(orjson.dumps(run(), option=orjson.OPT_INDENT_2).decode())
