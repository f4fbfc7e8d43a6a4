"""Planning: what is checked before anything runs, what is fused, and that nothing is changed."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import (
    CompositeStage,
    DocumentBatch,
    FileGroupTask,
    LocalExecutor,
    Pipeline,
    ProcessingStage,
    Resources,
    SourceStage,
    Task,
    processing_stage,
)
from gristmill.core.errors import ColumnError, ContractError, InputError, PlanError, ResourceError
from gristmill.core.stage import Columns
from gristmill.text import (
    Filter,
    JsonlReader,
    JsonlWriter,
    Modify,
    ParquetReader,
    Score,
    ScoreFilter,
    UrlRemover,
    WordCountFilter,
)


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    (tmp_path / "in").mkdir()
    rows = [{"id": n, "text": f"document {n}", "meta": {"n": n}} for n in range(3)]
    (tmp_path / "in" / "a.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    return str(tmp_path / "in")


class Pass(ProcessingStage[Task[Any], Task[Any]]):
    def process(self, task: Task[Any]) -> Task[Any]:
        return task


def groups(pipeline: Pipeline, **options: Any) -> list[list[str]]:
    return [[stage.name for stage in group.stages] for group in pipeline.plan(**options).groups]


# -- errors that name the stage and the way out ------------------------------------------------------------


def words(reader: Any, **options: Any) -> Pipeline:
    return Pipeline("p", stages=[reader, ScoreFilter(WordCountFilter(), **options)])


# what is wrong, the error, what the message must hold
WRONG: dict[str, tuple[Any, type[PlanError], str]] = {
    "missing path": (
        lambda corpus: words(JsonlReader(f"{corpus}x")),
        InputError,
        r"stage 'list_files': .*inx does not exist\. Did you mean 'in'",
    ),
    "missing file": (
        lambda corpus: words(JsonlReader(f"{corpus}/b.jsonl")),
        InputError,
        r"stage 'list_files': .*b\.jsonl does not exist\. Did you mean 'a\.jsonl'",
    ),
    "zero files": (
        lambda corpus: words(ParquetReader(corpus)),
        InputError,
        r"stage 'list_files': .* no file that ends in \.parquet, .* There is 1 \.jsonl file: use JsonlReader",
    ),
    "empty pattern": (
        lambda corpus: words(JsonlReader(f"{corpus}/*.json")),
        InputError,
        r"stage 'list_files': .*\*\.json matches no file: check the pattern",
    ),
    "wrong format": (
        lambda corpus: words(ParquetReader(f"{corpus}/a.jsonl")),
        InputError,
        r"stage 'read_parquet': .*a\.jsonl is not .*Parquet.*looks like JSON lines: use JsonlReader",
    ),
    "missing column": (
        lambda corpus: words(JsonlReader(corpus), text_field="txt"),
        ColumnError,
        r"stage 'WordCountFilter' needs column 'txt', .* There are: id, text, meta\. Did you mean 'text'.*text_field",
    ),
    "wrong type": (
        lambda corpus: words(JsonlReader(corpus), text_field="id"),
        ColumnError,
        r"stage 'WordCountFilter' needs text in column 'id', which holds int64",
    ),
    "wrong task": (
        lambda corpus: Pipeline("p", stages=[JsonlReader(corpus), OnFiles()]),
        ColumnError,
        r"stage 'OnFiles' takes FileGroupTask, but 'read_jsonl' before it gives DocumentBatch: add a stage between",
    ),
    "output is a file": (
        lambda corpus: Pipeline("p", stages=[JsonlReader(corpus), JsonlWriter(f"{corpus}/a.jsonl")]),
        PlanError,
        r"cannot write to .*a\.jsonl: .* is a file",
    ),
    "a reader in the middle": (
        lambda corpus: Pipeline("p", stages=[JsonlReader(corpus), JsonlReader(corpus)]),
        PlanError,
        "stage 'list_files' lists input, so it must be the first stage",
    ),
    "no stages": (lambda corpus: Pipeline("p"), PlanError, "pipeline 'p' has no stages: add some with add_stage"),
    "nothing to do": (
        lambda corpus: Pipeline("p", stages=[JsonlReader(corpus).lister()]),
        PlanError,
        "only lists its input: add a reader",
    ),
    "no process method": (
        lambda corpus: Pipeline("p", stages=[Idle()]),
        PlanError,
        r"stage 'Idle' \(Idle\) has no process method: define one",
    ),
    "an empty composite": (
        lambda corpus: Pipeline("p", stages=[Hollow()]),
        PlanError,
        "composite stage 'Hollow' decomposes into nothing",
    ),
}


class OnFiles(ProcessingStage[FileGroupTask, FileGroupTask]):
    def process(self, task: FileGroupTask) -> FileGroupTask:
        return task


class Idle(ProcessingStage[Task[Any], Task[Any]]): ...


class Hollow(CompositeStage[Task[Any], Task[Any]]):
    def decompose(self) -> list[Any]:
        return []


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_work_is_said_before_anything_runs(what: str, corpus: str) -> None:
    make, kind, message = WRONG[what]
    pipeline = make(corpus)
    began = time.perf_counter()
    with pytest.raises(kind, match=message):
        pipeline.plan()
    with pytest.raises(kind, match=message):
        pipeline.run(LocalExecutor(num_workers=1))
    assert time.perf_counter() - began < 1


def test_a_stage_without_a_gpu_to_run_on_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    model = Pass().with_(name="Model", resources=Resources(gpus=1))
    with pytest.raises(
        ResourceError, match=r"stage 'Model' needs cpus=1 gpus=1, but this machine has no GPU\. Run it on"
    ):
        Pipeline("p", stages=[model]).run(LocalExecutor(num_workers=1), initial_tasks=[Task(1)])
    big = Pass().with_(name="Big", resources=Resources(memory_gb=10**6))
    with pytest.raises(ResourceError, match=r"stage 'Big' needs 1e\+06 GB of memory, but this machine has .* lower"):
        Pipeline("p", stages=[big]).run(LocalExecutor(num_workers=1), initial_tasks=[Task(1)])
    env = Pass().with_(name="Env", runtime_env={"pip": ["x"]})
    with pytest.raises(
        ResourceError, match="stage 'Env' has runtime_env pip, but LocalExecutor only supports env_vars"
    ):
        Pipeline("p", stages=[env]).run(LocalExecutor(num_workers=1), initial_tasks=[Task(1)])


def test_what_is_no_stage_is_refused_when_it_is_added() -> None:
    with pytest.raises(TypeError, match="Did you forget the parentheses"):
        Pipeline("p", stages=[Pass])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="a pipeline is made of stages, not of 7"):
        Pipeline("p").add_stage(7)  # type: ignore[arg-type]


def test_settings_that_were_assigned_are_checked_too() -> None:
    stage = Pass()
    stage.batch_size = 0
    with pytest.raises(ContractError, match="stage 'Pass': batch_size is 0"):
        Pipeline("p", stages=[stage]).plan([Task(1)])


def test_two_starts_are_one_too_many(corpus: str) -> None:
    with pytest.raises(PlanError, match="'list_files', which lists its own input, and initial_tasks were given too"):
        words(JsonlReader(corpus)).plan([DocumentBatch([{"text": "a"}])])


# -- columns -----------------------------------------------------------------------------------------------


def test_columns_that_stages_add_are_known_to_the_next(corpus: str) -> None:
    stages = [
        JsonlReader(corpus),
        Score(len, score_field="length"),
        Filter(lambda length: length > 3, "length"),
        Modify(UrlRemover(), input_fields="text", output_fields="clean"),
        ScoreFilter(WordCountFilter(), text_field="clean"),
    ]
    Pipeline("p", stages=stages).plan()
    with pytest.raises(ColumnError, match="needs column 'clean'"):
        Pipeline("p", stages=[stages[0], stages[4], stages[3]]).plan()


def test_the_fields_of_a_reader_are_all_there_is(corpus: str) -> None:
    with pytest.raises(ColumnError, match="There are: id"):
        words(JsonlReader(corpus, fields=["id"])).plan()


def test_json_columns_may_hold_text(corpus: str) -> None:
    words(JsonlReader(corpus), text_field="meta").plan()


def test_after_a_stage_that_does_not_say_what_it_adds_anything_may_be_there(corpus: str) -> None:
    Pipeline("p", stages=[JsonlReader(corpus), Pass(), ScoreFilter(WordCountFilter(), text_field="other")]).plan()


def test_a_stage_of_ones_own_declares_columns() -> None:
    class Length(ProcessingStage[DocumentBatch, DocumentBatch]):
        def inputs(self) -> tuple[list[str], Columns]:
            return ["data"], {"body": "string"}

        def outputs(self) -> tuple[list[str], Columns]:
            return ["data"], ["length"]

        def process(self, task: DocumentBatch) -> DocumentBatch:
            return task

    with pytest.raises(ColumnError, match=r"stage 'Length' needs column 'body'.* There are: text"):
        Pipeline("p", stages=[Length()]).plan([DocumentBatch([{"text": "a"}])])
    with pytest.raises(ColumnError, match="needs text in column 'body', which holds int64"):
        Pipeline("p", stages=[Length()]).plan([DocumentBatch([{"body": 1}])])
    plan = Pipeline("p", stages=[Length(), Filter(bool, "length")]).plan([DocumentBatch([{"body": "a"}])])
    assert "needs body; gives length" in plan.describe(verbose=True)


def test_parquet_says_its_types(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array(["a"]).dictionary_encode(), "n": [1]}), tmp_path / "a.parquet")
    words(ParquetReader(str(tmp_path))).plan()
    with pytest.raises(ColumnError, match="which holds int64"):
        words(ParquetReader(str(tmp_path)), text_field="n").plan()


def test_files_that_show_no_columns_say_nothing_of_the_others(tmp_path: Path) -> None:
    for name, content in {"a": "", "b": "{", "c": '{"id": 1, "text": "a b"}\n', "d": '{"id": 2}\n'}.items():
        (tmp_path / f"{name}.jsonl").write_text(content)
    reader = JsonlReader(str(tmp_path), on_bad_record="skip")
    with pytest.raises(ColumnError, match=r"needs column 'txt'.* There are: id, text\. Did you mean 'text'"):
        words(reader, text_field="txt").plan()
    counted = Pipeline("p", stages=[reader, Score(WordCountFilter(), score_field="words")])
    found = [row["words"] for task in counted.run(LocalExecutor(0)) for row in task.to_rows()]
    assert found == [2, 0]
    for name in "cd":
        (tmp_path / f"{name}.jsonl").unlink()
    words(reader, text_field="txt").plan()


def test_an_empty_batch_says_nothing_of_the_others() -> None:
    tasks = [DocumentBatch([]), DocumentBatch([{"text": "a b"}])]
    with pytest.raises(ColumnError, match="needs column 'txt'"):
        Pipeline("p", stages=[ScoreFilter(WordCountFilter(), text_field="txt")]).plan(tasks)
    Pipeline("p", stages=[ScoreFilter(WordCountFilter())]).plan(tasks)


# -- fusing and cutting ------------------------------------------------------------------------------------


def test_light_stages_of_one_environment_share_a_worker(corpus: str, tmp_path: Path) -> None:
    stages = [JsonlReader(corpus), *(Modify(UrlRemover()).with_(name=f"m{n}") for n in range(28))]
    pipeline = Pipeline("p", stages=[*stages, JsonlWriter(str(tmp_path / "out"))])
    names = ["read_jsonl", *(f"m{n}" for n in range(28)), "write_jsonl"]
    assert groups(pipeline) == [names, ["commit_jsonl"]]
    assert groups(pipeline, fuse=False) == [[name] for name in [*names, "commit_jsonl"]]


# settings of the second of two stages, whether it shares the first one's worker
NEIGHBOURS: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"batch_size": 8}, True),
    ({"timeout_s": 3}, True),
    ({"resources": Resources(cpus=0.5)}, True),
    ({"resources": Resources(cpus=4)}, False),
    ({"resources": Resources(gpus=0.5)}, False),
    ({"resources": Resources(gpu_memory_gb=4)}, False),
    ({"num_workers": 1}, False),
    ({"runtime_env": {"env_vars": {"A": "1"}}}, False),
]


@pytest.mark.parametrize(("settings", "fused"), NEIGHBOURS, ids=str)
def test_neighbours_are_fused_when_their_needs_fit(settings: dict[str, Any], fused: bool) -> None:
    pipeline = Pipeline("p", stages=[Pass(), Pass().with_(**settings)])
    assert len(pipeline.plan([Task(1)]).groups) == (1 if fused else 2)


def test_a_users_own_source_is_alone() -> None:
    assert groups(Pipeline("p", stages=[Pass(), Pass(), Pass()])) == [["Pass"], ["Pass", "Pass"]]
    assert groups(Pipeline("p", stages=[Pass(), Pass()]), initial_tasks=[Task(1)]) == [["Pass", "Pass"]]


def test_a_source_stage_runs_in_the_driver() -> None:
    class Numbers(SourceStage[Task[int]]):
        def sources(self) -> Iterator[list[Task[int]]]:
            for number in range(3):
                yield [Task(number), Task(-number)]

    pipeline = Pipeline("p", stages=[Numbers(), Pass()])
    assert groups(pipeline) == [["Pass"]]
    result = pipeline.run(LocalExecutor(num_workers=0))
    assert [(task.id, task.data) for task in result][:3] == [("0.0", 0), ("0.1", 0), ("1.0", 1)]


# -- planning changes nothing ------------------------------------------------------------------------------


def test_a_plan_prints_the_stages_that_the_user_wrote(corpus: str, tmp_path: Path) -> None:
    @processing_stage(name="own")
    def own(task: DocumentBatch) -> DocumentBatch:
        return task

    stages = [
        JsonlReader(corpus),
        ScoreFilter(WordCountFilter(min_words=3), score_field="words").with_(timeout_s=30),
        own,
        JsonlWriter(str(tmp_path / "out")),
    ]
    lines = str(Pipeline("p", stages=stages).plan()).splitlines()
    assert lines[0] == "p: 4 stages"
    assert [line.split()[1] for line in lines[1:-1]] == ["JsonlReader", "ScoreFilter", "own", "JsonlWriter"]
    assert lines[2].endswith("WordCountFilter(min_words=3), score_field=words, timeout_s=30")
    assert lines[-1] == "runs as 6 steps in 2 groups"


def test_planning_twice_gives_the_same_text_and_leaves_the_stages_alone(corpus: str, tmp_path: Path) -> None:
    @processing_stage(name="own")
    def own(task: DocumentBatch) -> DocumentBatch:
        return task

    stages = [
        JsonlReader(corpus).with_({"read_jsonl": {"batch_size": 2}}),
        ScoreFilter(WordCountFilter(), score_field="words").with_(timeout_s=30),
        own,
        JsonlWriter(str(tmp_path / "out")),
    ]
    pipeline = Pipeline("p", stages=stages)
    before = [copy.deepcopy(vars(stage)) for stage in stages]
    first, second = (pipeline.plan().describe(verbose=True) for _ in range(2))
    assert first == second == pipeline.describe(verbose=True)
    assert [repr(vars(stage)) for stage in stages] == [repr(old) for old in before]
    assert pipeline.stages == stages
    assert not (tmp_path / "out").exists()
    assert first.splitlines() == [
        "p: 6 steps in 2 groups",
        "  driver   list_files",
        "  group 0  (cpus=1)",
        "             read_jsonl                   batches of 2",
        "             WordCountFilter              needs text; gives words; 30 s at most",
        "             own",
        "             write_jsonl",
        "  group 1  (cpus=1)",
        "             commit_jsonl                 gathers each source",
    ]


def test_the_plan_holds_copies() -> None:
    stage = Pass()
    plan = Pipeline("p", stages=[stage]).plan([Task(1)])
    assert plan.stages[0] is not stage
    plan.stages[0].name = "changed"
    assert stage.name == "Pass"


def test_a_run_keeps_its_plan_and_its_counts(tmp_path: Path) -> None:
    Pipeline("p", stages=[Pass()]).run(LocalExecutor(num_workers=0), [Task(1), Task(2)], str(tmp_path / "run"))
    plan = orjson.loads((tmp_path / "run" / "plan.json").read_bytes())
    metrics = orjson.loads((tmp_path / "run" / "metrics.json").read_bytes())
    assert (plan["name"], [stage["name"] for stage in plan["stages"]]) == ("p", ["Pass"])
    assert metrics["stages"][0]["tasks_in"] == 2
