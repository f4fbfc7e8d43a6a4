"""However often a run is killed and resumed: all that tells of it counts each source once, as the files say."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from gristmill import LocalExecutor, Pipeline, ProcessingStage, Route
from gristmill.cli.main import app
from gristmill.core.executor import Observer, Progress
from gristmill.dedup import ExactDeduplicationStage
from gristmill.observe import Several
from gristmill.observe.events import Events
from gristmill.observe.progress_lines import PlainProgress
from gristmill.observe.prometheus import MetricValues
from gristmill.observe.run_snapshot import ProgressTracker
from gristmill.report.run_report.dataset_card import dataset_card_of_run
from gristmill.text import JsonlReader, JsonlWriter, ScoreFilter, WordCountFilter
from gristmill.view.data.row_sets import RunOrDataset
from tests.promises.fault_pipeline import ROOT, Nap

FILES, ROWS = 5, 60


class Chokes(ProcessingStage[Any, Any]):
    """Raises on the rows that say so."""

    def process(self, task: Any) -> Any:
        if any(task.data["bad"].to_pylist()):
            raise ValueError("a bad row")
        return task


@dataclass(frozen=True)
class Setting:
    """A pipeline, its input, and when its attempts are killed: after so many objects of the ledger."""

    seed: int
    kills: tuple[int, ...]
    workers: int = 2
    filters: int = 1
    routes: bool = False
    dedup: bool = False
    failing: bool = False

    def pipeline(self, place: Path, nap: float) -> Pipeline:
        writer = JsonlWriter(str(place / "out"))
        route = Route("split", {name: JsonlWriter(str(place / name)) for name in ("train", "test")})
        stages = [
            JsonlReader(str(place / "in"), blocksize=2000),
            Nap(nap),
            *([Chokes()] if self.failing else []),
            *(ScoreFilter(WordCountFilter(min_words=3 * number + 3)) for number in range(self.filters)),
            *([ExactDeduplicationStage()] if self.dedup else []),
            route if self.routes else writer,
        ]
        return Pipeline("counted", stages=stages)

    def write_input(self, place: Path) -> None:
        rng = random.Random(self.seed)
        (place / "in").mkdir(parents=True)
        for file in range(FILES):
            rows = [
                {
                    "id": f"{file}-{row}",
                    "text": " ".join(rng.choices("abc", k=rng.randrange(12))),
                    "language": rng.choice(["en", "de", None]),
                    "split": rng.choice(["train", "test"]),
                    "bad": rng.random() < 0.03,
                }
                for row in range(rng.randrange(ROWS))
            ]
            (place / "in" / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def main(message: str) -> None:
    """One attempt, in a process of its own that may be killed."""
    import gristmill.core.records.run_directory as run_directory

    run_directory.FLUSH_SECONDS = 0.01
    asked = json.loads(message)
    place, setting = Path(asked.pop("place")), Setting(**asked)
    run(setting, place, LocalExecutor(setting.workers), 0.002)


def run(setting: Setting, place: Path, executor: LocalExecutor, nap: float = 0.0, **more: Any) -> Any:
    made = setting.pipeline(place, nap)
    return made.run(executor, run_dir=place / "run", rejected=True, scores=True, max_errors=None, **more)


def killed_run(setting: Setting, place: Path, after: int) -> None:
    """Start an attempt, and kill it when it has written so many objects of the ledger."""
    ledger = place / "run" / "ledger"
    before = len(list(ledger.glob("*"))) if ledger.exists() else 0
    code = "import sys; from tests.promises.test_accounting import main; main(sys.argv[1])"
    encoded = json.dumps({**asdict(setting), "place": str(place)})
    paths = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "GRISTMILL_PROGRESS": "off"}
    process = subprocess.Popen([sys.executable, "-c", code, encoded], env=os.environ | paths)
    while process.poll() is None and (len(list(ledger.glob("*"))) if ledger.exists() else 0) < before + after:
        time.sleep(0.002)
    process.kill()
    process.wait()


class Metrics(Observer):
    """What Prometheus would read, and whether a counter ever fell."""

    def started(self, plan: Any) -> None:
        self.tracker, self.values, self.stages = ProgressTracker(plan), MetricValues("counted"), {}

    def progressed(self, progress: Progress) -> None:
        self.tracker.update(progress)
        lines = {(at, one.name): one.dropped for at, one in enumerate(self.tracker.snapshot().stages)}
        assert all(dropped >= self.stages.get(name, 0) for name, dropped in lines.items())
        self.stages |= lines

    def finished(self, progress: Progress) -> None:
        self.progressed(progress)
        self.samples = {
            (family.name, tags.get("stage")): value
            for family, tags, value in self.values.samples(self.tracker.snapshot())
        }


def check(setting: Setting, place: Path, result: Any, metrics: Metrics, events: list[dict[str, Any]]) -> None:
    """Summary, report, card, view, metrics and events say what the files say."""
    lines = [line for path in (place / "in").iterdir() for line in path.read_text().splitlines()]
    folders = ("train", "test") if setting.routes else ("out",)
    kept = {
        name: [json.loads(line) for path in (place / name).glob("*.jsonl") for line in path.read_text().splitlines()]
        for name in folders
    }
    data = RunOrDataset(str(place / "run"))
    dropped = Counter[str]()
    for source in data.row_sets()["dropped"].sources:
        dropped.update(pq.read_table(source.path).column("rejected_by").to_pylist())
    aside = result.quarantined()
    rows_out = sum(map(len, kept.values()))
    assert len(lines) == rows_out + dropped.total() + len(aside)
    assert len({row["id"] for rows in kept.values() for row in rows}) == rows_out
    counts = (len(lines), rows_out, len(aside))

    summary = result.summary()
    assert (summary.rows_in, summary.rows_out, summary.quarantined) == counts
    by_stage = Counter({line.name: 0 for line in summary.stages})
    for line in summary.stages:
        by_stage[line.name] += line.dropped
    assert +by_stage == dropped
    report = json.loads((place / "run" / "report.json").read_text())
    assert (report["rows_in"], report["rows_out"], report["quarantined"]) == counts
    assert [one["dropped"] for one in report["stages"]] == [line.dropped for line in summary.stages]
    assert (sum(report["sources"]["before"].values()), sum(report["sources"]["after"].values())) == counts[:2]
    for stage in report["stages"]:
        for spread in stage.get("spread", {}).values():
            assert sum(spread["counts"]) == stage["rows_in"] or stage["name"] != "WordCountFilter"
    views = data.row_sets()
    assert (views["kept"].rows, views["dropped"].rows, views["quarantined"].rows) == (
        rows_out,
        dropped.total(),
        len(aside),
    )
    check_card(dataset_card_of_run(str(place / "run")), kept, counts)
    found = [(one["stage"], one["rows_in"], one["dropped"]) for one in events if one["event"] == "stage"]
    assert found[-len(summary.stages) :] == [(line.name, line.rows_in, line.dropped) for line in summary.stages]
    totals = {one["name"]: one for one in json.loads((place / "run" / "metrics.json").read_text())["stages"]}
    for name in ("read_jsonl", "WordCountFilter"):
        assert totals[name]["rows_out"] == [line for line in summary.stages if line.name == name][-1].rows_out
        assert metrics.samples["gristmill_stage_rows_out_total", name] == totals[name]["rows_out"]
    assert metrics.samples["gristmill_sources_done_total", None] == result.sources


def check_card(card: str, kept: dict[str, list[Any]], counts: tuple[int, int, int]) -> None:
    """Its numbers, and the sums of its tables."""
    rows_in, rows_out, _ = counts
    share = f" ({rows_out / rows_in:.1%})" if rows_in else ""
    assert f"{rows_out:,} of {rows_in:,} documents{share}" in card or not rows_in
    tables = {part.partition("\n")[0]: part for part in card.split("## ")[1:]}
    if "Languages" in tables:
        cells = [line.split("|")[2:-1] for line in tables["Languages"].splitlines() if line.startswith("| ")][1:]
        sums = [sum(int(cell.replace(",", "")) for cell in column) for column in zip(*cells, strict=True)]
        assert sums == [rows_in, rows_out]
    if "Outputs" in tables:
        assert all(f"| {name} | {len(rows):,} |" in tables["Outputs"] for name, rows in kept.items() if rows)


def killed_and_resumed(setting: Setting, place: Path, workers: int) -> None:
    setting.write_input(place)
    for after in setting.kills:
        killed_run(setting, place, after)
    lines: list[str] = []
    for _ in range(2):  # the second time there is nothing to do, and all is told again
        metrics, events = Metrics(), Events(lines.append, 0.0)
        result = run(setting, place, LocalExecutor(workers), observer=Several(metrics, events))
        check(setting, place, result, metrics, [json.loads(line) for line in lines])
    assert result.nothing_to_do
    assert result.summary(attempt=True).rows_in == 0


@pytest.mark.parametrize(
    ("setting", "workers"),
    [
        (Setting(1, (2,), routes=True, failing=True), 0),
        (Setting(2, (1, 2), workers=0, filters=2), 2),
        (Setting(3, (7,), dedup=True), 0),
    ],
)
def test_a_killed_run_counts_each_source_once(setting: Setting, workers: int, tmp_path: Path) -> None:
    killed_and_resumed(setting, tmp_path, workers)


@pytest.mark.parametrize("dedup", [False, True])
def test_sources_whose_input_is_gone_count_as_long_as_their_output_does(dedup: bool, tmp_path: Path) -> None:
    """Without an exchange, output is kept when its input is removed, so that inputs may come and go."""
    setting = Setting(5, (), dedup=dedup, failing=True)
    setting.write_input(tmp_path)
    run(setting, tmp_path, LocalExecutor(0))
    gone = tmp_path / "in" / "2.jsonl"
    lines = gone.read_text()
    gone.unlink()
    metrics, events = Metrics(), Events((seen := []).append, 0.0)
    result = run(setting, tmp_path, LocalExecutor(0), observer=Several(metrics, events))
    if not dedup:
        assert result.nothing_to_do
        gone.write_text(lines)  # as its output counts, so does what was read of it
    check(setting, tmp_path, result, metrics, [json.loads(line) for line in seen])


def test_output_of_another_pipeline_whose_input_is_gone_is_told_and_not_counted(tmp_path: Path) -> None:
    setting = Setting(6, ())
    setting.write_input(tmp_path)
    run(setting, tmp_path, LocalExecutor(0))
    stale = next((tmp_path / "out").glob("2*"))
    (tmp_path / "in" / "2.jsonl").unlink()
    with pytest.warns(RuntimeWarning, match=f"the pipeline has changed since.*not counted.*{stale}"):
        run(replace(setting, filters=2), tmp_path, LocalExecutor(0))
    stale.unlink()
    metrics, events = Metrics(), Events((seen := []).append, 0.0)
    setting = replace(setting, filters=2)
    result = run(setting, tmp_path, LocalExecutor(0), observer=Several(metrics, events))
    check(setting, tmp_path, result, metrics, [json.loads(line) for line in seen])


def test_a_run_is_looked_at_while_its_sources_are_done_again(tmp_path: Path) -> None:
    """Their files are removed first, and what the ledger says of them is obsolete from then on."""
    setting = Setting(7, ())
    setting.write_input(tmp_path)
    run(setting, tmp_path, LocalExecutor(0))
    before = RunOrDataset(str(tmp_path / "run")).row_sets()
    assert before["dropped"].rows
    killed_run(replace(setting, filters=2, workers=0), tmp_path, 1)
    for path in (tmp_path / "run" / "rejected").glob("*.parquet"):
        path.unlink()
    assert RunOrDataset(str(tmp_path / "run")).row_sets()["dropped"].rows == 0
    result = run(replace(setting, filters=2), tmp_path, LocalExecutor(0))
    assert RunOrDataset(str(tmp_path / "run")).row_sets()["kept"].rows == result.summary().rows_out


def test_a_run_with_nothing_to_do_and_one_that_starts_anew_say_so(tmp_path: Path) -> None:
    Setting(4, ()).write_input(tmp_path)
    recipe = tmp_path / "r.yaml"
    branch = {"JsonlWriter": {"path": str(tmp_path / "out")}}
    other = {"JsonlWriter": {"path": str(tmp_path / "other")}}
    route = {"Route": {"by": "split", "to": {"train": branch, "test": other}}}
    recipe.write_text(json.dumps({"stages": [{"JsonlReader": {"file_paths": str(tmp_path / "in")}}, route]}))
    command = ["run", str(recipe), "--workers", "0"]
    estimated = CliRunner().invoke(app, ["plan", str(recipe), "--estimate"])
    assert "about 0 bytes" not in estimated.stdout
    assert not (tmp_path / "out").exists()
    with_directory = [*command, "--run-dir", str(tmp_path / "run")]
    first, again = (CliRunner().invoke(app, with_directory) for _ in range(2))
    assert "nothing to do" not in first.stdout
    assert "nothing to do: 5 sources were done before" in again.stdout
    counts = [re.findall(r"[0-9,]+ rows in, [0-9,]+ out", found.stdout) for found in (first, again)]
    assert counts[0] == counts[1] != []
    shown = CliRunner(env={"GRISTMILL_PROGRESS": "plain"}).invoke(app, command).stderr
    assert "starts from the beginning" in shown


def test_a_pipeline_in_python_that_starts_anew_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Setting(4, ()).write_input(tmp_path)
    made = Pipeline("again", stages=[JsonlReader(tmp_path / "in"), JsonlWriter(tmp_path / "out")])
    messages = []
    for _ in range(2):
        made.run(LocalExecutor(0), observer=PlainProgress())
        messages.append(capfd.readouterr().err)
    made.run(LocalExecutor(0), run_dir=tmp_path / "run", observer=PlainProgress())
    assert ["starts from the beginning" in one for one in (*messages, capfd.readouterr().err)] == [False, True, False]


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.builds(
        Setting,
        st.integers(0, 10**6),
        st.lists(st.integers(0, 12), max_size=3).map(tuple),
        workers=st.sampled_from([0, 1, 2]),
        filters=st.integers(1, 3),
        routes=st.booleans(),
        dedup=st.booleans(),
        failing=st.booleans(),
    ),
    st.sampled_from([0, 1, 3]),
)
def test_all_that_tells_of_a_run_agrees(
    tmp_path_factory: pytest.TempPathFactory, setting: Setting, workers: int
) -> None:
    killed_and_resumed(setting, tmp_path_factory.mktemp("run"), workers)
