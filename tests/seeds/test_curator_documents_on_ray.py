"""Code of the documents of NeMo Curator on a cluster, with only its imports changed, on each executor they name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from gristmill import Pipeline, RayActorPoolExecutor, RayClient, RayDataExecutor, Resources, Task, XennaExecutor
from gristmill.download import TinyStoriesDownloadExtractStage
from gristmill.text import (
    IncompleteStoryFilter,
    JsonlWriter,
    Modify,
    QuotationUnifier,
    ScoreFilter,
    UnicodeReformatter,
    WordCountFilter,
)
from tests.download.file_server import open_shelf
from tests.executors.test_ray_faults import AddVersion, wheel
from tests.ray_cluster import ROOT
from tests.seeds.test_curator_documents import (
    BATCHES,
    LONG,
    ModelStage,
    TokenizerStage,
    WordCountStage,
    custom_filter_stage,
)

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

STORIES = [f"{LONG}“The end,” said the miller’s cat.", "Too short.", f"{LONG}And then the cat"]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, open_shelf() as shelf:
        patch.setenv("HF_ENDPOINT", shelf.url)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
        path = "/datasets/roneneldan/TinyStories/resolve/main/TinyStories-valid.txt"
        shelf.files[path] = "<|endoftext|>".join(STORIES).encode()
        ray_client = RayClient(num_cpus=3, num_gpus=2, include_dashboard=False)
        ray_client.start()
        yield
        ray_client.stop()


@pytest.fixture(params=[XennaExecutor, RayDataExecutor, RayActorPoolExecutor], ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Any:
    if request.param is XennaExecutor:
        pytest.importorskip("cosmos_xenna")
    return request.param


def test_the_tinystories_pipeline(kind: Any, tmp_path: Path) -> None:
    raw_dir, curated_dir, args = str(tmp_path / "raw"), str(tmp_path / "curated"), SimpleNamespace(split="valid")
    stages = [
        TinyStoriesDownloadExtractStage(raw_dir, split=args.split),
        Modify(modifier_fn=QuotationUnifier()),
        Modify(modifier_fn=UnicodeReformatter()),
        ScoreFilter(filter_obj=WordCountFilter(min_words=80)),
        ScoreFilter(filter_obj=IncompleteStoryFilter()),
        JsonlWriter(curated_dir),
    ]
    pipeline = Pipeline(
        name="tinystories",
        description="Download and curation pipeline for the TinyStories dataset.",
        stages=stages,
    )
    executor = kind()
    pipeline.run(executor)

    (file,) = Path(curated_dir).glob("*.jsonl")
    assert [orjson.loads(line)["text"] for line in file.read_bytes().splitlines()] == [
        f'{LONG}"The end," said the miller\'s cat.'
    ]


WISHES = {
    "on the CPU": (Resources(cpus=1.0), {}),
    "a whole GPU": (Resources(gpus=1), {}),
    "a quarter of one": (Resources(gpus=0.25), {}),
    "by its memory": (Resources(gpu_memory_gb=10), {"gpu_memory_gb": 40}),
}


@pytest.mark.parametrize("wish", WISHES)
def test_stages_with_resources_run(kind: Any, wish: str) -> None:
    resources, config = WISHES[wish]
    if kind is XennaExecutor and resources.requires_gpu:
        pytest.skip("Xenna looks for the GPUs themselves, and there is none here")
    model_stage = ModelStage(model_path="path/to/model").with_(resources=resources)
    pipeline = Pipeline(name="resources", stages=[TokenizerStage(), custom_filter_stage, model_stage])
    results = pipeline.run(kind(config), initial_tasks=BATCHES)
    assert [row["score"] for task in results for row in task.to_rows()] == [0.3, 0.2]


def test_a_batch_size_is_set_with_with(kind: Any) -> None:
    word_count_stage = WordCountStage().with_(batch_size=128)
    results = Pipeline(name="p", stages=[word_count_stage]).run(kind(), initial_tasks=BATCHES)
    assert [task.data["tokens"].to_pylist() for task in results] == [[1, 3], [2]]


def test_stages_have_packages_of_their_own(kind: Any, tmp_path: Path) -> None:
    """The documents say it of all three: stages may want versions of one package that cannot be in one place."""
    stages = [
        AddVersion().with_(name=f"v{version}", runtime_env={"pip": [wheel(tmp_path / version, version)]})
        for version in ("1.0", "2.0")
    ]
    result = Pipeline("p", stages=stages).run(kind(), initial_tasks=[Task([]) for _ in range(4)])
    assert [task.data for task in result] == [["1.0", "2.0"]] * 4
