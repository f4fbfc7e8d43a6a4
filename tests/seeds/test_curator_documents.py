"""Code as the documents of NeMo Curator show it, with only its import lines changed.

Where a document leaves a body out ("stage logic"), the shortest one that does something stands in its place. The
download is replaced by a reader of local files, and the executor of a cluster by that of this machine.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage, Resources, processing_stage
from gristmill.core.errors import ResourceError
from gristmill.text import (
    IncompleteStoryFilter,
    JsonlReader,
    JsonlWriter,
    Modify,
    QuotationUnifier,
    ScoreFilter,
    UnicodeReformatter,
    WordCountFilter,
)

# -- allocating resources ----------------------------------------------------------------------------------


class TokenizerStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    name: str = "TokenizerStage"
    resources: Resources = Resources(cpus=1.0)  # CPU-only — no GPU needed

    def __init__(self):
        super().__init__()

    def process(self, task: DocumentBatch) -> DocumentBatch:
        tokens = pc.list_value_length(pc.utf8_split_whitespace(task.data["text"]))
        return task.with_data(task.data.append_column("tokens", tokens))


class ModelStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    name: str = "ModelStage"

    def __init__(self, model_path: str):
        super().__init__()
        self.model_path = model_path

    def process(self, task: DocumentBatch) -> DocumentBatch:
        scores = pc.divide(task.data["tokens"].cast(pa.float64()), 10.0)
        return task.with_data(task.data.append_column("score", scores))


@processing_stage(name="custom_filter", resources=Resources(cpus=1))
def custom_filter_stage(task: DocumentBatch) -> DocumentBatch:
    return task.keep(pc.greater(task.data["tokens"], 1))


@processing_stage(name="tokenizer", resources=Resources(cpus=1))
def tokenizer_stage(task: DocumentBatch) -> DocumentBatch:
    pass


class WordCountStage(TokenizerStage):
    name: str = "WordCountStage"


BATCHES = [DocumentBatch(data=[{"text": "one"}, {"text": "one two three"}]), DocumentBatch(data=[{"text": "a b"}])]


@pytest.mark.parametrize("workers", [0, 2])
def test_stages_with_resources_run(workers: int) -> None:
    pipeline = Pipeline(name="resources")
    pipeline.add_stage(TokenizerStage())
    pipeline.add_stage(custom_filter_stage)
    pipeline.add_stage(ModelStage(model_path="path/to/model"))
    results = pipeline.run(LocalExecutor(num_workers=workers), initial_tasks=BATCHES)
    assert [task.to_rows() for task in results] == [
        [{"text": "one two three", "tokens": 3, "score": 0.3}],
        [{"text": "a b", "tokens": 2, "score": 0.2}],
    ]


WISHES = [Resources(gpus=1), Resources(gpus=0.25), Resources(gpu_memory_gb=10)]


@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_a_model_gets_a_gpu_with_with(wish: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    original = ModelStage(model_path="path/to/model")
    model_stage = original.with_(resources=wish)
    assert (model_stage.resources, original.resources) == (wish, Resources(cpus=1.0))
    assert model_stage.model_path == "path/to/model"

    pipeline = Pipeline(name="gpu", stages=[TokenizerStage(), model_stage])
    plan = pipeline.plan(initial_tasks=BATCHES)
    assert [group.name for group in plan.groups] == ["TokenizerStage", "ModelStage"]  # CPU work holds no GPU
    with pytest.raises(ResourceError, match=r"stage 'ModelStage' needs .* but this machine has no GPU"):
        pipeline.run(LocalExecutor(num_workers=1), initial_tasks=BATCHES)
    results = pipeline.run(LocalExecutor(num_workers=1, gpus=[40.0]), initial_tasks=BATCHES)  # one GPU of 40 GB
    assert [row["score"] for task in results for row in task.to_rows()] == [0.1, 0.3, 0.2]


def test_a_share_of_a_gpu_is_worked_out_where_the_worker_is_placed() -> None:
    assert Resources(gpus=0.25).gpu_share(80.0) == 0.25  # 4 workers share one GPU
    assert Resources(gpu_memory_gb=10).gpu_share(40.0) == 0.25
    assert Resources(gpu_memory_gb=10).gpus == 0


def test_a_function_that_returns_nothing_drops_its_task() -> None:
    assert (tokenizer_stage.name, tokenizer_stage.resources) == ("tokenizer", Resources(cpus=1))
    results = Pipeline(name="p", stages=[tokenizer_stage]).run(LocalExecutor(num_workers=0), initial_tasks=BATCHES)
    assert list(results) == []


# -- streaming ---------------------------------------------------------------------------------------------


def test_a_batch_size_is_set_with_with() -> None:
    word_count_stage = WordCountStage().with_(batch_size=128)
    assert (word_count_stage.batch_size, WordCountStage().batch_size) == (128, 1)
    results = Pipeline(name="p", stages=[word_count_stage]).run(LocalExecutor(num_workers=1), initial_tasks=BATCHES)
    assert [task.data["tokens"].to_pylist() for task in results] == [[1, 3], [2]]


# -- migrating a text workflow -----------------------------------------------------------------------------

LONG = "Once upon a time there was a little mill by a brook. " * 8  # 96 words

STORIES = [
    {"id": 1, "text": f"{LONG}“The end,” said the miller’s cat."},
    {"id": 2, "text": "Too short to be a story."},
    {"id": 3, "text": f"{LONG}And then the cat"},
    {"id": 4, "text": f"{LONG}The caf\u00c3\u00a9 was closed."},
    {"id": 5, "text": None},
]


@pytest.fixture
def raw_dir(tmp_path: Path) -> str:
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "stories-0.jsonl").write_bytes(b"\n".join(orjson.dumps(story) for story in STORIES[:3]))
    (folder / "stories-1.jsonl").write_bytes(b"\n".join(orjson.dumps(story) for story in STORIES[3:]))
    return str(folder)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_tinystories_pipeline(raw_dir: str, tmp_path: Path, workers: int) -> None:
    curated_dir = str(tmp_path / "curated")
    args = SimpleNamespace(num_workers=workers)

    stages = [
        JsonlReader(raw_dir),
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

    # Create executor
    executor = LocalExecutor(num_workers=args.num_workers)

    # Execute pipeline
    results = pipeline.run(executor)

    assert len(results) == 2  # one file for each that was read
    assert sorted(results.files()) == sorted(str(path) for path in Path(curated_dir).glob("*.jsonl"))
    written = [orjson.loads(line) for path in results.files() for line in Path(path).read_bytes().splitlines()]
    assert written == [
        {"id": 1, "text": f'{LONG}"The end," said the miller\'s cat.'},
        {"id": 4, "text": f"{LONG}The café was closed."},
    ]
    summary = results.summary()
    assert [
        (summary[name].rows_in, summary[name].dropped) for name in ("WordCountFilter", "IncompleteStoryFilter")
    ] == [
        (5, 2),
        (3, 1),
    ]


@pytest.mark.parametrize(("workers", "blocksize"), [(0, 64), (1, None), (2, 64), (2, "1kb")])
def test_the_output_depends_on_neither_workers_nor_blocks(
    raw_dir: str, tmp_path: Path, workers: int, blocksize: int | str | None
) -> None:
    def written(name: str, workers: int, blocksize: int | str | None) -> dict[str, bytes]:
        stages = [
            JsonlReader(raw_dir, blocksize=blocksize),
            Modify(modifier_fn=QuotationUnifier()),
            ScoreFilter(filter_obj=WordCountFilter(min_words=5), score_field="words"),
            JsonlWriter(str(tmp_path / name)),
        ]
        Pipeline(name=name, stages=stages).run(LocalExecutor(num_workers=workers))
        return {path.name: path.read_bytes() for path in (tmp_path / name).glob("*.jsonl")}

    plain = written("plain", 0, None)
    assert len(plain) == 2
    assert written("other", workers, blocksize) == plain


def test_a_pipeline_is_built_stage_by_stage(raw_dir: str, tmp_path: Path) -> None:
    executor = LocalExecutor(num_workers=0)
    pipeline = Pipeline(name="my_pipeline")
    pipeline.add_stage(JsonlReader(raw_dir))
    pipeline.add_stage(TokenizerStage())
    pipeline.add_stage(JsonlWriter(str(tmp_path / "out"), fields=["id", "tokens"]))
    results = pipeline.run(executor)
    assert Path(results.files()[0]).read_text().splitlines()[1] == '{"id":2,"tokens":6}'


def test_results_arrive_before_the_run_is_over(raw_dir: str) -> None:
    pipeline = Pipeline(name="early", stages=[JsonlReader(raw_dir), TokenizerStage()])
    stream = pipeline.stream(LocalExecutor(num_workers=1))
    first = next(stream)
    assert first.num_items in (2, 3)
    assert len(list(stream)) == 1
