"""Images: readers, writers, filters and embeddings.

The names below are loaded when first used.
"""

from __future__ import annotations

from gristmill.core.lazy import lazy

_HOME: dict[str, str] = {}

__all__: list[str] = []

__getattr__, __dir__ = lazy(__name__, _HOME)
