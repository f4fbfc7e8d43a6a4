"""The output is the same, byte for byte, whoever does the work and however the input is cut."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import PlanError
from gristmill.text import (
    JsonlReader,
    JsonlWriter,
    Modify,
    NewlineNormalizer,
    ParquetReader,
    ParquetWriter,
    ScoreFilter,
    WordCountFilter,
)
from tests.conformance.executor_params import CLUSTER


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files with late columns, changing types, nested values, nulls and a column that few rows have."""
    folder = tmp_path_factory.mktemp("corpus")
    random.seed(5)
    for name, rows in [("a.jsonl", 400), ("b c.jsonl", 300), ("ü.jsonl.gz", 200)]:
        lines = [json.dumps(_row(name, index), ensure_ascii=False) for index in range(rows)]
        opened = gzip.open if name.endswith("gz") else open
        with opened(folder / name, "wt", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    return folder


def _row(name: str, index: int) -> dict[str, Any]:
    words = random.choices(["mill", "grist", "väter", "水", "a\n\n\n\nb", "“so”"], k=random.randrange(40))
    row: dict[str, Any] = {"id": f"{name}-{index}", "text": " ".join(words), "n": index if index < 50 else index / 2}
    if index % 97 == 0:
        row["text"] = None
    if index > 250:
        row["late"] = [index, {"deep": None}]
    if index == 123:
        row["only_here"] = 2**70
    return row


def contents(folder: Path) -> dict[str, bytes]:
    """The data files; the manifest also tells where they are."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith("_")}


def curate(source: Any, out: Path, executor: LocalExecutor, blocksize: int, writer: type, **options: Any) -> Any:
    stages = [
        JsonlReader(source, blocksize=blocksize),
        Modify(NewlineNormalizer()),
        ScoreFilter(WordCountFilter(min_words=36), score_field="words"),
        writer(str(out), **options),
    ]
    Pipeline("same", stages=stages).run(executor)
    return contents(out)


WAYS = [
    (LocalExecutor(num_workers=0), 10**9),
    (LocalExecutor(num_workers=0, fuse=False), 700),
    (LocalExecutor(num_workers=1), 5_000),
    (LocalExecutor(num_workers=2), 300),
    (LocalExecutor(num_workers=7), 20_000),
    (LocalExecutor(num_workers=2, fuse=False), 2_000),
]


@pytest.mark.parametrize(
    ("writer", "options"),
    [
        pytest.param(JsonlWriter, {}, marks=pytest.mark.slow),
        (JsonlWriter, {"target_file_size": 1500, "compression": "gzip"}),
        (ParquetWriter, {}),
    ],
    ids=["jsonl", "jsonl-parts-gzip", "parquet"],
)
def test_same_bytes(corpus: Path, tmp_path: Path, writer: type, options: dict[str, Any]) -> None:
    outs = [
        curate(str(corpus), tmp_path / str(index), executor, blocksize, writer, **options)
        for index, (executor, blocksize) in enumerate(WAYS)
    ]
    assert len(outs[0]) >= 3
    for out in outs[1:]:
        assert out == outs[0]


def test_the_order_of_the_files_does_not_matter(corpus: Path, tmp_path: Path) -> None:
    files = sorted(map(str, corpus.iterdir()))
    one = curate(files, tmp_path / "1", LocalExecutor(2), 5_000, JsonlWriter)
    two = curate(files[::-1], tmp_path / "2", LocalExecutor(2), 5_000, JsonlWriter)
    assert one == two


def test_what_is_read_back_is_what_was_there(corpus: Path, tmp_path: Path) -> None:
    """JSONL to Parquet to JSONL: nested values and huge integers arrive as they were."""
    Pipeline("a", stages=[JsonlReader(str(corpus)), ParquetWriter(str(tmp_path / "p"), nested="json")]).run()
    Pipeline("b", stages=[ParquetReader(str(tmp_path / "p")), JsonlWriter(str(tmp_path / "j"))]).run()
    rows = {}
    for raw in contents(tmp_path / "j").values():
        rows.update({row["id"]: row for row in map(json.loads, raw.splitlines())})
    assert len(rows) == 900
    assert rows["a.jsonl-123"]["only_here"] == 2**70
    assert rows["a.jsonl-300"]["late"] == [300, {"deep": None}]
    assert rows["a.jsonl-97"]["text"] is None


@pytest.mark.parametrize("inside", ["", "out"])
def test_output_and_input_are_kept_apart(tmp_path: Path, inside: str) -> None:
    """Overwriting must never delete the input, and a run must not read what an earlier one wrote."""
    (tmp_path / inside).mkdir(exist_ok=True)
    (tmp_path / inside / "in.jsonl").write_text('{"text":"hi"}\n')
    stages = [JsonlReader(str(tmp_path)), JsonlWriter(str(tmp_path / inside), mode="overwrite")]
    with pytest.raises(PlanError, match="holds the input .*in.jsonl: choose an output directory outside the input"):
        Pipeline("p", stages=stages).run()
    assert (tmp_path / inside / "in.jsonl").exists()


def test_an_input_that_has_become_empty_leaves_no_old_output(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / "in" / f"{name}.jsonl").write_text('{"text":"hi"}\n')
    pipeline = Pipeline("p", stages=[JsonlReader(str(tmp_path / "in")), JsonlWriter(str(tmp_path / "out"))])
    pipeline.run(LocalExecutor(0))
    (tmp_path / "in" / "a.jsonl").write_text("")
    pipeline.run(LocalExecutor(0))
    assert [name[0] for name in contents(tmp_path / "out")] == ["b"]


@pytest.mark.ray
@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", CLUSTER)
def test_same_bytes_on_a_cluster(corpus: Path, tmp_path: Path, cluster: str, name: str, fuse: bool) -> None:
    if name == "xenna":
        pytest.importorskip("cosmos_xenna")
    here = curate(str(corpus), tmp_path / "here", LocalExecutor(0), 10**9, JsonlWriter)
    assert curate(str(corpus), tmp_path / "there", CLUSTER[name](fuse=fuse), 5_000, JsonlWriter) == here
