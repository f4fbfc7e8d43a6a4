"""The report of a run: the same numbers as the run's own, and text from data that stays text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
import time
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, Sample, processing_stage
from gristmill.core.errors import StageError
from gristmill.core.result import count_texts
from gristmill.dedup import ExactDeduplicationStage, FuzzyDeduplicationStage
from gristmill.io.exchange.exchange import DEFAULT_SORT_BYTES
from gristmill.report.run_report.dataset_card import dataset_card
from gristmill.text import DocumentFilter, JsonlReader, JsonlWriter, ScoreFilter, WordCountFilter

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
    found, summary = facts(tmp_path / "run"), result.summary()
    assert (found["rows_in"], found["rows_out"], found["quarantined"]) == (summary.rows_in, summary.rows_out, 3)
    assert [stage["name"] for stage in found["stages"]] == [line.name for line in summary.stages]
    judged = next(stage for stage in found["stages"] if stage["name"] == "WordCountFilter")
    assert judged["dropped"] == summary["WordCountFilter"].dropped > 0
    assert sum(judged["spread"]["WordCountFilter"]["counts"]) == 300
    assert judged["limits"]["WordCountFilter"] == [5.0, 100000.0]
    assert all(len(sample["row"]["text"].split()) < 5 for sample in judged["samples"])
    assert found["files"] == 3
    assert found["outcome"] == "finished"
    assert len(found["quarantine"]) == 3


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
    shown = facts(tmp_path / "run")
    assert (shown["done_before"], shown["attempts"], shown["rows_in"], shown["files"]) == (
        3,
        1,
        303,
        3,
    )
    for name in (tmp_path / "run" / "counts").iterdir():
        name.unlink()
    Pipeline("twice", stages=stages).run(LocalExecutor(0), tmp_path / "run", max_errors=None)
    shown = facts(tmp_path / "run")
    assert (shown["done_before"], shown["not_counted"], shown["rows_in"]) == (3, 3, 0)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "3 sources were finished by an earlier attempt; their rows are not counted" in page


class Stumbles(DocumentFilter):
    """The number of words; stops the run at the last file while there is a stone."""

    def __init__(self, stone: str) -> None:
        self.stone = stone

    def score_document(self, text: str) -> int:
        if "2-tail" in text and Path(self.stone).exists():
            raise ValueError("a stone")
        return len(text.split())

    def keep_document(self, score: float) -> bool:
        return score > 3


def test_a_run_that_was_stopped_and_goes_on_tells_of_all_attempts(data, tmp_path):
    lines = [path.read_text().replace("broken\n", "") for path in sorted(data.iterdir())]
    lines[2] += json.dumps({"id": "last", "text": "2-tail of the file", "lang": "sv"}) + "\n"
    for path, text in zip(sorted(data.iterdir()), lines, strict=True):
        path.write_text(text)
    stone = tmp_path / "stone"
    stone.write_text("")
    stages = [JsonlReader(data, blocksize=2000), ScoreFilter(Stumbles(str(stone))), JsonlWriter(tmp_path / "out")]
    made = Pipeline("stopped", stages=stages)
    with pytest.raises(StageError, match="a stone"):
        made.run(LocalExecutor(0), tmp_path / "run", on_error="raise")
    before = facts(tmp_path / "run")
    stone.unlink()
    made.run(LocalExecutor(0), tmp_path / "run")
    shown = facts(tmp_path / "run")
    assert (shown["attempts"], shown["done_before"], shown["not_counted"]) == (2, 2, 0)
    assert shown["rows_in"] == 301
    assert before["rows_in"] - before["unfinished_rows"] + 101 == shown["rows_in"]
    assert before["unfinished_rows"] > 0
    judged = next(stage for stage in shown["stages"] if stage["name"] == "Stumbles")
    assert judged["rows_in"] >= judged["spread"]["Stumbles"]["rows"] > 201
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").glob("*.jsonl"))
    assert shown["rows_out"] == written.count(b"\n")
    assert "2 attempts, counted together" in (tmp_path / "run" / "report.html").read_text()


def test_the_page_stays_small_whatever_the_data_is(tmp_path):
    rows = [{"id": "x" * 3000, **{f"{'column' * 50}{n}": "🌾" * 3000 for n in range(20)}, "text": "wörd " * 5000}] * 20
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    filters = [ScoreFilter(WordCountFilter(min_words=n, max_words=4000 + n)) for n in range(3)]
    shallow = [ScoreFilter(WordCountFilter(min_words=n)) for n in range(10)]
    for name, stages in (("drops", filters), ("keeps", shallow)):
        run = tmp_path / name
        stages = [JsonlReader(tmp_path / "in.jsonl"), *stages, JsonlWriter(tmp_path / f"{name}-out")]
        Pipeline("large", stages=stages).run(LocalExecutor(0), run)
        assert (run / "report.html").stat().st_size < 400_000


def test_it_shows_duplicates_sources_seeds_and_what_was_predicted(data, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "estimate.json").write_text(json.dumps({"seconds": 3.5, "rows_out": 100, "notes": []}))
    stages = [JsonlReader(data), ExactDeduplicationStage(), Sample(0.9, seed=11), JsonlWriter(tmp_path / "out")]
    Pipeline("alike", stages=stages).run(LocalExecutor(0), run, max_errors=None)
    found, shown = facts(run), (run / "report.html").read_text()
    [table] = found["duplicates"]["tables"]
    assert (table["stage"], table["clusters"], table["rows"]) == ("ExactDeduplicationStage", 9, 300)
    assert sum(int(size) * count for size, count in table["sizes"].items()) == 300
    largest = found["duplicates"]["examples"][0]
    assert largest["size"] == max(map(int, table["sizes"]))
    assert [member["kept"] for member in largest["members"]] == [True, False, False]
    assert largest["members"][1]["text"] == largest["members"][0]["text"]
    assert "&lt;script&gt;" in shown
    assert found["seeds"] == [{"stage": "Sample", "parameter": "seed", "seed": 11}]
    assert [line["what"] for line in found["predicted"]] == ["seconds", "rows_out"]
    assert "Predicted and actual" in shown
    assert found["sources"]["by"] == "file"
    assert list(found["sources"]["before"].values()) == [101, 101, 101]
    assert sum(found["sources"]["after"].values()) == found["rows_out"]
    assert found["memory"]["driver"] > 1
    assert [stage["name"] for stage in found["stages"]].count("ExactDeduplicationStage") == 1


def test_stages_of_one_name_have_their_own_scores(data, tmp_path):
    stages = [ScoreFilter(WordCountFilter(min_words=least)) for least in (2, 5)]
    stages = [JsonlReader(data), *stages, JsonlWriter(tmp_path / "out")]
    Pipeline("same", stages=stages).run(LocalExecutor(0), tmp_path / "run", max_errors=None)
    first, second = (stage for stage in facts(tmp_path / "run")["stages"] if stage["name"] == "WordCountFilter")
    assert (first["limits"]["WordCountFilter"][0], second["limits"]["WordCountFilter"][0]) == (2, 5)
    assert first["spread"]["WordCountFilter"]["rows"] > second["spread"]["WordCountFilter"]["rows"]


AXE = """
for (const one of document.querySelectorAll("details")) one.open = true;
axe.run().then(found => {
  document.documentElement.innerHTML = "<body><pre id=found></pre></body>";
  const faults = found.violations.map(({id, impact, nodes}) => ({id, impact, where: nodes[0].html.slice(0, 300)}));
  document.getElementById("found").textContent = JSON.stringify(faults);
});
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--blink-settings=preferredColorScheme=0"], ["--window-size=390,844"]])
def test_axe_finds_nothing_serious(data, tmp_path, options):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    npm = shutil.which("npm")
    if not browser or not npm:
        pytest.skip("needs Chromium and npm")
    packed = subprocess.run([npm, "pack", "axe-core@4.10.2"], cwd=tmp_path, capture_output=True, text=True, check=False)
    if packed.returncode:
        pytest.skip(f"axe-core cannot be had: {packed.stderr[-300:]}")
    with tarfile.open(tmp_path / packed.stdout.split()[-1]) as archive:
        axe = archive.extractfile("package/axe.min.js").read().decode()
    stages = [JsonlReader(data), ScoreFilter(WordCountFilter(min_words=3)), ExactDeduplicationStage()]
    stages += [JsonlWriter(tmp_path / "out")]
    Pipeline("seen", stages=stages).run(LocalExecutor(2), tmp_path / "run", max_errors=None)
    page = (tmp_path / "run" / "report.html").read_text()
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)  # or no script would run
    copy = tmp_path / "page.html"
    copy.write_text(page.replace("</body>", f"<script>{axe}</script><script>{AXE}</script></body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom", *options]
    done = subprocess.run([browser, *flags, copy.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    output = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert output, done.stdout[-500:]
    assert [one for one in json.loads(unescape(output[1])) if one["impact"] in ("serious", "critical")] == []


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
            seen.append([name for name, stats in progress.stages if stats.summary])

    pipeline(data, tmp_path / "a").run(LocalExecutor(0), max_errors=None, observer=Watch())
    pipeline(data, tmp_path / "b").run(LocalExecutor(0), tmp_path / "run", max_errors=None, observer=Watch())
    assert seen == [[], ["read_jsonl", "WordCountFilter", "write_jsonl"]]


def test_sources_are_told_of_all_rows(tmp_path):
    """Also of a run without a directory, if its report lies beside its output."""
    (tmp_path / "in").mkdir()
    for part, end in enumerate(["", "", "broken\n"]):
        (tmp_path / "in" / f"{part}.jsonl").write_text('{"text": "one two three four five"}\n' * 10 + end)

    @processing_stage(name="wait")
    def wait(task: DocumentBatch) -> DocumentBatch:
        time.sleep(0.6)
        return task

    waiting = pipeline(tmp_path / "in", tmp_path / "out")
    waiting.stages.insert(1, wait)
    waiting.run(LocalExecutor(0), max_errors=None, report=tmp_path / "out.run")
    assert sum(facts(tmp_path / "out.run")["sources"]["before"].values()) == 31
    pipeline(tmp_path / "in", tmp_path / "out").run(LocalExecutor(0), tmp_path / "run", max_errors=None)
    assert sum(facts(tmp_path / "run")["sources"]["before"].values()) == 31


def near_duplicates(tmp_path, field="text", clusters=5, alike=6):
    """Clusters of texts of which only the last word differs, in two files."""
    folder = tmp_path / "near"
    folder.mkdir()
    for part in range(2):
        lines = [
            {"id": f"d{cluster}{row}", field: " ".join(f"w{cluster}x{n}" for n in range(60)) + f" end{row}"}
            for cluster in range(clusters)
            for row in range(part, alike, 2)
        ]
        (folder / f"{part}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def deduplicated(tmp_path, folder, *stages, **options):
    run = tmp_path / "run"
    stages = [JsonlReader(folder), *stages, JsonlWriter(tmp_path / "out")]
    Pipeline("alike", stages=stages).run(LocalExecutor(0), run, **options)
    return facts(run)["duplicates"], (run / "report.html").read_text()


@pytest.mark.parametrize("sort_bytes", [DEFAULT_SORT_BYTES, 500])
def test_clusters_that_lie_in_several_files_are_counted_once(tmp_path, monkeypatch, sort_bytes):
    monkeypatch.setattr("gristmill.report.run_report.duplicate_clusters.DEFAULT_SORT_BYTES", sort_bytes)
    stage = FuzzyDeduplicationStage(word_ngrams=5, threshold=0.7, memory_gb=1e-5, num_partitions=3)
    found, _ = deduplicated(tmp_path, near_duplicates(tmp_path), stage)
    files = list((tmp_path / "run" / "clusters").iterdir())
    tables = [pq.read_table(file)["cluster"].to_pylist() for file in files]
    assert sum(len(set(names)) for names in tables) > len({name for names in tables for name in names})
    [table] = found["tables"]
    assert (table["clusters"], table["rows"], table["kept"], table["sizes"]) == (5, 30, 5, {"6": 5})
    assert [one["size"] for one in found["examples"]] == [6] * 5
    assert all([member["kept"] for member in one["members"]] == [True, False, False] for one in found["examples"])
    assert not list((tmp_path / "run").rglob("gristmill-sort-*"))


def test_clusters_of_several_stages_are_counted_apart(tmp_path):
    folder = near_duplicates(tmp_path)
    (folder / "2.jsonl").write_text((folder / "0.jsonl").read_text())
    stages = [ExactDeduplicationStage(), FuzzyDeduplicationStage(word_ngrams=5, threshold=0.7)]
    found, shown = deduplicated(tmp_path, folder, *stages)
    assert [(table["stage"], table["rows"], table["sizes"]) for table in found["tables"]] == [
        ("ExactDeduplicationStage", 30, {"2": 15}),
        ("FuzzyDeduplicationStage", 30, {"6": 5}),
    ]
    for text in ("Exact", 30, 15), ("Fuzzy", 30, 5):
        assert "{}DeduplicationStage: {} rows are in {} clusters; one of each was kept.".format(*text) in shown
    assert "ExactDeduplicationStage: 30 documents were in 15 clusters" in dataset_card(facts(tmp_path / "run"))
    of_stages = [one["stage"] for one in found["examples"]]
    assert of_stages == ["FuzzyDeduplicationStage"] * 3 + ["ExactDeduplicationStage"] * 3
    assert "__verdict__" not in shown
    assert [one["size"] for one in found["examples"]] == [6, 6, 6, 2, 2, 2]
    assert all(member["text"].startswith("w") for one in found["examples"] for member in one["members"])


@pytest.mark.parametrize("options", [{}, {"rejected": True}])
@pytest.mark.parametrize("id_field", [None, "id"])
def test_examples_of_duplicates_show_what_was_compared(tmp_path, id_field, options):
    stage = FuzzyDeduplicationStage("content", word_ngrams=5, threshold=0.7, id_field=id_field)
    found, shown = deduplicated(tmp_path, near_duplicates(tmp_path, "content"), stage, **options)
    for one in found["examples"]:
        texts = [member["text"] for member in one["members"]]
        assert len({text.rpartition(" ")[0] for text in texts}) == 1
        assert len(set(texts)) == 3
    assert found["note"] == ""
    assert "w0x0 w0x1" in shown
    similar = [stage for stage in facts(tmp_path / "run")["stages"] if stage["name"] == "FuzzyDeduplicationStage"]
    assert similar[0]["spread"]["similarity"]["rows"] == similar[0]["dropped"] == 25
    assert similar[0]["limits"]["similarity"] == [0.7]


def test_examples_of_duplicates_show_all_columns_that_were_compared(tmp_path):
    lines = [{"id": f"a:{row}", "title": "The mill", "year": 1900, "text": str(row)} for row in range(3)]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    stage = ExactDeduplicationStage(columns=["title", "year"], id_field="id")
    found, _ = deduplicated(tmp_path, tmp_path / "in.jsonl", stage)
    members = found["examples"][0]["members"]
    assert [(member["id"], member["text"]) for member in members] == [
        (f"a:{row}", "title: The mill\nyear: 1900") for row in range(3)
    ]


def test_a_duplicate_that_is_not_found_has_its_id_and_a_remark(tmp_path, monkeypatch):
    monkeypatch.setattr("gristmill.report.run_report.cluster_row_texts.SEARCHED_INPUT_BYTES", 0)
    monkeypatch.setattr("gristmill.report.run_report.cluster_row_texts.DEFAULT_BLOCK_BYTES", 256)
    stage = FuzzyDeduplicationStage(word_ngrams=5, threshold=0.7, id_field="id")
    found, shown = deduplicated(tmp_path, near_duplicates(tmp_path), stage)
    texts = {member["id"]: member["text"] for one in found["examples"] for member in one["members"]}
    assert texts["d00"] is not None
    assert texts["d41"] is None
    assert "rejected=True" in found["note"]
    assert "d41 · dropped" in shown


def test_ids_are_looked_for_among_rejected_rows_and_in_no_input_that_is_far(tmp_path):
    far = fsspec.filesystem("memory")
    for path in near_duplicates(tmp_path).iterdir():
        far.pipe(f"/far-alike/{path.name}", path.read_bytes())
    stage = FuzzyDeduplicationStage(word_ngrams=5, threshold=0.7, id_field="id")
    found, _ = deduplicated(tmp_path, "memory://far-alike", stage, rejected=True)
    members = [member for one in found["examples"] for member in one["members"]]
    assert {member["kept"] for member in members} == {True, False}
    assert all((member["text"] is None) == member["kept"] for member in members)
    assert "nor in the first 8 MB of a local input" in found["note"]


def test_clusters_of_which_an_index_has_a_row_keep_none(tmp_path):
    folder = near_duplicates(tmp_path)
    for name, stage in (
        ("first", FuzzyDeduplicationStage(word_ngrams=5, threshold=0.7, extend=tmp_path / "index")),
        ("second", FuzzyDeduplicationStage(word_ngrams=5, threshold=0.7, against=[str(tmp_path / "index")])),
    ):
        stages = [JsonlReader(folder), stage, JsonlWriter(tmp_path / f"{name}-out")]
        Pipeline(name, stages=stages).run(LocalExecutor(0), tmp_path / name)
    found, shown = facts(tmp_path / "second")["duplicates"], (tmp_path / "second" / "report.html").read_text()
    [table] = found["tables"]
    assert (table["clusters"], table["rows"], table["kept"]) == (5, 30, 0)
    assert "none was kept: the index already has similar rows" in shown


def test_counters_are_shown_in_words() -> None:
    counts = {
        "candidate_pairs": 2200,
        "sample_pairs": 9,
        "clusters_of_2": 3,
        "largest_cluster": 3,
        "estimated_recall": 1,
    }
    assert count_texts(counts) == ["2,200 candidate pairs", "largest cluster 3", "estimated recall 100.0%"]
