"""Documents that have items of evaluation sets are dropped, cut or marked, and counted."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.core.errors import PlanError
from gristmill.dedup import Decontaminate
from gristmill.dedup.decontamination import ngram_overlap
from gristmill.dedup.decontamination.ngram_overlap import (
    OverlapIndex,
    OverlapRules,
    prepare_texts,
    prepare_word,
    words_of,
)
from gristmill.text import JsonlReader, JsonlWriter
from tests.dedup.unicode_texts import columns, texts

pytestmark = pytest.mark.filterwarnings("ignore:stage 'Decontaminate.* min_words:RuntimeWarning")  # the quiz has one

WORDS = [f"w{number}" for number in range(5000)]


def sentence(seed: int, size: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=size))


QUESTION = sentence(1, 30)
SHORT = sentence(2, 9)
COPY = f"Some words before it. {QUESTION.upper()}! And after."


def write(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def quiz(tmp_path: Path) -> str:
    rows = [{"text": QUESTION}, {"text": SHORT}, {"text": "too short"}, {"text": sentence(3, 40)}]
    return write(tmp_path / "bench" / "quiz.jsonl", rows)


def run(stage: Decontaminate, documents: Sequence[Any], batch: int = 3) -> tuple[list[dict[str, Any]], Any]:
    rows = [{"id": index, "text": text} for index, text in enumerate(documents)]
    tasks = [DocumentBatch(rows[start : start + batch]) for start in range(0, len(rows), batch)]
    result = Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=tasks)
    return [row for task in result for row in task.to_rows()], result.summary()["Decontaminate"]


def kept(stage: Decontaminate, documents: Sequence[Any], batch: int = 3) -> list[int]:
    return [row["id"] for row in run(stage, documents, batch)[0]]


def changed(text: str, *places: int) -> str:
    words = text.split()
    for place in places:
        words[place] = "other"
    return " ".join(words)


@pytest.mark.parametrize(
    ("document", "options", "found"),
    [
        (COPY, {}, True),
        (QUESTION[: len(QUESTION) // 2], {}, True),
        (" ".join(QUESTION.split()[:12]), {}, False),
        (" ".join(QUESTION.split()[:13]), {}, True),
        (" ".join(QUESTION.split()[:13]), {"min_overlap": 0.5}, False),
        (" ".join(QUESTION.split()[:25]), {"min_overlap": 0.5}, True),
        (QUESTION.replace("w", "w\u00ad").replace(" ", "\u200b "), {}, True),
        ("; ".join(f"({word.title()})" for word in QUESTION.split()), {}, True),
        (changed(QUESTION, 9, 19), {"fuzzy_threshold": None}, False),
        (changed(QUESTION, 9, 19), {}, True),
        (changed(QUESTION, 5, 10, 15, 20, 25), {}, False),
        (f"a b {SHORT} c", {}, True),
        (f"a b {SHORT} c", {"min_words": 10, "fuzzy_ngram": 5}, False),
        (changed(SHORT, 4), {}, False),
        ("too short", {}, False),
        ("", {}, False),
        (None, {}, False),
        (7, {}, False),
    ],
)
def test_what_counts_as_contaminated(quiz: str, document: Any, options: dict[str, Any], found: bool) -> None:
    assert kept(Decontaminate([quiz], **options), ["a clean one", document]) == ([0] if found else [0, 1])


def test_chinese_has_a_word_for_each_character(tmp_path: Path) -> None:
    quiz = write(tmp_path / "ceval.jsonl", [{"text": "下列哪一项是中国的首都北京上海广州深圳"}])
    assert kept(Decontaminate([quiz]), ["问：下列哪一项，是中国的首都？北京、上海", "下列哪一项是法国的首都"]) == [1]


def test_runs_that_many_items_have_say_nothing(tmp_path: Path) -> None:
    start = sentence(9, 20)
    quiz = write(tmp_path / "a.jsonl", [{"text": f"{start} {sentence(number, 20)}"} for number in range(20, 32)])
    documents = [start, f"{start} {sentence(25, 20)}"]
    assert kept(Decontaminate([quiz]), documents) == [0]
    assert kept(Decontaminate([quiz], max_items=None), documents) == []


def test_an_item_that_repeats_itself_is_not_found_by_what_it_repeats(tmp_path: Path) -> None:
    quiz = write(tmp_path / "a.jsonl", [{"text": "no " * 40}, {"text": f"{'a b ' * 10}{sentence(4, 3)}"}])
    assert kept(Decontaminate([quiz]), ["no " * 5, "a b a b a b", "no " * 13]) == [0, 1]


def test_names_of_columns_and_benchmarks_may_be_any(tmp_path: Path, quiz: str) -> None:
    rows = [{"text": COPY, "__found__": 1}, {"text": "clean", "__found__": 2}]
    stage = Decontaminate([{"path": quiz, "name": "a b:c/\0"}])
    result = Pipeline("p", stages=[stage]).run(LocalExecutor(0), initial_tasks=[DocumentBatch(rows)])
    assert [row for task in result for row in task.to_rows()] == [{"text": "clean", "__found__": 2}]
    assert result.summary()["Decontaminate"].counts["a b:c/\0_documents"] == 1


def test_each_benchmark_is_counted(tmp_path: Path, quiz: str) -> None:
    second = tmp_path / "second"
    second.mkdir()
    table = pa.table(
        {"q": [sentence(50, 10), sentence(51, 10)], "a": [sentence(60, 10), sentence(61, 10)], "n": ["x", "y"]}
    )
    pq.write_table(table, second / "part.parquet")
    benchmarks = [quiz, {"path": second, "name": "exam", "text_fields": ["q", "a"], "id_field": "n"}]
    documents = [COPY, COPY, "clean", f"{sentence(50, 10)} {sentence(60, 10)} {QUESTION}", sentence(61, 10)]
    rows, line = run(Decontaminate(benchmarks, action="mark"), documents)
    assert line.counts == {
        "quiz_documents": 3,
        "quiz_items_found": 1,
        "quiz_items": 4,
        "quiz_share_of_items": 0.25,
        "quiz_items_too_short": 1,
        "exam_documents": 1,
        "exam_items_found": 1,
        "exam_items": 2,
        "exam_share_of_items": 0.5,
    }
    marks = [(row["contaminated_by"], row["contaminated_item"], row["contaminated_share"]) for row in rows]
    of_quiz = ("quiz", "quiz.jsonl:1", 1.0)
    assert marks == [of_quiz, of_quiz, (None, None, None), of_quiz, (None, None, None)]
    assert rows[0]["contaminated_match"] == (QUESTION.upper() + "!")[:300]
    dropped = run(Decontaminate(benchmarks), documents)
    assert [row["id"] for row in dropped[0]] == [2, 4]
    assert dropped[0][0] == {"id": 2, "text": "clean"}
    assert dropped[1].counts == line.counts


def test_spans_are_cut_out(quiz: str) -> None:
    before, after = "alpha beta gamma " * 20, "delta epsilon zeta " * 20
    document = f"{before}{QUESTION}{after}"
    stage = Decontaminate([quiz], action="span", context=20, min_piece=100)
    rows, line = run(stage, ["clean", document, COPY, f"x {document} {document}"])
    assert [row["id"] for row in rows] == [0, 1, 3]
    text = rows[1]["text"]
    first, second = text.split("\n\n")
    assert before.startswith(first)
    assert after.endswith(f"{second} ")
    assert {*first.split()} == {"alpha", "beta", "gamma"}
    assert len(before) - 40 < len(first) < len(before) - 18
    assert len(rows[2]["text"].split("\n\n")) == 3
    assert (line.rows_in, line.dropped) == (4, 1)
    assert kept(Decontaminate([quiz], action="span", min_piece=0, max_spans=1), [document, document * 2]) == [0]


def test_clean_heads_and_tails_stay_and_only_short_pieces_between_cuts_go(quiz: str) -> None:
    head, middle, tail = "alpha " * 8, " beta " * 8, " gamma " * 8
    documents = [f"{head}{QUESTION}{tail}", f"{head}{QUESTION}{middle}{QUESTION}{tail}", f"{head}{QUESTION}", QUESTION]
    rows, line = run(Decontaminate([quiz], action="span", context=0, min_piece=200), documents)
    both = f"{head.strip()}\n\n{tail.strip()}"
    assert [(row["id"], row["text"]) for row in rows] == [(0, both), (1, both), (2, head.strip())]
    assert (line.counts["spans_cut"], line.dropped) == (5, 1)
    kept_between, _ = run(Decontaminate([quiz], action="span", context=0, min_piece=20), documents[1:2])
    assert kept_between[0]["text"].split("\n\n")[1] == middle.strip()


def test_rejected_rows_have_the_threshold_of_the_rule_that_found_them(tmp_path: Path, quiz: str) -> None:
    source = write(tmp_path / "in" / "a.jsonl", [{"text": COPY}, {"text": changed(QUESTION, 9, 19)}, {"text": SHORT}])
    stages = [JsonlReader(source), Decontaminate([quiz], min_overlap=0.1), JsonlWriter(str(tmp_path / "out"))]
    result = Pipeline("p", stages=stages).run(LocalExecutor(0), tmp_path / "run", rejected=True)
    names = ("rejected_filter", "rejected_threshold", "rejected_score")
    rows = [tuple(row[name] for name in names) for row in pq.read_table(result.rejected()[0]).to_pylist()]
    assert rows[0] == rows[2] == ("quiz", "min_overlap=0.1", 1.0)
    assert rows[1] == ("quiz (fuzzy)", "fuzzy_threshold=0.6", pytest.approx(16 / 26))


def test_many_items_that_are_too_short_are_told(tmp_path: Path) -> None:
    words = [{"text": "much too short"}] * 3 + [{"text": QUESTION}] * 2
    paths = [
        write(tmp_path / f"{name}.jsonl", rows) for name, rows in (("a", words), ("b", words[:2]), ("c", words[3:]))
    ]
    found = (
        "'a' has 3 of 5 items, benchmark 'b' has 2 of 2 items with fewer than min_words=8 words, which are not looked"
    )
    with pytest.warns(RuntimeWarning, match=f"stage 'Decontaminate_find': benchmark {found} for. .*lower min_words"):
        assert kept(Decontaminate(paths), [COPY, "clean"]) == [1]


def test_the_files_of_a_glob_are_benchmarks_with_names_of_their_own(tmp_path: Path) -> None:
    items = {name: [{"text": sentence(seed, 20)}] for seed, name in enumerate(["mmlu.v2", "gsm8k", "x/arc", "y/arc"])}
    for name, rows in items.items():
        write(tmp_path / "bench" / f"{name}.jsonl", rows)
    for part in range(2):
        write(tmp_path / "bench" / f"test-0000{part}-of-00002.jsonl", [{"text": sentence(80 + part, 20)}])

    def counts(*benchmarks: Any) -> dict[str, float]:
        found = run(Decontaminate(benchmarks, action="mark"), [sentence(1, 20), sentence(2, 20)])[1].counts
        return {name: number for name, number in found.items() if name.endswith("_documents")}

    folder = tmp_path / "bench"
    flat = {"gsm8k_documents": 1, "mmlu.v2_documents": 0, "test_documents": 0}
    assert counts(folder / "*.jsonl") == flat
    assert counts(folder / "**" / "*.jsonl") == flat | {"x/arc_documents": 1, "y/arc_documents": 0}
    assert counts(folder / "gs*") == {"gsm8k_documents": 1}
    assert counts({"path": folder / "*.jsonl", "name": "all"}) == {"all_documents": 1}
    assert counts(folder) == {"bench_documents": 2}
    with pytest.raises(PlanError, match=r"two benchmarks are named 'gsm8k': give one another name"):
        counts(folder / "gs*", folder / "gsm8k.jsonl")
    write(folder / "[1].jsonl", [{"text": sentence(2, 20)}])
    assert counts(folder / "[1].jsonl") == {"[1]_documents": 1}


@settings(max_examples=50)
@given(texts)
@example("\u00ad a\u00adb \u200b中\ufeffΑ\u200bΣ c\u200b")
@example("e\u0301 a\u200bb … “x” Σ. ΑΣ ﬁ 中か\u3099文")
def test_words_are_found_where_they_lie(text: str) -> None:
    there = prepare_texts(pa.array([text])).to_pylist()[0].split()
    assert [prepare_word(text[start:end]) for start, end in words_of(text)] == there


@settings(max_examples=40)
@given(columns, columns, st.sampled_from([None, 0.5]))
def test_c_and_python_find_the_same(items: list[str | None], documents: list[str | None], fuzzy: float | None) -> None:
    rules = OverlapRules(ngram=4, min_words=3, fuzzy_ngram=2, fuzzy_threshold=fuzzy, max_items=2)
    quiz, column = pa.array([item or "" for item in items], pa.string()), pa.array(documents, pa.string())
    found = OverlapIndex(quiz, rules).matches(column)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram_overlap, "kernels", None)
        assert found == OverlapIndex(quiz, rules).matches(column)


def test_the_same_bytes_however_it_was_cut_and_rejected_rows_say_why(tmp_path: Path, quiz: str) -> None:
    documents = [{"text": f"{sentence(seed, 40)} {COPY if seed % 7 == 3 else ''}"} for seed in range(100, 160)]
    documents[5] = {"text": None}
    documents[6] = {"other": 1}  # type: ignore[dict-item]
    source = write(tmp_path / "in" / "a.jsonl", documents)
    outputs = []
    for number, size in enumerate(["1MB", "3KB", 300]):
        place = tmp_path / str(number)
        stages = [JsonlReader(source, blocksize=size), Decontaminate([quiz]), JsonlWriter(str(place / "out"))]
        result = Pipeline("p", stages=stages).run(LocalExecutor(0), place / "run", rejected=True)
        outputs.append([path.read_bytes() for path in sorted((place / "out").glob("*.jsonl"))])
        rejected = [row for path in result.rejected() for row in pq.read_table(path).to_pylist()]
        assert len(rejected) == result.summary()["Decontaminate"].dropped == 9
        assert not [name for name in rejected[0] if name.startswith("__")]
        found = {
            (row["rejected_by"], row["rejected_filter"], row["rejected_score"], row["contaminated_item"])
            for row in rejected
        }
        assert found == {("Decontaminate", "quiz", 1.0, "quiz.jsonl:1")}
        report = json.loads((place / "run" / "report.json").read_text())
        line = next(stage for stage in report["stages"] if stage["name"] == "Decontaminate")
        assert line["counts"]["quiz_items_found"] == 1
    assert outputs[0] == outputs[1] == outputs[2]


def test_a_run_is_not_resumed_with_another_benchmark(tmp_path: Path, quiz: str) -> None:
    source = write(tmp_path / "in" / "a.jsonl", [{"text": COPY}, {"text": "clean"}])
    for wanted in (1, 2):
        stages = [JsonlReader(source), Decontaminate([quiz]), JsonlWriter(str(tmp_path / "out"), mode="overwrite")]
        Pipeline("p", stages=stages).run(LocalExecutor(0), tmp_path / "run")
        written = [path.read_text() for path in (tmp_path / "out").glob("*.jsonl")]
        assert len("".join(written).splitlines()) == wanted
        write(Path(quiz), [{"text": sentence(77, 20)}])


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (None, {}, "benchmark 'quiz'.*does not exist"),
        ([], {}, "benchmark 'quiz' is empty"),
        ([{"text": " "}], {}, "benchmark 'quiz' is empty.*no text in 'text'"),
        ([{"texts": "a"}], {}, "no column 'text'. Did you mean 'texts'.*text_fields"),
        (
            [{"text": "too short"}, {"text": "this one has five words"}],
            {},
            "nothing to look for: .*'quiz' has 2 of 2 items with fewer than min_words=8.*longest has 5.*fuzzy_ngram=5",
        ),
        ([{"text": "too short"}], {"fuzzy_threshold": None}, "or lower min_words$"),
    ],
)
def test_benchmarks_that_cannot_be_read_are_told_by_the_plan(
    tmp_path: Path, rows: Any, options: dict[str, Any], words: str
) -> None:
    path = str(tmp_path / "quiz.jsonl") if rows is None else write(tmp_path / "quiz.jsonl", rows)
    with pytest.raises(PlanError, match=words):
        Pipeline("p", stages=[Decontaminate([path], **options)]).plan([DocumentBatch([{"text": "a"}])])


@pytest.mark.parametrize(
    ("benchmarks", "options", "words"),
    [
        ([], {}, "benchmarks is empty"),
        ("quiz.jsonl", {}, r"must be a list, as in benchmarks=\['quiz.jsonl'\]"),
        ([{"file": "a"}], {}, "a benchmark is a path"),
        ([{"path": "a", "fields": ["q"]}], {}, "no 'fields'"),
        (["a/x.jsonl", "b/x.jsonl"], {}, "two benchmarks are named 'x'"),
        (["a"], {"action": "drop"}, "action is 'drop'"),
        (["a"], {"ngram": 5}, "min_words=8 must be between 1 and ngram=5"),
        (["a"], {"fuzzy_ngram": 9}, "fuzzy_ngram=9"),
        (["a"], {"min_overlap": 2.0}, "min_overlap"),
        (["a"], {"context": -1}, "context"),
        (["a"], {"context": None}, "context is None, must be a whole number"),
        (["a"], {"ngram": "13"}, "ngram='13' must be a whole number"),
        (["a"], {"ngram": 13.0}, "ngram=13.0 must be a whole number"),
        (["a"], {"min_overlap": None}, "min_overlap=None must be a share"),
        ([{"path": None}], {}, "a benchmark is a path"),
    ],
)
def test_what_cannot_work_is_refused_at_once(benchmarks: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        Decontaminate(benchmarks, **options)
