"""Tokenises documents for text models with the `tokenizer.json` of a model, in Rust.

A model takes a limited number of tokens. A document that has more is cut for the model only; its text stays as it is.
Only the beginning of a very long document is tokenised: as many characters as the limit surely needs, and more if those
turn out to be too few.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gristmill.core.errors import InputError, require

DEFAULT_MAX_TOKENS = 512
CHARS_PER_TOKEN = 8
"""Of a long document this many characters for each token are tokenised first: English has about 4.5."""

MARGIN = 16
"""Tokens at the end of the part that was tokenised, which may be others in the whole document."""

_ENDLESS = 1_000_000
"""`model_max_length` above this means that the model has no limit."""


class TextTokenizer:
    """Turns documents into lists of token ids with the special tokens of the model."""

    def __init__(self, place: Path, max_tokens: int | None = None, max_chars: int | None = None) -> None:
        file = tokenizer_file(place)
        tokenizers = require("tokenizers", "tokenizers", f"tokenising for the model in {place}")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # each worker has one core
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:
            raise InputError(f"{file} is not a tokenizer: {error}. Download the model again") from error
        self.max_tokens = max_tokens or model_max_tokens(place, self._tokenizer)
        self.max_chars = max_chars
        self.pad_id = pad_id_of(place, self._tokenizer)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()  # what is cut is cut here, so that long documents are tokenised once
        self._encode: Any = getattr(self._tokenizer, "encode_batch_fast", None) or self._tokenizer.encode_batch
        self._end = self._ids_at_end()

    def __call__(self, texts: Sequence[str | None]) -> list[list[int]]:
        """The token ids of each document. Null is tokenised like the empty document."""
        whole = [(text or "")[: self.max_chars] for text in texts]
        enough = CHARS_PER_TOKEN * (self.max_tokens + MARGIN)
        ids: list[list[int]] = [one.ids for one in self._encode([text[:enough] for text in whole])]
        settled = self.max_tokens + MARGIN
        short = [row for row, text in enumerate(whole) if len(text) > enough and len(ids[row]) < settled]
        for row, one in zip(short, self._encode([whole[row] for row in short]), strict=True):
            ids[row] = one.ids
        return [self._cut(row) for row in ids]

    def _cut(self, ids: list[int]) -> list[int]:
        if len(ids) <= self.max_tokens:
            return ids
        return ids[: self.max_tokens - len(self._end)] + self._end

    def _ids_at_end(self) -> list[int]:
        """The special tokens that end every document."""
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        full: list[int] = self._tokenizer.encode("a").ids
        starts = (start for start in range(len(full)) if full[start : start + len(plain)] == plain)
        return full[next(starts, len(full)) + len(plain) :]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text


def tokenizer_file(place: Path) -> Path:
    """The `tokenizer.json` of a model: in its folder, or in the one above for `onnx/model.onnx`."""
    folder = place.parent if place.is_file() else place
    for candidate in (folder / "tokenizer.json", folder.parent / "tokenizer.json"):
        if candidate.is_file() and (folder.name == "onnx" or candidate.parent == folder):
            return candidate
    raise InputError(
        f"{place} has no tokenizer.json: download the model again with all its files, or write one with "
        "AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers"
    )


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object of a model folder; empty if there is no such file."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text())
    except ValueError as error:
        raise InputError(f"{file} is not JSON: {error}. Download the model again") from error
    return content if isinstance(content, dict) else {}


def model_max_tokens(place: Path, tokenizer: Any) -> int:
    """The number of tokens that a model was made for, as its files say."""
    folder = place.parent if place.is_file() else place
    truncation = tokenizer.truncation or {}
    found = [
        read_json(folder / "sentence_bert_config.json").get("max_seq_length"),
        read_json(folder / "tokenizer_config.json").get("model_max_length"),
        read_json(folder / "config.json").get("max_position_embeddings"),
        truncation.get("max_length"),
    ]
    numbers = [int(one) for one in found if isinstance(one, int | float) and 0 < one < _ENDLESS]
    return numbers[0] if numbers else DEFAULT_MAX_TOKENS


def pad_id_of(place: Path, tokenizer: Any) -> int:
    folder = place.parent if place.is_file() else place
    given = read_json(folder / "config.json").get("pad_token_id")
    padding = tokenizer.padding or {}
    return int(given if isinstance(given, int) else padding.get("pad_id", 0))
