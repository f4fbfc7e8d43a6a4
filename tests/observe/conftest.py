"""A clock that tests of progress move by hand."""

from __future__ import annotations

import pytest

from gristmill.observe import progress_lines as shown


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(shown.time, "monotonic", lambda: now[0])
    return now
