"""Scores are kept beside the data, whoever computed them; what-if and why are told from them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage, Sample
from gristmill.core.errors import InputError, PlanError
from gristmill.dedup import (
    ExactDeduplicationStage,
)
from gristmill.report.run_records import Records, row_id
from gristmill.report.whatif import whatif
from gristmill.report.why import why
from gristmill.text import (
    DocumentFilter,
    JsonlReader,
    JsonlWriter,
    MeanWordLengthFilter,
    Modify,
    PunctuationFilter,
    RedactPii,
    RepeatingTopNGramsFilter,
    Score,
    ScoreFilter,
    UrlRemover,
    WordCountFilter,
)

FILES, ROWS = 2, 150
HERE = LocalExecutor(num_workers=0)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    rng = random.Random(7)
    words = ["grist", "mill", "of", "stone.", "flour", "a"]
    for number in range(FILES):
        rows = [
            {
                "id": f"{number}-{row}",
                "text": " ".join(rng.choices(words, k=rng.randrange(60))),
                "language": rng.choice(["en", "de"]),
                "source": rng.choice(["web", "books"]),
            }
            for row in range(ROWS)
        ]
        rows += [dict(rows[0], id=f"{number}-again")]
        (folder / f"part-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


class EveryThird(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Drops by the row's own content, and does not say so."""

    takes_empty = True

    def process(self, task: DocumentBatch) -> DocumentBatch:
        import pyarrow as pa

        flags = [not row["id"].endswith("3") for row in task.to_rows()]
        return task.keep(pa.array(flags, pa.bool_()))


class Picky(DocumentFilter):
    """The length; fails on some documents."""

    def score_document(self, text: str) -> float:
        if text.startswith("flour flour"):
            raise ValueError("too much flour")
        return float(len(text))

    def keep_document(self, score: float) -> bool:
        return score > 20


def filters(words: int = 20, mean: float = 4.5) -> list[Any]:
    return [
        ScoreFilter(WordCountFilter(min_words=words)),
        ScoreFilter([MeanWordLengthFilter(3, mean), PunctuationFilter(0.95)]),
        ScoreFilter(RepeatingTopNGramsFilter(n=2, max_repeating_ngram_ratio=0.3), score_field="grams"),
    ]


def pipeline(corpus: Path, out: Path, stages: list[Any], **settings: Any) -> Pipeline:
    return Pipeline("scored", stages=[JsonlReader(str(corpus), **settings), *stages, JsonlWriter(str(out))])


def scores(run: Path) -> dict[str, dict[str, Any]]:
    """The rows of the scores, by id."""
    found = Records(str(run)).scores
    assert found is not None
    return {row["id"]: row for row in found.table().to_pylist()}


def files(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run / "scores").glob("*.parquet"))}


def written(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.glob("*.jsonl"))}


def ids(out: Path) -> set[str]:
    return {json.loads(line)["id"] for content in written(out).values() for line in content.splitlines()}


def test_every_row_has_the_score_of_every_filter_also_after_it_was_dropped(corpus: Path, tmp_path: Path) -> None:
    out, run = tmp_path / "out", tmp_path / "run"
    result = pipeline(corpus, out, filters()).run(HERE, run_dir=run, scores=True)
    rows = scores(run)
    texts = {
        row["id"]: row["text"] for path in corpus.iterdir() for row in map(json.loads, path.read_text().splitlines())
    }
    assert rows.keys() == texts.keys()
    for key, row in rows.items():
        assert row["chars"] == len(texts[key])
        assert row["WordCountFilter"] == WordCountFilter().score_document(texts[key])
        mean = row["MeanWordLengthFilter, PunctuationFilter/MeanWordLengthFilter"]
        assert mean == pytest.approx(MeanWordLengthFilter().score_document(texts[key]))
        grams = RepeatingTopNGramsFilter(n=2).score_document(texts[key])
        assert row["RepeatingTopNGramsFilter"] == pytest.approx(grams)
        assert row["language"] in ("en", "de")
    assert {key for key, row in rows.items() if row["dropped_by"] is None} == ids(out)
    dropped = [row["dropped_by"] for row in rows.values()]
    for line in result.summary().stages:
        if line.dropped:
            assert dropped.count(line.name) == line.dropped


def test_output_and_counts_are_the_same_with_scores_and_without(corpus: Path, tmp_path: Path) -> None:
    plain = pipeline(corpus, tmp_path / "plain", filters()).run(HERE)
    kept = pipeline(corpus, tmp_path / "kept", filters()).run(HERE, run_dir=tmp_path / "run", scores=True)
    assert written(tmp_path / "plain") == written(tmp_path / "kept")
    counts = [[(line.name, line.rows_in, line.rows_out) for line in one.summary().stages] for one in (plain, kept)]
    assert counts[0] == counts[1]


