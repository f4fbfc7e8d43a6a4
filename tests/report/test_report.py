"""The report of a run: the same numbers as the run's own, and text from data that stays text."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from gristmill import LocalExecutor, Pipeline, processing_stage
from gristmill.core.errors import StageError
from gristmill.text import JsonlReader, JsonlWriter, ScoreFilter, WordCountFilter

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)> two more words \u2028 &amp; \"quoted\" 'text'"


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for part in range(3):
        texts = [EVIL if row % 10 == 3 else "word " * (row % 8 + 1) for row in range(100)]
        lines = [json.dumps({"id": f"{part}-{row}", "text": text, "lang": "en"}) for row, text in enumerate(texts)]
        (folder / f"part-{part}.jsonl").write_text("\n".join([*lines, "broken"]) + "\n")
    return folder


def pipeline(data, output, least=5):
    stages = [JsonlReader(data), ScoreFilter(WordCountFilter(min_words=least)), JsonlWriter(output, mode="overwrite")]
    return Pipeline("small <b>", stages=stages)


def facts(run_dir):
    return json.loads((run_dir / "report.json").read_text())


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text.append(data)


def test_it_tells_what_the_run_counted(data, tmp_path):
    result = pipeline(data, tmp_path / "out").run(LocalExecutor(2), tmp_path / "run", max_errors=None)
    told, summary = facts(tmp_path / "run"), result.summary()
    assert (told["rows_in"], told["rows_out"], told["quarantined"]) == (summary.rows_in, summary.rows_out, 3)
    assert [stage["name"] for stage in told["stages"]] == [line.name for line in summary.stages]
    judged = next(stage for stage in told["stages"] if stage["name"] == "WordCountFilter")
    assert judged["dropped"] == summary["WordCountFilter"].dropped > 0
    assert sum(judged["spread"]["WordCountFilter"]["counts"]) == 300
    assert judged["limits"]["WordCountFilter"] == [5.0, 100000.0]
    assert all(len(sample["row"]["text"].split()) < 5 for sample in judged["samples"])
    assert told["files"] == 3
    assert told["outcome"] == "finished"
    assert len(told["quarantine"]) == 3


def test_it_is_the_same_whoever_ran_what(data, tmp_path):
    found = []
    executors = {"one": LocalExecutor(0), "two": LocalExecutor(2), "three": LocalExecutor(2, fuse=False)}
    for name, executor in executors.items():
        pipeline(data, tmp_path / "out").run(executor, tmp_path / name, max_errors=None)
        looked = ("name", "rows_in", "rows_out", "dropped", "spread", "samples", "values")
        found.append([{key: stage.get(key) for key in looked} for stage in facts(tmp_path / name)["stages"]])
    assert found[0] == found[1] == found[2]


def test_text_from_data_stays_text(data, tmp_path):
    pipeline(data, tmp_path / "out", least=50).run(LocalExecutor(0), tmp_path / "run", max_errors=None)
    raw = (tmp_path / "run" / "report.html").read_text()
    page = Page()
    page.feed(raw)
    assert not page.tags & {"script", "img", "link", "iframe"}
    assert not {name for name in page.attributes if name.startswith("on")} | page.attributes & {"src", "href"}
    assert any("<script>alert('x')</script>" in text for text in page.text), "the document is there to be read"
    assert "default-src 'none'" in raw
    assert len(raw) < 3_000_000


def test_a_run_that_fails_has_a_report_that_says_so(data, tmp_path):
    @processing_stage(name="boom")
    def boom(task):
        raise ValueError("no <i>good</i>")

    for path in data.iterdir():
        path.write_text('{"text": "a"}\n')
    stages = [JsonlReader(data), boom, JsonlWriter(tmp_path / "out")]
    with pytest.raises(StageError):
        Pipeline("bad", stages=stages).run(LocalExecutor(0), tmp_path / "run", on_error="raise")
    assert facts(tmp_path / "run")["outcome"].startswith("stopped: StageError")
    assert "no &lt;i&gt;good&lt;/i&gt;" in (tmp_path / "run" / "report.html").read_text()


def test_a_run_that_had_nothing_left_to_do_says_what_was_done_before(data, tmp_path):
    for _ in range(2):
        stages = [JsonlReader(data), ScoreFilter(WordCountFilter(min_words=5)), JsonlWriter(tmp_path / "out")]
        Pipeline("twice", stages=stages).run(LocalExecutor(0), tmp_path / "run", max_errors=None)
    told = facts(tmp_path / "run")
    assert (told["done_before"], told["rows_in"], told["files"]) == (3, 0, 3)


def test_nobody_gets_a_report_that_was_not_asked_for(data, tmp_path):
    pipeline(data, tmp_path / "out").run(LocalExecutor(0), max_errors=None)
    pipeline(data, tmp_path / "out").run(LocalExecutor(0), tmp_path / "run", max_errors=None, report=False)
    assert not list(tmp_path.rglob("report.*"))
    pipeline(data, tmp_path / "out").run(LocalExecutor(0), max_errors=None, report=tmp_path / "here")
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["report.html", "report.json"]


def test_a_run_without_a_report_remembers_no_rows(data, tmp_path):
    seen = []

    class Watch:
        def started(self, plan): ...
        def progressed(self, progress): ...
        def finished(self, progress):
            seen.append([name for name, stats in progress.stages if stats.sketch])

    pipeline(data, tmp_path / "a").run(LocalExecutor(0), max_errors=None, observer=Watch())
    pipeline(data, tmp_path / "b").run(LocalExecutor(0), tmp_path / "run", max_errors=None, observer=Watch())
    assert seen == [[], ["read_jsonl", "WordCountFilter", "write_jsonl"]]
