"""Sample in a run keeps the same rows however it is run: workers, blocks, files, formats, recipes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage, Sample
from gristmill.core.errors import ColumnError
from gristmill.core.function_stage import processing_stage
from gristmill.recipes import load_recipe, recipe_of
from gristmill.text import Filter, JsonlReader, JsonlWriter, ParquetReader, ParquetWriter, TextReader
from tests.core.row_sampling_reference import number_of

HERE = LocalExecutor(num_workers=0)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files whose lines start at equal offsets."""
    folder = tmp_path_factory.mktemp("corpus") / "data"
    folder.mkdir()
    for name in ("a", "b", "c"):
        lines = [json.dumps({"file": name, "row": f"{row:04}", "odd": row % 2}) for row in range(400)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def outputs_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.jsonl"))}


def run(
    source: Any,
    target: Path,
    stages: Iterable[ProcessingStage[Any, Any]],
    executor: LocalExecutor = HERE,
    **reader: Any,
) -> dict[str, bytes]:
    """The names and bytes of what a run writes."""
    Pipeline("sample", stages=[JsonlReader(source, **reader), *stages, JsonlWriter(str(target))]).run(executor)
    return outputs_of(target)


def rows_of(outputs: dict[str, bytes]) -> set[tuple[str, str]]:
    rows = [json.loads(line) for content in outputs.values() for line in content.splitlines()]
    return {(row["file"], row["row"]) for row in rows}


@pytest.fixture(scope="module")
def usual(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return run(str(corpus), tmp_path_factory.mktemp("usual"), [Sample(0.3)])


@pytest.mark.parametrize(
    ("executor", "blocksize"),
    [
        (HERE, 500),
        (HERE, 7777),
        (LocalExecutor(num_workers=1), None),
        (LocalExecutor(num_workers=2), 5000),
        (LocalExecutor(num_workers=3), 2000),
        (LocalExecutor(num_workers=2, fuse=False), 5000),
    ],
    ids=["small blocks", "odd blocks", "1 worker", "2 workers", "3 workers", "not fused"],
)
def test_how_it_is_run_changes_no_byte(
    corpus: Path, usual: dict[str, bytes], tmp_path: Path, executor: LocalExecutor, blocksize: int | None
) -> None:
    assert run(str(corpus), tmp_path, [Sample(0.3)], executor, blocksize=blocksize) == usual


def test_which_rows_a_run_keeps_is_the_hash(corpus: Path, usual: dict[str, bytes]) -> None:
    length = len((corpus / "a.jsonl").read_bytes()) // 400
    wanted = {
        (name, f"{row:04}")
        for name in ("a", "b", "c")
        for row in range(400)
        if number_of(f"{name}.jsonl", row * length) < 0.3
    }
    assert rows_of(usual) == wanted
    each = [{row for file, row in wanted if file == name} for name in ("a", "b", "c")]
    assert each[0] != each[1] != each[2] != each[0]


def test_the_order_of_files_and_other_files_do_not_matter(corpus: Path, tmp_path: Path) -> None:
    a, b, c = (str(corpus / f"{name}.jsonl") for name in ("a", "b", "c"))
    forth = run([a, b, c], tmp_path / "forth", [Sample(0.3)])
    assert run([c, a, b], tmp_path / "back", [Sample(0.3)]) == forth
    two = run([b, c], tmp_path / "two", [Sample(0.3)])
    assert two == {name: content for name, content in forth.items() if name in two}
    together = run([a, b, c], tmp_path / "together", [Sample(0.3)], files_per_partition=2)
    assert rows_of(together) == rows_of(forth)


def test_a_dataset_may_move(corpus: Path, usual: dict[str, bytes], tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "moved")
    assert run(str(tmp_path / "moved"), tmp_path / "out", [Sample(0.3)]) == usual


def test_after_a_filter_the_same_rows_are_drawn(corpus: Path, usual: dict[str, bytes], tmp_path: Path) -> None:
    odd = Filter(is_odd, "odd")
    filtered_first = run(str(corpus), tmp_path / "first", [odd, Sample(0.3)], blocksize=3000)
    assert filtered_first == run(str(corpus), tmp_path / "last", [Sample(0.3), odd])
    assert rows_of(filtered_first) == {(file, row) for file, row in rows_of(usual) if int(row) % 2}


def is_odd(value: int) -> bool:
    return value == 1


def test_two_samples_in_a_chain(corpus: Path, tmp_path: Path) -> None:
    first, second = Sample(0.5), Sample(0.5).with_(name="second")
    both = rows_of(run(str(corpus), tmp_path / "both", [first, second]))
    one, other = (rows_of(run(str(corpus), tmp_path / stage.name, [stage])) for stage in (first, second))
    assert both == one & other
    assert 200 < len(both) < 400
    assert rows_of(run(str(corpus), tmp_path / "same", [first, first])) == one


def test_a_file_of_which_no_row_is_drawn_leaves_no_output(corpus: Path, tmp_path: Path) -> None:
    assert run(str(corpus), tmp_path, [Sample(0)]) == {}


def results(executor: LocalExecutor, stages: list[Any], initial_tasks: Any = None) -> list[tuple[Any, ...]]:
    """The rows that a run gives, each with the id of its task."""
    tasks: Any = Pipeline("rows", stages=stages).run(executor, initial_tasks=initial_tasks)
    return [(task.id, *row.values()) for task in tasks for row in task.to_rows()]


def test_other_formats_are_drawn_by_row(corpus: Path, tmp_path: Path) -> None:
    Pipeline("convert", stages=[JsonlReader(str(corpus)), ParquetWriter(str(tmp_path))]).run(HERE)
    stages = [[ParquetReader(str(tmp_path), blocksize=size), Sample(0.3)] for size in (None, 500)]
    found = [[row[1:] for row in results(HERE, each)] for each in stages]
    assert found[0] == found[1]
    assert 270 < len(found[0]) < 450


def test_whole_files_as_rows_draw_independently(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number:02}.txt").write_text("a text")
    assert 15 < len(results(HERE, [TextReader(str(tmp_path)), Sample(0.5)])) < 45


def test_batches_in_memory() -> None:
    batches = [DocumentBatch({"n": list(range(200))}) for _ in range(3)]
    wanted = [(str(index), row) for index in range(3) for row in range(200) if number_of(str(index), row) < 0.5]
    for executor in (HERE, LocalExecutor(num_workers=2)):
        assert results(executor, [Sample(0.5)], batches) == wanted


@processing_stage(name="make")
def make(task: Any) -> Any:
    return (DocumentBatch({"n": list(range(50))}) for _ in range(4))


def test_batches_that_a_stage_makes_itself() -> None:
    found = results(HERE, [make, Sample(0.5)])
    assert found == results(LocalExecutor(num_workers=2), [make, Sample(0.5)])
    assert len({tuple(row for owner, row in found if owner == name) for name, _ in found}) == 4


def test_a_preview_shows_the_numbers(corpus: Path) -> None:
    length = len((corpus / "a.jsonl").read_bytes()) // 400
    rows = Pipeline("preview", stages=[JsonlReader(str(corpus)), Sample(0.3)]).preview(20)
    for place, row in enumerate(rows):
        number = number_of("a.jsonl", place * length)
        assert row.scores == {"Sample": number}
        assert row.dropped_by == (None if number < 0.3 else "Sample")


def test_the_planner_still_knows_the_columns(corpus: Path) -> None:
    with pytest.raises(ColumnError, match="Did you mean 'odd'"):
        Pipeline("wrong", stages=[JsonlReader(str(corpus)), Sample(0.3), Filter(is_odd, "od")]).plan()


def test_a_recipe_and_back(corpus: Path, usual: dict[str, bytes], tmp_path: Path) -> None:
    text = f"""
name: share
stages:
  - JsonlReader: {{file_paths: "{corpus}"}}
  - Sample: {{fraction: 0.3}}
  - Sample: {{fraction: 1, seed: 12}}
    with: {{name: all}}
  - JsonlWriter: {{path: "{tmp_path / "out"}"}}
"""
    (tmp_path / "share.yaml").write_text(text)
    recipe = load_recipe(str(tmp_path / "share.yaml"))
    pipeline = recipe.build()
    assert recipe_of(pipeline).stages == recipe.stages
    pipeline.run(HERE)
    assert outputs_of(tmp_path / "out") == usual


@pytest.mark.parametrize("before", ["", "sys.modules['numpy'] = None"], ids=["pandas", "numpy"])
def test_it_does_not_load_pandas_and_needs_no_numpy(before: str) -> None:
    code = """
from gristmill import Batch, LocalExecutor, Pipeline, Sample
tasks = [Batch([{"n": n, "__position__": n} for n in range(1000)]), Batch([{"n": n} for n in range(1000)])]
result = Pipeline("bare", stages=[Sample(0.5)]).run(LocalExecutor(num_workers=0), initial_tasks=tasks)
assert [400 < task.num_items < 600 for task in result] == [True, True]
assert "pandas" not in sys.modules
"""
    program = f"import sys\n{before}\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
