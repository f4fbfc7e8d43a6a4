"""Interleaved documents are written in the same bytes on every executor, as rows of items and as tars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor
from tests.conformance.executor_params import make, params
from tests.interleaved.interleaved_fixtures import write_mint
from tests.interleaved.test_interleaved_promises import curated


@pytest.fixture
def executor(request: pytest.FixtureRequest) -> Any:
    return make(request)


@pytest.mark.parametrize("executor", params("local-2"), indirect=True)
def test_the_same_bytes_on_every_executor(tmp_path: Path, executor: Any) -> None:
    source = str(write_mint(tmp_path / "mint", documents=16, per_tar=8))
    here = curated(source, tmp_path / "here", LocalExecutor(num_workers=0))
    assert len(here) == 6
    assert curated(source, tmp_path / "there", executor, 9_000) == here
