"""The folder of an output holds only data: the records of a run lie beside it, and are found from either."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline, Route
from gristmill.core.errors import PlanError
from gristmill.core.records.run_location import find_outputs, find_run, records_beside
from gristmill.dedup import ExactDeduplicationStage, ExactDeduplicationWorkflow
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.report.why import why
from gristmill.text import (
    JsonlReader,
    JsonlWriter,
    MegatronTokenizerWriter,
    Modify,
    ParquetWriter,
    ScoreFilter,
    UrlRemover,
    WordCountFilter,
)

HERE = LocalExecutor(0)
ALL: dict[str, Any] = {"rejected": True, "scores": True}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        rows = [
            {"id": f"{number}-{row}", "text": "word " * (row + 1), "language": "en" if row % 2 else "de"}
            for row in range(10)
        ]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def pipeline(corpus: Path, *writer: Any) -> Pipeline:
    return Pipeline("p", stages=[JsonlReader(corpus), ScoreFilter(WordCountFilter(4)), *writer])


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def routed(out: Path) -> Route:
    return Route("language", {"en": JsonlWriter(out / "en"), "de": ParquetWriter(out / "de")})


@pytest.mark.parametrize("run_dir", [None, "run"])
def test_an_output_holds_only_data_and_leads_to_its_run(corpus: Path, tmp_path: Path, run_dir: str | None) -> None:
    place = run_dir and tmp_path / run_dir
    pipeline(corpus, JsonlWriter(tmp_path / "out")).run(HERE, run_dir=place, **ALL)
    assert [name.rpartition(".")[2] for name in names(tmp_path / "out")] == ["jsonl"] * 3
    assert "manifest.json" in names(tmp_path / "out.run")
    records = place or tmp_path / "out.run"
    assert {"plan.json", "report.html"} < set(names(records))
    for given in (tmp_path / "out", f"{tmp_path}/out/", tmp_path / "out.run", records):
        found = find_run(str(given))
        assert found is not None
        assert found.url == str(records)
        assert find_outputs(str(given)) == [str(tmp_path / "out")]
        assert why(str(given), "0-2")[0].fate == "dropped"


@pytest.mark.parametrize("run_dir", [None, "run"])
def test_every_output_of_a_route_leads_to_the_run(corpus: Path, tmp_path: Path, run_dir: str | None) -> None:
    place = run_dir and tmp_path / run_dir
    pipeline(corpus, routed(tmp_path / "out")).run(HERE, run_dir=place, **ALL)
    assert {name.rpartition(".")[2] for name in names(tmp_path / "out" / "en")} == {"jsonl"}
    assert {name.rpartition(".")[2] for name in names(tmp_path / "out" / "de")} == {"parquet"}
    records = place or tmp_path / "out" / "en.run"
    for name in ("en", "de"):
        found = find_run(str(tmp_path / "out" / name))
        assert found is not None
        assert found.url == str(records)
        assert find_outputs(str(tmp_path / "out" / name)) == [str(tmp_path / "out" / name)]
    assert find_outputs(str(records)) == [str(tmp_path / "out" / name) for name in ("en", "de")]
    (tmp_path / "out").rename(tmp_path / "moved")
    if place is None:
        found = find_run(str(tmp_path / "moved" / "de"))
        assert found is not None
        assert found.url == str(tmp_path / "moved" / "en.run")


def test_a_run_directory_that_a_later_run_does_not_use_is_not_found(corpus: Path, tmp_path: Path) -> None:
    made = pipeline(corpus, JsonlWriter(tmp_path / "out"))
    made.run(HERE, run_dir=tmp_path / "first")
    made.run(HERE, run_dir=tmp_path / "out.run")
    found = find_run(str(tmp_path / "out"))
    assert found is not None
    assert found.url == str(tmp_path / "out.run")
    assert made.run(HERE, run_dir=tmp_path / "out.run").summary(attempt=True).rows_in == 0  # it is resumed, and done
    made.run(HERE, run_dir=tmp_path / "first")
    found = find_run(str(tmp_path / "out"))
    assert found is not None
    assert found.url == str(tmp_path / "first")


def test_records_beside_an_output_are_not_read_as_data(corpus: Path, tmp_path: Path) -> None:
    pipeline(corpus, JsonlWriter(tmp_path / "many" / "out")).run(HERE, run_dir=tmp_path / "many" / "out.run", **ALL)
    (tmp_path / "many" / "2024.run").mkdir()
    (tmp_path / "many" / "2024.run" / "own.jsonl").write_text('{"text": "not a record of a run"}\n')
    for paths in (tmp_path / "many", str(tmp_path / "many" / "**" / "*.jsonl")):
        copied = Pipeline("copy", stages=[JsonlReader(paths), JsonlWriter(tmp_path / "copy", mode="overwrite")])
        assert copied.run(HERE).summary().rows_in == 22


class Watched(LocalExecutor):
    """Notes which files there are in the output while a run goes on."""

    def __init__(self, out: Path) -> None:
        super().__init__(0)
        self.out, self.seen = out, set[str]()

    def execute(self, job: Any) -> Iterator[Any]:
        for result in super().execute(job):
            self.seen.update(names(self.out))
            yield result


@pytest.mark.parametrize("run_dir", [None, "run"])
def test_temporary_files_are_never_in_the_output(corpus: Path, tmp_path: Path, run_dir: str | None) -> None:
    class Look(UrlRemover):
        def modify_document(self, text: str) -> str:
            executor.seen.update(names(tmp_path / "out"))
            return text

    executor = Watched(tmp_path / "out")
    writer = ParquetWriter(tmp_path / "out")
    stages = [JsonlReader(corpus, blocksize=100), Modify(Look()), writer]
    Pipeline("p", stages=stages).run(executor, run_dir=run_dir and tmp_path / run_dir)
    assert {name.rpartition(".")[2] for name in executor.seen} == {"parquet"}
    assert not list(tmp_path.rglob("_tmp"))


def test_workflows_keep_their_records_beside_the_output(corpus: Path, tmp_path: Path) -> None:
    result = ExactDeduplicationWorkflow(corpus, tmp_path / "out").run(HERE)
    assert result.duplicates == 20
    assert [name.rpartition(".")[2] for name in names(tmp_path / "out")] == ["jsonl"]
    assert result.clusters_path == str(tmp_path / "out.run" / "clusters")
    assert list((tmp_path / "out.run" / "clusters").glob("*.parquet"))
    assert not list(tmp_path.rglob("_tmp"))


def test_tokens_are_written_without_records(corpus: Path, tmp_path: Path) -> None:
    class Words:
        eos_token_id = 0
        vocab_size = 100

        def encode(self, text: str, **_: Any) -> list[int]:
            return [len(word) for word in text.split()]

        def __len__(self) -> int:
            return 100

    pipeline(corpus, MegatronTokenizerWriter(tmp_path / "out", Words())).run(HERE, **ALL)
    assert {name.rpartition(".")[2] for name in names(tmp_path / "out")} == {"bin", "idx"}


# -- where records cannot be ------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["run_dir", "rejected", "scores", "report"])
@pytest.mark.parametrize("inside", ["out", "out/_run", "out/../out/x"])
def test_records_inside_of_an_output_are_refused(corpus: Path, tmp_path: Path, option: str, inside: str) -> None:
    made = pipeline(corpus, JsonlWriter(tmp_path / "out"))
    with pytest.raises(PlanError, match=rf"{option}=.* lies in the output .*such as .*out\.run"):
        made.run(HERE, **{option: tmp_path / inside})
    assert not (tmp_path / "out").exists()


def test_an_output_in_its_run_directory_is_as_good_as_another(corpus: Path, tmp_path: Path) -> None:
    made = pipeline(corpus, JsonlWriter(tmp_path / "work" / "out"))
    made.run(HERE, run_dir=tmp_path / "work", **ALL)
    assert len(names(tmp_path / "work" / "out")) == 3
    found = find_run(str(tmp_path / "work" / "out"))
    assert found is not None
    assert found.url == str(tmp_path / "work")


def test_an_output_in_another_output_is_refused(corpus: Path, tmp_path: Path) -> None:
    nested = Route("language", {"en": JsonlWriter(tmp_path / "out")}, otherwise=JsonlWriter(tmp_path / "out" / "rest"))
    with pytest.raises(PlanError, match="out/rest lies in the output .*out, so that"):
        pipeline(corpus, nested).run(HERE)


@pytest.mark.parametrize("url", ["/", "s3://bucket", "s3://bucket/", "memory://", "gs://b"])
def test_an_output_without_room_beside_it_is_refused(url: str) -> None:
    with pytest.raises(PlanError, match=r"Write to a folder in it, such as .*/data"):
        OutputDirectory(url).check()


def test_an_output_on_the_hub_is_refused(corpus: Path) -> None:
    with pytest.raises(PlanError, match="gristmill push"):
        pipeline(corpus, JsonlWriter("hf://datasets/me/words/data")).run(HERE)


def test_records_are_beside_whatever_the_output_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert records_beside(".") == f"{tmp_path}.run"
    assert records_beside("a/..") == f"{tmp_path}.run"
    assert records_beside("out/") == records_beside(f"file://{tmp_path}/out") == f"{tmp_path}/out.run"
    assert records_beside("link") == f"{tmp_path}/real.run"
    assert records_beside("s3://bucket/out/") == "s3://bucket/out.run"
    assert records_beside("memory://out") == "memory://out.run"


def test_an_output_in_the_working_directory_and_on_an_object_store(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    pipeline(corpus, JsonlWriter(".")).run(HERE, **ALL)
    assert len(names(tmp_path / "here")) == 3
    assert "manifest.json" in names(tmp_path / "here.run")
    store = fsspec.filesystem("memory")
    pipeline(corpus, JsonlWriter("memory://beside/out/")).run(HERE, **ALL)
    assert [name.rpartition(".")[2] for name in store.find("/beside/out")] == ["jsonl"] * 3
    assert store.exists("/beside/out.run/manifest.json")
    assert find_outputs("memory://beside/out.run") == ["memory://beside/out"]
    assert not [name for name in store.find("/beside") if "/_tmp" in name]


def test_records_with_rows_can_be_read_by_their_user_only(corpus: Path, tmp_path: Path) -> None:
    stages = [JsonlReader(str(corpus)), ExactDeduplicationStage(), JsonlWriter(str(tmp_path / "out"))]
    Pipeline("p", stages=stages).run(LocalExecutor(0), tmp_path / "run", rejected=True, scores=True)
    folders = [path for path in (tmp_path / "run").iterdir() if path.is_dir() and path.name != "segments"]
    folders += (tmp_path / "run" / "segments").iterdir()
    assert {"rejected", "scores", "clusters", "counts", "ledger", "1"} <= {path.name for path in folders}
    assert [path.name for path in folders if path.stat().st_mode & 0o077] == []
    assert (tmp_path / "out").stat().st_mode & 0o044
