"""The batches of documents and of samples.

`DocumentBatch` is here because text, downloads and the modalities give it, and none of them imports another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from gristmill.core.batch import Batch

MAIN_COLUMN = "text"
CATEGORY_COLUMNS = {"language": ("language", "lang"), "source": ("source",)}
COUNT_COLUMNS = {"tokens": ("tokens", "num_tokens", "token_count")}


class DocumentBatch(Batch):
    """Text documents, one per row."""

    main_column, category_columns, count_columns = MAIN_COLUMN, CATEGORY_COLUMNS, COUNT_COLUMNS


class SampleBatch(Batch):
    """Encoded objects of one modality, one per row. What is particular to the modality is said here, and nowhere else:
    readers, writers and other stages take it from their `kind`.

    A subclass also sets `encoded_column`, the column of the encoded bytes, and `decoded_objects`, of which the first is
    the completely decoded object.
    """

    main_column, category_columns, count_columns = MAIN_COLUMN, CATEGORY_COLUMNS, COUNT_COLUMNS
    """Samples may have captions or transcripts."""

    sample_name: ClassVar[str]
    """What one object is called, in messages and in the names of stages: "image"."""

    id_column: ClassVar[str]
    encoded_column: ClassVar[str]

    formats: ClassVar[Mapping[str, tuple[str, ...]]]
    """The extensions of files of each format, without a dot, the usual one first."""

    @staticmethod
    def format_of(data: Any) -> str | None:
        """The format that the first bytes show; None if it is none of `formats`."""
        raise NotImplementedError


S = TypeVar("S", bound=SampleBatch)


class BadSample(ValueError):
    """Encoded bytes that cannot be decoded, and why. Raised by decoders; the row is set aside."""


def sample_extensions(kind: type[SampleBatch]) -> tuple[str, ...]:
    """The extensions of all formats of a modality."""
    return tuple(extension for extensions in kind.formats.values() for extension in extensions)


def usual_extension(kind: type[SampleBatch], data: Any) -> str | None:
    """The usual extension of files with these bytes; None for bytes of no known format."""
    name = kind.format_of(data)
    return None if name is None else kind.formats[name][0]
