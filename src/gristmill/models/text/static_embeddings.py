"""Static embeddings: the embedding of a text is the mean of the vectors of its tokens, without any context.

    wordllama     weights/*.safetensors of the package, with the tokenizer beside it
    model2vec     a folder with model.safetensors, tokenizer.json and config.json (potion and others)

A text is split at white space, and the tokens of each word are looked up once and kept. That makes it many times as
fast as tokenising whole texts. The matrix is memory-mapped, so all workers of a machine share it.

Gives up: tokens of white space itself, which a few tokenizers have (runs of spaces, line feeds).
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.errors import InputError, require
from gristmill.models.model_loader import Array
from gristmill.models.text.text_tokenizer import read_json
from gristmill.models.weights import read_weights

MOST_WORDS = 1_000_000
"""Words whose tokens are kept; when there are more, all are forgotten, and frequent ones soon return."""

_NAMES = ("embeddings", "embedding.weight", "embedding", "weight")
_SPACE = " "


@dataclass(frozen=True)
class StaticFiles:
    """What a static model is made of."""

    vectors: Array
    token_weights: Array | None
    mapping: Array | None
    tokenizer: Path
    normalise: bool

    @classmethod
    def read(cls, place: Path) -> StaticFiles:
        file = place if place.is_file() else place / "model.safetensors"
        if not file.is_file():
            raise InputError(f"{place} is not a static model: it has no model.safetensors")
        weights = read_weights(file)
        name = next((name for name in _NAMES if name in weights and weights[name].ndim == 2), None)
        if name is None:
            raise InputError(f"{file} is not a static model: it has no matrix {' or '.join(_NAMES)}")
        config = read_json(file.parent / "config.json")
        return cls(
            weights[name],
            weights.get("weights"),
            weights.get("mapping"),
            _tokenizer_beside(file),
            bool(config.get("normalize", True)),
        )

    def matrix(self, width: int) -> Array:
        """The vector of each token."""
        rows = self.vectors if self.mapping is None else self.vectors[self.mapping.astype(np.int64)]
        if self.token_weights is not None:
            rows = rows * self.token_weights.astype(np.float32)[:, None]
        return np.ascontiguousarray(rows[:, :width], np.float32)


def _tokenizer_beside(file: Path) -> Path:
    """tokenizer.json in the folder; or in `tokenizers` beside the folder, as wordllama has it."""
    own = file.parent / "tokenizer.json"
    if own.is_file():
        return own
    stem = file.stem.rpartition("_")[0]
    packaged = file.parent.parent / "tokenizers" / f"{stem}_tokenizer_config.json"
    if packaged.is_file():
        return packaged
    raise InputError(f"{file} has no tokenizer.json beside it: download the model again with all its files")


class StaticEmbeddings:
    """Embeds texts. `dim` keeps only the first numbers, for models that were trained for it."""

    def __init__(self, place: Path, dim: int | None = None, normalise: bool | None = None) -> None:
        files = StaticFiles.read(place)
        if dim is not None and not 1 <= dim <= files.vectors.shape[1]:
            raise InputError(f"{place} has vectors of {files.vectors.shape[1]} numbers, and dim is {dim}")
        self.width = dim or int(files.vectors.shape[1])
        self.normalise = files.normalise if normalise is None else normalise
        self._matrix = files.matrix(self.width)
        self._ids_of = _word_tokens(files.tokenizer)
        self._forget()

    def _forget(self) -> None:
        self._words: dict[str, int] = {}
        self._tokens, self._starts = array("i"), array("q", [0])

    def embed(self, texts: pa.Array) -> Array:
        """One row for each text; zeros for a text without words. What a text gives does not depend on the others."""
        texts = pc.fill_null(texts.cast(pa.string()), literal("", pa.string()))
        words = pc.ascii_split_whitespace(texts)
        encoded = words.flatten().dictionary_encode()
        numbers = self._numbers(encoded.dictionary.to_pylist())
        ids = np.ascontiguousarray(numbers[encoded.indices.to_numpy()])
        offsets = words.offsets.to_numpy().astype(np.int64)
        sums, counts = self._summed(ids, np.ascontiguousarray(offsets[1:] - offsets[0]))
        return self._finished(sums, counts)

    def _finished(self, sums: Array, counts: Array) -> Array:
        rows: Array = sums / np.maximum(counts, 1).astype(np.float32)[:, None]
        if self.normalise:
            length = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
            rows = (rows / np.where(length > 0, length, 1.0)[:, None]).astype(np.float32)
        return rows

    def _numbers(self, words: Sequence[str]) -> Array:
        """The number of each word. Words that are new are tokenised."""
        if len(self._words) + len(words) > MOST_WORDS:
            self._forget()
        find = self._words.get
        numbers = np.array([find(word, -1) for word in words], np.int32)
        unknown = np.flatnonzero(numbers < 0)
        new = [words[place] for place in unknown.tolist()]
        numbers[unknown] = np.arange(len(self._words), len(self._words) + len(new))
        for number, (word, ids) in enumerate(zip(new, self._ids_of(new), strict=True), len(self._words)):
            self._tokens.extend(ids)
            self._starts.append(len(self._tokens))
            self._words[word] = number
        return numbers

    def _summed(self, words: Array, ends: Array) -> tuple[Array, Array]:
        if kernels is None:
            return self._summed_in_python(words, ends)
        sums, counts = kernels.token_sums(self._matrix, (self._tokens, self._starts), (words, ends), self.width)
        return np.frombuffer(sums, np.float32).reshape(-1, self.width), np.frombuffer(counts, np.int64)

    def _summed_in_python(self, words: Array, ends: Array) -> tuple[Array, Array]:
        """What the kernel computes."""
        sums, counts, start = np.zeros((len(ends), self.width), np.float32), np.zeros(len(ends), np.int64), 0
        for text, end in enumerate(ends.tolist()):
            for word in words[start:end].tolist():
                for token in self._tokens[self._starts[word] : self._starts[word + 1]]:
                    sums[text] += self._matrix[token]
                    counts[text] += 1
            start = end
        return sums, counts


def _word_tokens(file: Path) -> Callable[[Sequence[str]], list[list[int]]]:
    """Tokenises single words as they are tokenised within a text."""
    tokenizers = require("tokenizers", "tokenizers", "tokenising for static embeddings")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # each worker has one core
    tool: Any = tokenizers.Tokenizer.from_file(str(file))
    tool.no_padding()
    tool.no_truncation()
    encode: Any = getattr(tool, "encode_batch_fast", None) or tool.encode_batch

    def ids_of(words: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in encode(list(words), add_special_tokens=False)]

    first, second, both = ids_of(["the", "cat", "the cat"])
    if first + second == both:
        return ids_of
    return lambda words: ids_of([_SPACE + word for word in words])  # a word after another has its space with it