def test_the_bytes_do_not_depend_on_blocks_and_workers(corpus: Path, tmp_path: Path) -> None:
    stages = [*filters(), EveryThird(), Score(len, "length"), Modify(UrlRemover()), Sample(0.7), *filters(30)]
    runs = {"one": (HERE, {}), "small": (HERE, {"blocksize": 6000}), "two": (LocalExecutor(2), {"blocksize": 9000})}
    for name, (executor, settings) in runs.items():
        made = pipeline(corpus, tmp_path / f"out-{name}", stages, **settings)
        made.run(executor, run_dir=tmp_path / name, scores=True)
    expected = files(tmp_path / "one")
    assert len(expected) == FILES
    assert files(tmp_path / "small") == expected
    assert files(tmp_path / "two") == expected
    rows = scores(tmp_path / "one").values()
    assert {row["dropped_by"] for row in rows} >= {"EveryThird", "Sample", "WordCountFilter", "WordCountFilter 2", None}
    assert all(row["len/length"] == row["chars"] for row in rows if row["len/length"] is not None)
    lost = [row for row in rows if row["dropped_by"] == "WordCountFilter"]
    assert all(row["WordCountFilter 2"] is None for row in lost)  # the text was changed before it got there


def test_scores_say_the_same_as_rejected_rows(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pipeline(corpus, tmp_path / "out", [*filters(), EveryThird()]).run(HERE, run_dir=run, scores=True, rejected=True)
    rejected = [row for path in (run / "rejected").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    by_id = scores(run)
    assert {row["id"]: row["rejected_by"] for row in rejected} == {
        key: row["dropped_by"] for key, row in by_id.items() if row["dropped_by"]
    }


def test_a_run_that_goes_on_does_only_what_has_no_scores(corpus: Path, tmp_path: Path) -> None:
    out, run = tmp_path / "out", tmp_path / "run"
    made = pipeline(corpus, out, filters())
    made.run(HERE, run_dir=run)
    first = made.run(HERE, run_dir=run, scores=True)  # what was done without scores is done again
    assert first.summary().rows_in == FILES * (ROWS + 1)
    expected = files(run)
    gone = next((run / "scores").glob("*.parquet"))
    gone.unlink()
    again = made.run(HERE, run_dir=run, scores=True)
    assert again.summary(attempt=True).rows_in == ROWS + 1
    assert files(run) == expected


def test_records_that_fail_do_not_disturb_the_scores_of_others(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    stages = [ScoreFilter(WordCountFilter(min_words=5)), ScoreFilter(Picky()), *filters()]
    result = pipeline(corpus, tmp_path / "out", stages).run(HERE, run_dir=run, scores=True, max_errors=None)
    failed = {record.row["id"] for record in result.quarantined() if record.row}
    assert failed
    rows = scores(run)
    assert all(row["Picky"] == row["chars"] for key, row in rows.items() if row["Picky"] is not None)
    alive = {key for key, row in rows.items() if row["dropped_by"] != "WordCountFilter"} - failed
    assert all(rows[key]["Picky"] is not None for key in alive)
    found = whatif(str(run), {})
    assert found.before.rows == found.after.rows == len(ids(tmp_path / "out"))
    [story] = why(str(run), next(iter(failed)))
    assert (story.fate, story.quarantine["stage"] if story.quarantine else "") == ("quarantined", "Picky")


def test_what_cannot_be_is_refused(corpus: Path, tmp_path: Path) -> None:
    made = pipeline(corpus, tmp_path / "out", filters())
    with pytest.raises(ValueError, match="scores=True keeps scores with the output, and there is none"):
        Pipeline("nowhere", stages=made.stages[:-1]).run(HERE, scores=True)
    with pytest.raises(PlanError, match="scores=.* lies in the output"):
        made.run(HERE, scores=str(tmp_path / "out"))
    with pytest.raises(PlanError, match="holds the input"):
        made.run(HERE, scores=str(corpus))
    with pytest.raises(PlanError, match="choose a directory for each"):
        made.run(HERE, scores=str(tmp_path / "both"), rejected=str(tmp_path / "both"))


def test_rows_without_a_file_are_not_scored(tmp_path: Path) -> None:
    batch = DocumentBatch([{"text": "a b c"}])
    result = Pipeline("memory", stages=[ScoreFilter(WordCountFilter(min_words=1))]).run(
        HERE, run_dir=tmp_path / "run", initial_tasks=[batch], scores=True
    )
    assert result.summary().rows_out == 1
    assert not files(tmp_path / "run")


# -- what if -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "mean"), [(5, 4.5), (30, 4.5), (20, 6.0), (0, 3.9)])
def test_what_if_tells_what_a_run_would_keep(corpus: Path, tmp_path: Path, words: int, mean: float) -> None:
    run = tmp_path / "run"
    pipeline(corpus, tmp_path / "out", filters()).run(HERE, run_dir=run, scores=True)
    settings = {"WordCountFilter.min_words": words, "MeanWordLengthFilter.max_mean_word_length": mean}
    found = whatif(str(run), settings, samples=1000)
    truth = pipeline(corpus, tmp_path / "truth", filters(words, mean)).run(HERE)
    now, then = ids(tmp_path / "truth"), ids(tmp_path / "out")
    assert (found.rows, found.before.rows, found.after.rows, found.unknown.rows) == (302, len(then), len(now), 0)
    assert {row["id"] for row in found.gained} == now - then
    assert {row["id"] for row in found.lost} == then - now
    assert {line.name: line.dropped for line in truth.summary().stages if line.name in found.stages} == {
        name: after for name, (_, after) in found.stages.items()
    }
    languages = found.groups["language"].values()
    assert (sum(before for before, _ in languages), sum(after for _, after in languages)) == (len(then), len(now))
    assert all(row["row"]["text"] for row in found.gained)


@pytest.mark.parametrize("between", [Modify(UrlRemover()), ExactDeduplicationStage()], ids=["modify", "dedup"])
def test_what_if_says_what_it_does_not_know(corpus: Path, tmp_path: Path, between: Any) -> None:
    run = tmp_path / "run"
    stages = [filters()[0], between, *filters()[1:]]
    pipeline(corpus, tmp_path / "out", stages).run(HERE, run_dir=run, scores=True)
    same = whatif(str(run), {})
    assert (same.before.rows, same.after.rows, same.unknown.rows) == (len(ids(tmp_path / "out")),) * 2 + (0,)
    found = whatif(str(run), {"WordCountFilter.min_words": 10})
    pipeline(corpus, tmp_path / "truth", [filters(10)[0], between, *filters()[1:]]).run(HERE)
    truth = len(ids(tmp_path / "truth"))
    assert found.after.rows <= truth <= found.after.rows + found.unknown.rows
    assert found.unknown.rows
    assert "have not scored them" in found.notes[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"WordCountFilter.min_word": 3}, "no parameter 'min_word'. Did you mean 'min_words'"),
        ({"WordCounter.min_words": 3}, "no filter of the run is called 'WordCounter'"),
        ({"WordCountFilter.min_words": -3}, "must be 0 or more"),
        ({"Picky.least": 3}, "Picky cannot be made again|no parameter"),
    ],
)
def test_what_if_refuses_what_makes_no_sense(
    corpus: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    run = tmp_path / "run"
    stages = [*filters(), ScoreFilter(Picky())]
    pipeline(corpus, tmp_path / "out", stages).run(HERE, run_dir=run, scores=True, max_errors=None)
    with pytest.raises(InputError, match=message):
        whatif(str(run), settings)


def test_one_of_several_stages_of_a_name_can_be_meant(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    stages = [ScoreFilter(WordCountFilter(min_words=3)), ScoreFilter(WordCountFilter(min_words=20))]
    pipeline(corpus, tmp_path / "out", stages).run(HERE, run_dir=run, scores=True)
    one = whatif(str(run), {"WordCountFilter 2.min_words": 0})
    assert one.stages["WordCountFilter"][0] == one.stages["WordCountFilter"][1] > 0
    both = whatif(str(run), {"WordCountFilter.min_words": 0})
    assert both.after.rows >= one.after.rows
    sampled = [*stages, Sample(0.5)]
    pipeline(corpus, tmp_path / "out2", sampled).run(HERE, run_dir=tmp_path / "run2", scores=True)
    assert whatif(str(tmp_path / "run2"), {"Sample.fraction": 1.0}).after.rows == len(ids(tmp_path / "out"))


# -- why ---------------------------------------------------------------------------------------------------


def test_rows_without_a_language_are_counted_and_those_set_aside_are_not_kept(tmp_path: Path) -> None:
    texts = ["flour flour fails", "one two three" * 9, "four five six seven " * 9]
    rows = [{"text": text, "source": source} for text, source in zip(texts, ("web", None, "web"), strict=True)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({**row, "language": None}) + "\n" for row in rows))
    steps = [JsonlReader(tmp_path / "in.jsonl"), ScoreFilter(WordCountFilter(min_words=1)), ScoreFilter(Picky())]
    pipeline = Pipeline("few", stages=[*steps, JsonlWriter(tmp_path / "out")])
    pipeline.run(HERE, tmp_path / "run", scores=True, max_errors=None)
    answer = whatif(str(tmp_path / "run"), {"WordCountFilter.min_words": 30})
    assert answer.groups["source"] == {"web": (1, 1), "(none)": (1, 0)}
    found = json.loads((tmp_path / "run" / "report.json").read_bytes())["sources"]
    assert (found["before"], found["after"]) == ({"web": 2, "(none)": 1}, {"web": 1, "(none)": 1})


def test_a_run_without_rows_is_not_said_to_have_no_scores_asked_for(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("")
    stages = [JsonlReader(tmp_path / "in.jsonl"), ScoreFilter(WordCountFilter()), JsonlWriter(tmp_path / "out")]
    Pipeline("none", stages=stages).run(HERE, tmp_path / "run", scores=True)
    with pytest.raises(InputError, match="there are none yet"):
        whatif(str(tmp_path / "run"), {"WordCountFilter.min_words": 4})


def test_why_tells_where_a_row_comes_from_and_what_became_of_it(corpus: Path, tmp_path: Path) -> None:
    out, run = tmp_path / "out", tmp_path / "run"
    pipeline(corpus, out, filters()).run(HERE, run_dir=run, scores=True)
    lines = [path.read_text().splitlines() for path in sorted(out.glob("*.jsonl"))]
    kept = json.loads(lines[1][4])
    [story] = why(str(run), kept["id"])
    assert (story.fate, story.line, story.file) == ("kept", 5, "part-1.jsonl")
    assert story.path == str(corpus / "part-1.jsonl")
    assert story.row == {**kept, "grams": None} or story.row == {k: v for k, v in kept.items() if k != "grams"}
    assert all(one.kept for one in story.scores)
    assert len(story.scores) == 4
    assert story.row_id == row_id("part-1.jsonl", story.position or 0)
    for name in (story.row_id, f"part-1.jsonl:{story.position}"):
        assert why(str(run), name) == [story]
    short = next(key for key, row in scores(run).items() if row["WordCountFilter"] < 20)
    [dropped] = why(str(run), short)
    assert (dropped.fate, dropped.dropped_by, dropped.scores[0].kept) == ("dropped", "WordCountFilter", False)
    assert "min_words=20" in dropped.reason
    with pytest.raises(InputError, match="no row 'x-1' found in"):
        why(str(run), "x-1")


def test_why_knows_duplicates(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pipeline(corpus, tmp_path / "out", [ExactDeduplicationStage(id_field="id")]).run(HERE, run_dir=run, scores=True)
    [story] = why(str(run), "0-again")
    assert (story.fate, story.dropped_by) == ("dropped", "ExactDeduplicationStage")
    assert story.cluster is not None
    assert (story.cluster["survivor"], story.cluster["size"]) == ("0-0", 2)
    [survivor] = why(str(run), "0-0")
    assert survivor.fate == "kept"
    assert survivor.cluster is not None
    assert survivor.cluster["members"] == ["0-again"]


def test_why_says_what_was_not_kept(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pipeline(corpus, tmp_path / "out", filters()).run(HERE, run_dir=run)
    with pytest.raises(InputError, match="run with scores=True, or --scores"):
        why(str(run), "0-1")
    with pytest.raises(InputError, match="run with scores=True, or --scores"):
        whatif(str(run), {"WordCountFilter.min_words": 1})
    pipeline(corpus, tmp_path / "out", filters()).run(HERE, run_dir=run, rejected=True)
    row = pq.read_table(run / "rejected").to_pylist()[0]
    [story] = why(str(run), row["id"])
    assert (story.fate, story.dropped_by) == ("dropped", row["rejected_by"])
    assert story.scores[0].score == row["rejected_score"]
    assert story.missing == ["scores were not kept: run with scores=True, or --scores"]
    with pytest.raises(InputError, match="is not a run directory"):
        why(str(corpus), "0-1")


def test_why_tells_what_was_redacted(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"id": "x", "text": "write to ada@example.org today"}) + "\n")
    stages: list[Any] = [ScoreFilter(WordCountFilter(min_words=1)), RedactPii(spans_field="found")]
    for name, more in (("kept", []), ("dropped", [ScoreFilter(WordCountFilter(min_words=90))])):
        run = tmp_path / name
        made = pipeline(tmp_path / "in.jsonl", tmp_path / f"out-{name}", [*stages, *more])
        made.run(HERE, run_dir=run, scores=True, rejected=True)
        [story] = why(str(run), "x")
        assert (story.fate, [(one["entity"], one["start"]) for one in story.redacted]) == (name, [("email", 9)])
    pipeline(tmp_path / "in.jsonl", tmp_path / "o", [RedactPii()]).run(HERE, run_dir=tmp_path / "run", scores=True)
    [story] = why(str(tmp_path / "run"), "x")
    assert story.missing == ["redacted spans were not recorded: set RedactPii(spans_field=...)"]
