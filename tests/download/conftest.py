from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.download.faulty_server import Web, serve


@pytest.fixture
def web() -> Iterator[Web]:
    with serve() as running:
        yield running
