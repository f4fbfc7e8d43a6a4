"""ImageObject: one image as an object, for code that works on images one by one. Batches hold columns instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gristmill.image.decode import decode

COLUMN_BY_FIELD = {"embedding": "image_embedding"}
"""The columns of fields of `ImageObject` that have another name in batches."""

_FIELDS = ("image_path", "image_id", "metadata", "embedding", "aesthetic_score", "nsfw_score")


@dataclass
class ImageObject:
    """One image: `image_data` are its pixels (height, width, channels), the other fields columns of its row."""

    image_path: str = ""
    image_id: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    image_data: Any = None
    embedding: Any = None
    aesthetic_score: float | None = None
    nsfw_score: float | None = None


def objects_to_rows(objects: Sequence[ImageObject]) -> tuple[dict[str, list[Any]], list[Any] | None]:
    """The columns of images, and their pixels; None if they have none. Columns in which no image has a value are left
    out, except for the id."""
    columns = {COLUMN_BY_FIELD.get(name, name): [_plain(getattr(one, name)) for one in objects] for name in _FIELDS}
    columns = {name: values for name, values in columns.items() if name == "image_id" or any(map(_given, values))}
    pixels = [one.image_data for one in objects]
    return columns, None if all(one is None for one in pixels) else pixels


def row_to_object(row: dict[str, Any], encoded: bytes | None, pixels: Any) -> ImageObject:
    """An image of a row: its pixels are those given, or decoded from its bytes."""
    values = {name: row.get(COLUMN_BY_FIELD.get(name, name), row.get(name)) for name in _FIELDS}
    known = {name: value for name, value in values.items() if value is not None}
    data = pixels if pixels is not None else None if encoded is None else decode(encoded)
    return ImageObject(**known, image_data=data)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _given(value: Any) -> bool:
    return value is not None and value not in ("", {})
