"""Tokenises captions with the `tokenizer.json` of a model.

Captions are truncated to the model's maximum length and padded to the next multiple of `PADDING_STEP`. So short
captions cost less, and the padding of a caption does not depend on its batch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gristmill.core.errors import InputError, require
from gristmill.models.model_loader import Array

PADDING_STEP = 16


class CaptionTokenizer:
    """Turns each caption into an array of token ids."""

    def __init__(self, place: Path) -> None:
        file = place / "tokenizer.json"
        if not file.is_file():
            raise InputError(
                f"{place} has no tokenizer.json, which captions need: download the model again with all its files"
            )
        tokenizers = require("tokenizers", "tokenizers", "tokenising captions")
        config = json.loads((place / "config.json").read_text()) if (place / "config.json").is_file() else {}
        text = config.get("text_config") or {}
        self.max_tokens = int(text.get("max_position_embeddings", 77))
        self.tokenizer = tokenizers.Tokenizer.from_file(str(file))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.max_tokens)

    def __call__(self, captions: Sequence[str]) -> list[Array]:
        return [self._padded(encoding.ids) for encoding in self.tokenizer.encode_batch(list(captions))]

    def _padded(self, ids: list[int]) -> Array:
        length = min(self.max_tokens, -(-len(ids) // PADDING_STEP) * PADDING_STEP)
        return np.array(ids + [0] * (length - len(ids)), np.int64)
