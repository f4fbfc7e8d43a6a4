from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.download.server import Web, serve


@pytest.fixture
def web() -> Iterator[Web]:
    with serve() as running:
        yield running
