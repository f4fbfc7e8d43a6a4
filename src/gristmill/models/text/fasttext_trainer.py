"""Trains fastText classifiers and writes them as files that every fastText library reads.

The rows of a text (words, pairs of words, n-grams of characters) are found by the kernel that also predicts, so what is
trained is what is read later. Training is one thread and seeded: the same labelled texts give the same bytes.

Gives up: losses other than the softmax, pretrained vectors, and quantised files. Without the C kernels nothing is
trained.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.errors import MissingDependencyError, PlanError
from gristmill.models.fasttext_file import MAGIC, SUPERVISED, VERSION
from gristmill.models.fasttext_model import LABEL
from gristmill.models.model_loader import Array

END_OF_LINE = "</s>"
SOFTMAX = 3
LEAST_BUCKETS, MOST_BUCKETS = 2**14, 2**21
_CHUNK = 4096
_BLANK = re.compile(r"\s+")


@dataclass(frozen=True)
class FastTextSettings:
    """How a model is trained. The names are those of the library."""

    dim: int = 16
    lr: float = 0.5
    epoch: int = 5
    word_ngrams: int = 2
    minn: int = 0
    maxn: int = 0
    min_count: int = 2
    bucket: int | None = None
    """How many rows n-grams share; None: a power of two by the size of the texts."""
    max_words: int = 1_000_000
    seed: int = 42


@dataclass(frozen=True)
class TrainedFastText:
    """A trained model: what its file says."""

    settings: FastTextSettings
    words: Sequence[tuple[str, int]]
    labels: Sequence[tuple[str, int]]
    bucket: int
    matrix: Array = field(repr=False)
    label_matrix: Array = field(repr=False)
    tokens: int = 0
    loss: float = 0.0

    def write(self, path: Path) -> None:
        with open(path, "wb") as file:
            file.write(self._head())
            for matrix in (self.matrix, self.label_matrix):
                file.write(struct.pack("<?qq", False, *matrix.shape))
                file.write(np.ascontiguousarray(matrix, "<f4").data)

    def _head(self) -> bytes:
        settings, words, labels = self.settings, self.words, self.labels
        ngrams = settings.word_ngrams if self.bucket else 1
        numbers = (
            settings.dim, 5, settings.epoch, settings.min_count, 5, ngrams, SOFTMAX, SUPERVISED, self.bucket,
            settings.minn, settings.maxn, 100, 1e-4,
        )  # fmt: skip
        parts = [struct.pack("<ii12id", MAGIC, VERSION, *numbers)]
        parts.append(struct.pack("<iiiqq", len(words) + len(labels), len(words), len(labels), self.tokens, -1))
        for kind, entries in ((0, words), (1, labels)):
            parts += [name.encode() + struct.pack("<xqb", count, kind) for name, count in entries]
        return b"".join(parts)


def train_fasttext(texts: pa.Array, labels: Sequence[str], settings: FastTextSettings | None = None) -> TrainedFastText:
    """Train a model on texts and their labels."""
    if kernels is None:
        raise MissingDependencyError("training fastText needs the C kernels, which were not built")
    settings = settings or FastTextSettings()
    names = label_counts(labels)
    if len(names) < 2:
        raise PlanError(f"training needs two labels or more, and there is {names[0][0] if names else 'none'}")
    texts = pc.fill_null(texts.cast(pa.string()), literal("", pa.string()))
    words, tokens = _count_words(texts, settings)
    bucket = _bucket(settings, tokens)
    draw = np.random.Generator(np.random.PCG64(settings.seed))
    rows = len(words) + bucket
    matrix = draw.random((rows, settings.dim), np.float32) * np.float32(2 / settings.dim) - np.float32(1 / settings.dim)
    label_matrix = np.zeros((len(names), settings.dim), np.float32)
    ends, ids = _rows_of(texts, words, names, bucket, settings)
    numbers = {name: number for number, (name, _) in enumerate(names)}
    wanted = np.array([numbers[fasttext_label(label)] for label in labels], np.int32)
    shape = (settings.dim, settings.epoch, settings.seed)
    loss = kernels.fasttext_fit((ends, ids, wanted), (matrix, label_matrix), shape, settings.lr)
    return TrainedFastText(settings, words, names, bucket, matrix, label_matrix, tokens, loss)


def fasttext_label(label: str) -> str:
    """A label as fastText files have it: without white space, after a prefix."""
    return LABEL + _BLANK.sub("-", label.strip())


def label_counts(labels: Sequence[str]) -> list[tuple[str, int]]:
    """The labels of a file, the most frequent first."""
    counts = Counter(map(fasttext_label, labels))
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))


def _count_words(texts: pa.Array, settings: FastTextSettings) -> tuple[list[tuple[str, int]], int]:
    """The words that are frequent enough, the most frequent first, and how many words there are in all."""
    counts: Counter[str] = Counter({END_OF_LINE: len(texts)})
    for start in range(0, len(texts), _CHUNK):
        some = pc.replace_substring(texts.slice(start, _CHUNK), "\0", " ")
        found = pc.value_counts(pc.ascii_split_whitespace(some).flatten())
        for word, count in zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True):
            counts[word] += count
    total = sum(counts.values())
    kept = [
        (word, count)
        for word, count in counts.items()
        if word == END_OF_LINE or (word and count >= settings.min_count and not word.startswith(LABEL))
    ]
    kept.sort(key=lambda one: (-one[1], one[0]))
    return kept[: settings.max_words], total


def _bucket(settings: FastTextSettings, tokens: int) -> int:
    if settings.word_ngrams < 2 and settings.maxn < 1:
        return 0
    if settings.bucket:
        return settings.bucket
    return min(MOST_BUCKETS, max(LEAST_BUCKETS, 1 << (tokens // 4).bit_length()))


def _rows_of(
    texts: pa.Array,
    words: Sequence[tuple[str, int]],
    names: Sequence[tuple[str, int]],
    bucket: int,
    settings: FastTextSettings,
) -> tuple[bytes, bytes]:
    """The rows of each text, as the kernel finds them when it predicts."""
    entries = make_array([name.encode() for name, _ in [*words, *names]], pa.large_binary())
    ngrams = settings.word_ngrams if bucket else 1
    numbers = (1, len(words), max(1, bucket), settings.minn, settings.maxn, ngrams, SOFTMAX, False)
    zeros: Any = np.zeros(len(words) + bucket, np.float32)
    buffers = (zeros, b"", b"", b"", np.zeros(len(names), np.float32), np.ones(len(names), np.float32), b"")
    found: tuple[bytes, bytes] = kernels.fasttext_rows(kernels.fasttext_open(entries, numbers, buffers), texts)
    return found
