"""Makes text corpora for the benchmarks, of any size, without a network: the same bytes on every machine.

Documents are shuffled sentences of the bundled demo corpus, one language per document, about 2.6 KB per line, with
the noise of the web mixed in: menus, spam, symbols, links, curly quotes, mojibake, runs of blank lines. A smaller
corpus is the beginning of a larger one. Nothing here is meant to be read; it only has to cost what web text costs.

    python benchmarks/corpus.py 100MB [--files 8] [--gz]
"""

from __future__ import annotations

import argparse
import gzip
import io
import random
import re
from collections.abc import Iterator
from pathlib import Path

import orjson

HERE = Path(__file__).resolve().parent
DEMO = HERE.parent / "examples" / "demo" / "data"
WORK = HERE / "work"
SEED = 20261
VERSION = 1  # part of the file names: raise it when the bytes change

_SENTENCE = re.compile(r"(?<=[.!?…。])\s+|\n+")
_TEXT_BYTES = 2460  # mean; a line has about 140 bytes of other fields and JSON


def corpus(size: int, files: int = 1, gz: bool = False) -> list[Path]:
    """The files of a corpus of about `size` bytes (before compression), made if they are not there yet."""
    folder = WORK / f"corpus-v{VERSION}-{size // 10**6}mb-{files}{'-gz' if gz else ''}"
    extension = ".jsonl.gz" if gz else ".jsonl"
    paths = [folder / f"part-{index:02}{extension}" for index in range(files)]
    if not all(path.exists() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        lines = documents()
        for path in paths:
            _write(path, lines, size // files)
    return paths


def _write(path: Path, lines: Iterator[bytes], size: int) -> None:
    draft = path.with_name(path.name + ".draft")
    with open(draft, "wb") as raw:
        packed = gzip.GzipFile("", "wb", 1, raw, mtime=0) if path.suffix == ".gz" else None
        with io.BufferedWriter(packed or raw, 2**20) as file:
            written = 0
            while written < size:
                written += file.write(next(lines))
    draft.replace(path)


def documents(seed: int = SEED) -> Iterator[bytes]:
    """Lines of JSON without end."""
    pools = sentences()
    names = sorted(pools)
    draw = random.Random(seed)
    weights = [24.0 if name == "en" else 1.0 for name in names]  # about 70 % English
    number = 0
    while True:
        languages = draw.choices(names, weights, k=256)
        for language in languages:
            text = _noise(draw, _prose(draw, pools[language]))
            number += 1
            yield orjson.dumps(
                {
                    "id": f"doc-{number:09}",
                    "url": f"https://site-{draw.randrange(5000)}.example/{language}/{number}",
                    "lang": language,
                    "text": text,
                },
                option=orjson.OPT_APPEND_NEWLINE,
            )


def sentences() -> dict[str, list[str]]:
    """The sentences of the demo corpus by language."""
    pools: dict[str, dict[str, None]] = {}
    for path in sorted(DEMO.glob("*.jsonl*")):
        for line in _lines(path):
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if isinstance(record, dict) and record.get("source") != "crawl" and isinstance(record.get("text"), str):
                parts = [part for part in _SENTENCE.split(record["text"]) if len(part) > 3]
                pools.setdefault(str(record.get("lang")), {}).update(dict.fromkeys(parts))
    return {language: list(pool) for language, pool in pools.items() if len(pool) > 200}


def _lines(path: Path) -> list[bytes]:
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes()).splitlines()
    if path.suffix == ".zst":
        import pyarrow as pa

        with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as stream:
            return stream.read().splitlines()
    return path.read_bytes().splitlines()


def _prose(draw: random.Random, pool: list[str]) -> str:
    """Sentences in paragraphs; lengths are spread widely, as they are on the web."""
    wanted = min(draw.lognormvariate(0, 0.9) * _TEXT_BYTES / 1.45, 60_000)
    pieces: list[str] = []
    size = 0
    while size < wanted:
        sentence = pool[int(draw.random() * len(pool))]
        size += len(sentence) if sentence.isascii() else len(sentence.encode())
        pieces.append(sentence)
        pieces.append("\n\n" if draw.random() < 0.2 else " ")
    return "".join(pieces[:-1])


def _noise(draw: random.Random, text: str) -> str:
    kind = draw.random()
    if kind < 0.03:  # a menu or a list of keywords
        words = text.split()[:60]
        return " | ".join(words)
    if kind < 0.05:
        return "".join(draw.choices("#*=-_~|<>%$&0123456789 ", k=draw.randrange(200, 3000)))
    if kind < 0.08:  # too short
        return text[: draw.randrange(80)]
    if kind < 0.12:
        return text + "".join(f"\nhttps://link-{draw.randrange(10**6)}.example/page" for _ in range(draw.randrange(30)))
    if kind < 0.20:
        return text.replace('"', "“").replace("'", "’")
    if kind < 0.22:
        return text.encode().decode("latin-1")  # mojibake
    if kind < 0.26:
        return text.replace("\n\n", "\n\n\n\n\n")
    if kind < 0.30:  # cut in the middle of a sentence
        return text[: int(len(text) * draw.random())]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", help="such as 13MB or 1GB")
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--gz", action="store_true")
    options = parser.parse_args()
    number, unit = re.fullmatch(r"(\d+)\s*([kMG]?)B?", options.size).groups()
    for path in corpus(int(number) * {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[unit], options.files, options.gz):
        print(f"{path.stat().st_size:>14,}  {path}")


if __name__ == "__main__":
    main()
