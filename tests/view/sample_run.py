"""A small run to look at: kept, dropped, quarantined and doubled rows, markup in the data, pictures and sound."""

from __future__ import annotations

import io
import json
import struct
import wave
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill import LocalExecutor, Pipeline
from gristmill.core.records.run_directory import LedgerEntry
from gristmill.core.records.run_record_store import RecordStore
from gristmill.dedup import ExactDeduplicationStage
from gristmill.text import (
    DocumentFilter,
    JsonlReader,
    JsonlWriter,
    MeanWordLengthFilter,
    ScoreFilter,
    WordCountFilter,
)

EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> two more words of text"
TWICE = "The mill by the river grinds what the farmers bring it, day and night"


class EvenFilter(DocumentFilter):
    """Keeps texts with an even number of characters."""

    def score_document(self, text: str) -> bool:
        return len(text) % 2 == 0

    def keep_document(self, score: bool) -> bool:
        return score


def text_of(part: int, row: int) -> str:
    if row == 7:
        return EVIL
    if row in (11, 12):
        return TWICE if row == 11 else TWICE.upper()
    return f"part {part} row {row} " + "grain " * (row % 10) + ("Straße ÜBER" if row == 20 else "")


def make_input(folder: Path, parts: int = 2, rows: int = 100) -> Path:
    folder.mkdir(parents=True)
    for part in range(parts):
        lines = [
            json.dumps(
                {
                    "id": f"{part}-{row}",
                    "text": text_of(part, row),
                    "language": "de" if row % 4 == 0 else "en",
                    "quality": row / 100,
                    "<b>odd</b>": "<i>value</i>",
                }
            )
            for row in range(rows)
        ]
        (folder / f"part-{part}.jsonl").write_text("\n".join([*lines, "broken <u>line</u>"]) + "\n")
    return folder


def stages(folder: Path, least: int = 8) -> list:
    return [
        JsonlReader(folder / "in"),
        ScoreFilter(WordCountFilter(min_words=least), score_field="words"),
        ExactDeduplicationStage(normalize=["case"]),
        JsonlWriter(folder / "out", mode="overwrite"),
    ]


def make_run(folder: Path, scores: bool = False) -> Path:
    make_input(folder / "in")
    pipeline = Pipeline("small <b>mill</b>", stages=stages(folder))
    pipeline.run(LocalExecutor(0), folder / "run", max_errors=None, rejected=True, scores=scores)
    return folder / "run"


def make_scored_run(folder: Path, doubles: bool = False) -> Path:
    """A run that keeps scores: of words, then by a filter that says yes or no, then the lengths of words."""
    make_input(folder / "in")
    steps = stages(folder)
    more = [ScoreFilter(EvenFilter()), ScoreFilter(MeanWordLengthFilter(min_mean_word_length=3.3))]
    pipeline = Pipeline("small <b>mill</b>", stages=[*steps[:2], *more, *steps[3 if doubles else 2 :]])
    pipeline.run(LocalExecutor(0), folder / "run", max_errors=None, rejected=True, scores=True)
    return folder / "run"


def add_source(run: Path, out: Path, name: str, rows: int) -> None:
    """What the ledger of a run says when one more source is done."""
    path = out / f"{name}.jsonl"
    path.write_text("".join(f'{{"id": "{name}-{row}", "text": "new {row}"}}\n' for row in range(rows)))
    written = [{"path": str(path), "size": path.stat().st_size, "checksum": ""}]
    entry = LedgerEntry.of(
        {"source": name, "fingerprint": "", "plan": "", "files": [], "rows": rows, "written": written}
    )
    line = {"source": entry.source, "fingerprint": "", "plan": "", "files": [], "rows": rows, "written": written}
    RecordStore(str(run)).write_lines(f"ledger/9{name}.jsonl", [json.dumps(line).encode()])


def png(red: int = 200) -> bytes:
    """A red square."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    raw = b"".join(b"\0" + bytes((red, 40, 40)) * 32 for _ in range(32))
    head = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def wav() -> bytes:
    """A tenth of a second of a tone."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(8000)
        file.writeframes(bytes(128 + (40 if step % 20 < 10 else -40) for step in range(800)))
    return out.getvalue()


def make_media(folder: Path) -> Path:
    """Pictures as bytes, as records of bytes and path, and as paths; and what only pretends to be one."""
    folder.mkdir(parents=True)
    (folder / "tone.wav").write_bytes(wav())
    (folder / "page.png").write_text("<html><script>document.title='owned'</script></html>")
    record = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table(
        {
            "id": ["a", "b", "c"],
            "image": pa.array([png(), b"<svg onload=alert(1)>", None], pa.binary()),
            "picture": pa.array([{"bytes": png(90), "path": "x.png"}, None, None], record),
            "audio": ["tone.wav", "page.png", "../../etc/passwd"],
        }
    )
    pq.write_table(table, folder / "media.parquet")
    return folder
