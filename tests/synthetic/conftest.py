"""A client of the real server, and batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.samples.batch import DocumentBatch
from tests.llm_server import MODEL


@pytest.fixture
def asked(llm_server: str) -> dict[str, Any]:
    """The client, the model and the shortest parameters that a stage needs."""
    return {
        "client": {"base_url": llm_server, "max_concurrent_requests": 4, "base_delay": 0.01},
        "model_name": MODEL,
        "generation_config": {"max_tokens": 12},
    }


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Runs a stage on rows in a pipeline, and returns its rows."""

    def once(stage: Any, rows: list[dict[str, Any]] | None = None, **settings: Any) -> list[dict[str, Any]]:
        tasks = None if rows is None else [DocumentBatch(rows)]
        settings = {"max_errors": None, **settings}
        result = Pipeline("p", stages=[stage]).run(LocalExecutor(num_workers=0), tasks, **settings)
        once.result = result  # type: ignore[attr-defined]
        return [row for task in result for row in task.to_rows()]

    return once
