"""Answers and budgets on a Ray cluster: the same bytes as on this machine, and nothing is paid for twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import Pipeline, RayActorPoolExecutor
from gristmill.core.errors import GristmillError
from gristmill.models.llm import AnswerStore
from gristmill.synthetic import PromptStage
from gristmill.text import JsonlReader, JsonlWriter
from tests.llm_server import MODEL, FaultProxy
from tests.models.llm.test_llm_stage import ALL, CONFIG, client, corpus, output
from tests.ray_cluster import ray_cluster

pytestmark = pytest.mark.ray
__all__ = ["corpus"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with ray_cluster(num_cpus=3) as mark:
        yield mark


def run(corpus: Path, url: str, name: str, executor: Any = None, tokens: int = 100_000, **settings: Any) -> Any:
    stage = PromptStage(
        "{{ document }}", client(url), MODEL, generation_config=CONFIG, budget={"max_tokens_total": tokens}
    ).with_(num_workers=2)
    stages = [JsonlReader(str(corpus)), stage, JsonlWriter(str(corpus.parent / name), mode="overwrite")]
    return Pipeline("p", stages=stages).run(executor, **settings)


def test_a_budget_stops_the_run_which_goes_on_with_the_same_bytes(
    corpus: Path, llm_server: str, cluster: str, tmp_path: Path
) -> None:
    proxy = FaultProxy(llm_server)
    with proxy.running() as url:
        with pytest.raises(GristmillError, match="the budget of 200 tokens is spent"):
            run(corpus, url, "ray", RayActorPoolExecutor(), 200, run_dir=tmp_path / "run")
        kept = len(list(AnswerStore(str(tmp_path / "run" / "answers")).lines()))
        assert 0 < kept < ALL
        run(corpus, url, "ray", RayActorPoolExecutor(), run_dir=tmp_path / "run")
        assert len(proxy.bodies) <= ALL + 4
        run(corpus, url, "local")
    assert output(corpus, "ray") == output(corpus, "local")
