"""The report names how many rows each rule of a filter dropped, and how many got each label."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline, processing_stage
from gristmill.core.errors import StageError
from gristmill.report.run_records import Records
from gristmill.text import (
    C4QualityFilter,
    DocumentFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    JsonlReader,
    JsonlWriter,
    ScoreFilter,
    UrlBlocklistFilter,
    WordCountFilter,
)

pytestmark = pytest.mark.filterwarnings("ignore:stage .* is made for English")
HERE = LocalExecutor(0)
SENTENCE = "The mill of the village is old, and people have to walk there with their grain. "


class Shelf(DocumentFilter):
    """The shelf that a text belongs on."""

    def __init__(self, several: bool = False) -> None:
        self.several = several

    def score_document(self, text: str) -> Any:
        label = ("short", "long")[len(text) > 300]
        return [label, "list"] if self.several else label

    def keep_document(self, score: Any) -> bool:
        return "long" in score


class Many(Shelf):
    """A label for each text."""

    def score_document(self, text: str) -> str:
        return text[:40]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for file in range(4):
        rows = []
        for n in range(file, 100, 4):
            parts = (SENTENCE * (n % 13), "A { is on this line.\n" * (n % 4 == 0), "# " * (n % 7), "grist\n" * (n % 5))
            url = ("https://mill.example/a", "https://bad.example/b", "https://x.example/sexy-adult")[n % 3]
            rows.append({"id": f"{n}", "text": f"{n}\n".join(parts), "url": url})
        (tmp_path / "in" / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def run(place: Path, stages: Sequence[Any], name: str = "run", executor: Any = HERE, **more: Any) -> list[Any]:
    writer = JsonlWriter(place / f"out-{name}", mode="overwrite")
    pipeline = Pipeline("rules", stages=[JsonlReader(place / "in"), *stages, writer])
    pipeline.run(executor, place / name, **more)
    return message(place, name)


def message(place: Path, name: str = "run") -> list[Any]:
    return [stage for stage in json.loads((place / name / "report.json").read_text())["stages"] if stage.get("rules")]


FILTERS: list[tuple[Any, dict[str, Any]]] = [
    (GopherQualityFilter(), {}),
    (GopherQualityFilter(), {"invert": True}),
    (GopherRepetitionFilter(), {}),
    (FineWebQualityFilter(), {}),
    (C4QualityFilter(), {}),
    (UrlBlocklistFilter(domains=["bad.example"], soft_words=["sexy", "adult"]), {"text_field": "url"}),
    ([WordCountFilter(20), GopherQualityFilter(min_doc_words=60), FineWebQualityFilter()], {}),
    (WordCountFilter(20), {}),
]


@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize(("tool", "options"), FILTERS)
def test_rules_add_up_to_the_rows_that_are_dropped(
    place: Path, tool: Any, options: dict[str, Any], scores: bool
) -> None:
    (stage,) = run(place, [ScoreFilter(tool, **options)], rejected=True, scores=scores)
    assert sum(one["dropped"] for one in stage["rules"]) == stage["dropped"] > 0
    counted = {(one["filter"], one["rule"]): one["dropped"] for one in stage["rules"] if one["dropped"]}
    assert counted == rejected_by_rule(place)
    for one in stage["rules"]:
        assert one["share"] == pytest.approx(one["dropped"] / stage["rows_in"])


def rejected_by_rule(place: Path) -> dict[Any, int]:
    found: Counter[Any] = Counter()
    for rows in Records(str(place / "run")).rejected or ():
        table = rows.to_table(columns=["rejected_filter", "rejected_rule"])
        found.update((row["rejected_filter"], row["rejected_rule"]) for row in table.to_pylist())
    return dict(found)


def test_counts_of_rules_need_no_records_and_no_special_executor(place: Path) -> None:
    stages = [ScoreFilter([GopherQualityFilter(), FineWebQualityFilter()])]
    found = [
        [stage["rules"] for stage in run(place, stages, name, executor)]
        for name, executor in (("one", HERE), ("two", LocalExecutor(2)))
    ]
    found.append([stage["rules"] for stage in run(place, stages, "three", scores=True, rejected=True)])
    assert found[0] == found[1] == found[2]


def test_a_stopped_and_resumed_run_counts_each_row_once(place: Path) -> None:
    @processing_stage(name="stops")
    def stops(task: Any) -> Any:
        if (place / "stop").exists() and "2.jsonl" in str(task.files):
            raise ValueError("here")
        return task

    stages = [ScoreFilter(GopherQualityFilter()), ScoreFilter(Shelf()), stops]
    whole = run(place, stages, "whole")
    (place / "stop").touch()
    with pytest.raises(StageError):
        run(place, stages, on_error="raise")
    (place / "stop").unlink()
    again = run(place, stages)
    assert json.loads((place / "run" / "report.json").read_text())["attempts"] == 2
    for before, after in zip(whole, again, strict=True):
        assert (before["rules"], before["labels"]) == (after["rules"], after["labels"])
        assert sum(one["dropped"] for one in after["rules"]) == after["dropped"] > 0


def test_rows_that_a_later_stage_fails_on_count_once(place: Path) -> None:
    @processing_stage(name="chokes")
    def chokes(task: Any) -> Any:
        if any("7" in text[:2] for text in task.data.column("text").to_pylist()):
            raise ValueError("here")
        return task

    (stage,) = run(place, [ScoreFilter(GopherQualityFilter()), chokes], max_errors=None)
    assert sum(one["dropped"] for one in stage["rules"]) == stage["dropped"] > 0


@pytest.mark.parametrize(
    ("tool", "names"), [(Shelf(), ["long", "short"]), (Shelf(True), ["long, list", "short, list"])]
)
def test_labels_are_counted(place: Path, tool: Any, names: list[str]) -> None:
    (stage,) = run(place, [ScoreFilter(tool)])
    labels = stage["labels"]["Shelf"]
    assert sorted(labels) == names
    assert labels[names[0]]["dropped"] == 0
    assert labels[names[1]]["rows"] == labels[names[1]]["dropped"] == stage["dropped"] > 0
    assert sum(found["rows"] for found in labels.values()) == stage["rows_in"] == 100


def test_labels_beyond_the_first_are_counted_together(place: Path) -> None:
    lines = [json.dumps({"text": f"label {n}"}) for n in range(300)]
    (place / "in" / "0.jsonl").write_text("\n".join(lines) + "\n")
    (stage,) = run(place, [ScoreFilter(Many())])
    labels = stage["labels"]["Many"]
    assert len(labels) == 201
    assert sum(found["rows"] for found in labels.values()) == stage["rows_in"] == 375
    assert sum(found["dropped"] for found in labels.values()) == stage["dropped"]


def test_the_page_has_a_bar_for_each_rule(place: Path) -> None:
    tools = [WordCountFilter(20), GopherQualityFilter(min_doc_words=60, max_bullet_lines_ratio=None)]
    (stage,) = run(place, [ScoreFilter(tools)])
    page = (place / "run" / "report.html").read_text()
    card = next(part for part in page.split("<h3>") if part.startswith("WordCountFilter, GopherQualityFilter"))
    bars = re.findall(r"<span class=name>(.*?) <small>(.*?)</small></span>.*?<span class=row-text>(.*?)</span>", card)
    assert ("words", "at least 60, at most 100,000 (min_doc_words, max_doc_words)") in [bar[:2] for bar in bars]
    assert ("WordCountFilter", "min_words=20, max_words=100000") in [bar[:2] for bar in bars]
    assert "bullets" not in [bar[0] for bar in bars]
    counted = [int(found[1]) for _, _, text in bars if (found := re.match(r"(\d+) dropped", text))]
    assert sum(counted) == stage["dropped"] > 0
    assert "there for the first rule that it breaks" in card


def test_the_page_has_a_bar_for_each_label(place: Path) -> None:
    (stage,) = run(place, [ScoreFilter(Shelf(True))])
    page = (place / "run" / "report.html").read_text()
    assert f"0 of {stage['dropped']}" in page.partition("rows kept, by label")[2]


def test_counts_of_an_earlier_version_are_not_made_up(place: Path) -> None:
    @processing_stage(name="stops")
    def stops(task: Any) -> Any:
        if (place / "stop").exists() and "2.jsonl" in str(task.files):
            raise ValueError("here")
        return task

    (place / "stop").touch()
    stages = [ScoreFilter(GopherQualityFilter()), stops]
    with pytest.raises(StageError):
        run(place, stages, on_error="raise")
    (place / "stop").unlink()
    for path in (place / "run" / "counts").iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for summary in (stage[-1] for line in lines for stage in line.get("stages", ())):
            for name in ("drops", "labels") if summary else ():
                del summary[name]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (stage,) = run(place, stages)
    assert sum(one["dropped"] for one in stage["rules"]) == stage["dropped"]
    assert stage["rules"][-1]["limit"].startswith("not known")
    assert stage["rules"][-1]["dropped"] > 0


def test_a_rule_that_allows_nothing_says_so(place: Path) -> None:
    (stage,) = run(place, [ScoreFilter(C4QualityFilter())])
    limits = {one["rule"]: one["limit"] for one in stage["rules"]}
    assert limits["curly_brackets"] == "none allowed (filter_curly_bracket=True)"
    assert limits["sentences"] == "at least 5 (min_num_sentences)"
