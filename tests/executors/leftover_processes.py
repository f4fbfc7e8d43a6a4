"""What drivers on this machine have left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def leftovers(pid: int | None = None) -> set[str]:
    """Temporary folders of a driver: this process, unless another is meant."""
    pattern = f"gristmill-{pid or os.getpid()}-*"
    return {path.name for folder in ("/dev/shm", "/tmp") for path in Path(folder).glob(pattern)}


@pytest.fixture
def nothing_left() -> Iterator[None]:
    before = leftovers()
    yield
    assert leftovers() <= before
