"""Captions as a model takes them: token numbers from the `tokenizer.json` beside it.

Captions are cut at the model's length, and filled up to the next multiple of `PADDING_STEP`: short ones cost less, and what a
caption is filled up to depends on nothing but itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gristmill.core.errors import InputError, require
from gristmill.models.model import Array

PADDING_STEP = 16


class CaptionTokenizer:
    """Turns captions into token numbers, one array for each."""

    def __init__(self, place: Path) -> None:
        file = place / "tokenizer.json"
        if not file.is_file():
            raise InputError(
                f"{place} has no tokenizer.json, which captions need: fetch the model again, with all files"
            )
        tokenizers = require("tokenizers", "tokenizers", "reading captions")
        config = json.loads((place / "config.json").read_text()) if (place / "config.json").is_file() else {}
        text = config.get("text_config") or {}
        self.max_tokens = int(text.get("max_position_embeddings", 77))
        self.tokenizer = tokenizers.Tokenizer.from_file(str(file))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.max_tokens)

    def __call__(self, captions: Sequence[str]) -> list[Array]:
        return [self._padded(found.ids) for found in self.tokenizer.encode_batch(list(captions))]

    def _padded(self, ids: list[int]) -> Array:
        length = min(self.max_tokens, -(-len(ids) // PADDING_STEP) * PADDING_STEP)
        return np.array(ids + [0] * (length - len(ids)), np.int64)
