"""A seeded corpus for fault injection: JSON lines of many sizes, and which of its rows must come out."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path

MIN_WORDS = 20
_WORDS = ["grist", "mill", "flour", "Mühle", "石臼", "мельница", "wheat 🌾", "stone", "sieve", "bran"]
_PLAIN = ["a", "größe b", "c", "deep/d", "deep/größe e", "f", "g", "h"]
_PACKED = "packed.jsonl.gz"


@dataclass(frozen=True)
class Corpus:
    """A folder of files, the ids of the rows in them, and of those that pass the filter."""

    folder: Path
    names: frozenset[str]
    kept: frozenset[str]

    @property
    def rows(self) -> int:
        return len(self.names)


def make_corpus(folder: Path, seed: int, rows: int = 2000, packed: float = 0.4) -> Corpus:
    """Files of a few rows and of many, an empty one, one of which nothing is kept, and a compressed one.

    The compressed one, which a worker reads as a stream, has the share `packed` of the rows.
    """
    rng = random.Random(seed)
    sizes = _sizes(rng, rows, packed)
    names, kept = set[str](), set[str]()
    for name, size in sizes.items():
        documents = [_document(rng, f"{seed}/{name}/{row}", name) for row in range(size)]
        _write(folder / name, documents)
        names |= {row["id"] for row, _ in documents}
        kept |= {row["id"] for row, words in documents if words >= MIN_WORDS}
    return Corpus(folder, frozenset(names), frozenset(kept))


def _sizes(rng: random.Random, rows: int, packed: float) -> dict[str, int]:
    shares = [rng.random() ** 2 + 0.02 for _ in _PLAIN]
    plain = rows * (1 - packed) / sum(shares)
    sizes = {f"{name}.jsonl": max(1, int(plain * share)) for name, share in zip(_PLAIN, shares, strict=True)}
    return {**sizes, "empty.jsonl": 0, "short.jsonl": max(1, rows // 50), _PACKED: int(rows * packed)}


def _document(rng: random.Random, name: str, file: str) -> tuple[dict[str, str], int]:
    """A row, and how many words it has without its URLs."""
    count = rng.randrange(MIN_WORDS if file == "short.jsonl" else 3 * MIN_WORDS)
    texts = rng.choices(_WORDS, k=count)
    words = sum(len(text.split()) for text in texts)
    if file == "short.jsonl":
        texts, words = texts[:1], min(words, 2)
    for _ in range(rng.randrange(3)):
        texts.insert(rng.randrange(len(texts) + 1), f"https://example.org/{rng.randrange(10**6)}")
    return {"id": name, "text": " ".join(texts)}, words


def _write(path: Path, documents: list[tuple[dict[str, str], int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row, _ in documents).encode()
    path.write_bytes(gzip.compress(lines, mtime=0) if path.suffix == ".gz" else lines)
