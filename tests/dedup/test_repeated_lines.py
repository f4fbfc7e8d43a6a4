"""Lines, paragraphs and sentences that many documents have are cut out of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage
from gristmill.core.errors import StageError
from gristmill.dedup import ExactDeduplicationStage, LineDeduplicationStage
from gristmill.text import JsonlReader, JsonlWriter

MENU = "Home | About us | Contact | Imprint\n"


def run(stage: Any, texts: list[Any], batch: int = 2) -> list[tuple[int, Any]]:
    rows = [{"id": index, "text": text} for index, text in enumerate(texts)]
    tasks = [DocumentBatch(rows[start : start + batch]) for start in range(0, len(rows), batch)]
    stages = stage if isinstance(stage, list) else [stage]
    result = Pipeline("p", stages=stages).run(LocalExecutor(0), initial_tasks=tasks)
    return [(row["id"], row["text"]) for task in result for row in task.to_rows()]


@pytest.mark.parametrize(
    ("texts", "options", "wanted"),
    [
        ([], {}, []),
        (["one line"], {}, ["one line"]),
        ([MENU + "a", "b\n", MENU + "c", "d\n" + MENU], {}, [MENU + "a", "b\n", "c", "d\n"]),
        ([MENU + "a", MENU + "b"], {"keep": "none"}, ["a", "b"]),
        ([MENU + "a", MENU + "b"], {"min_count": 3}, [MENU + "a", MENU + "b"]),
        ([MENU + "a", MENU + "b", MENU + "c"], {"min_count": 3}, [MENU + "a", "b", "c"]),
        ([MENU + "a", MENU + "b"], {"min_length": 50}, [MENU + "a", MENU + "b"]),
        ([MENU + MENU + "a", "b"], {}, [MENU + MENU + "a", "b"]),
        ([MENU + MENU + "a", "b"], {"count_by": "occurrences"}, [MENU + "a", "b"]),
        ([MENU + "a", MENU.upper() + "b"], {}, [MENU + "a", MENU.upper() + "b"]),
        ([MENU + "a", " " + MENU.upper() + "b"], {"normalize": ["case"]}, [MENU + "a", "b"]),
        (["", None, " ", "\n\n", "", None], {"min_length": 1}, ["", None, " ", "\n\n", "", None]),
        ([MENU] * 3, {}, [MENU]),
        ([MENU] * 3, {"keep": "none"}, []),
        ([MENU, 7, MENU + "é"], {}, [MENU, 7, "é"]),
        (
            ["One sentence. Two.", "Two. More of it"],
            {"unit": "sentence", "min_length": 3},
            ["One sentence. Two.", "More of it"],
        ),
        (["a\nb\n\nc", "a\nb\n\nd", "b\n\nd"], {"unit": "paragraph", "min_length": 1}, ["a\nb\n\nc", "d", "b\n\n"]),
        (
            ["a\r\nb\r\n\r\nc", "a\r\nb\n \t\nd \r\n", "e\n\u3000\nd", "a\r\nb"],
            {"unit": "paragraph", "min_length": 1},
            ["a\r\nb\r\n\r\nc", "d \r\n", "e\n\u3000\n"],
        ),
        (["a\r\nb\r\n", "c\r\na\nb"], {"min_length": 1}, ["a\r\nb\r\n", "c\r\n"]),
        (
            ["A list\r\n\r\nOne. Two.\r\n", "A list\n\nThree.\r\nTwo."],
            {"unit": "sentence", "min_length": 1},
            ["A list\r\n\r\nOne. Two.\r\n", "Three.\r\n"],
        ),
    ],
)
def test_what_is_left(texts: list[Any], options: dict[str, Any], wanted: list[Any]) -> None:
    assert [text for _, text in run(LineDeduplicationStage(**options), texts)] == wanted


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.none() | st.lists(st.sampled_from(["aa", "bb ", " ", "cé", "bb"]), max_size=5), max_size=9),
    st.integers(2, 3),
    st.sampled_from(["documents", "occurrences"]),
    st.sampled_from(["first", "none"]),
    st.integers(1, 4),
)
def test_against_a_plain_count(
    rows: list[list[str] | None], least: int, count_by: str, keep: str, partitions: int
) -> None:
    texts = [None if row is None else "".join(line + "\n" for line in row) for row in rows]
    stage = LineDeduplicationStage(
        min_count=least, min_length=1, count_by=count_by, keep=keep, num_partitions=partitions
    )
    lines = [[line.strip() for line in row or []] for row in rows]
    counts = Counter(line for row in lines for line in (row if count_by == "occurrences" else set(row)))
    wanted, seen = [], set()
    for index, row in enumerate(rows):
        kept = []
        for line in row or []:
            bare = line.strip()
            first = bare not in seen
            seen.add(bare)
            if not bare or counts[bare] < least or (first and keep == "first"):
                kept.append(line + "\n")
        text = None if row is None else "".join(kept)
        if text == texts[index] or (text or "").strip():
            wanted.append((index, text))
    assert run(stage, texts) == wanted


def test_groups_larger_than_a_block_and_many_of_them(tmp_path: Path) -> None:
    """A line that all documents have lies in many tables of its partition."""
    texts = [f"{MENU}{'The same long line again. ' * 40}\nOnly here, number {number}.\n" for number in range(3000)]
    found = run(LineDeduplicationStage(num_partitions=1), texts, batch=700)
    assert found[0][1] == texts[0]
    assert [text for _, text in found[1:]] == [f"Only here, number {number}.\n" for number in range(1, 3000)]


def write(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for part in range(3):
        rows = [{"id": f"{part}-{n}", "text": f"{MENU}text {n % 17} of part {part % 2}\n{'x' * n}"} for n in range(40)]
        rows.append({"id": f"{part}-last", "text": MENU})
        (tmp_path / "in" / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "in"


def test_the_same_bytes_however_it_was_cut_and_rejected_rows(tmp_path: Path) -> None:
    source, found = write(tmp_path), []
    for number, size in enumerate(["1MB", "2KB", 500]):
        place = tmp_path / str(number)
        stages = [
            JsonlReader(source, blocksize=size),
            LineDeduplicationStage(min_length=10),
            JsonlWriter(place / "out"),
        ]
        result = Pipeline("p", stages=stages).run(LocalExecutor(0), place / "run", rejected=True)
        found.append({path.name: path.read_bytes() for path in (place / "out").glob("*.jsonl")})
        line = result.summary()["LineDeduplicationStage"]
        rejected = [row for path in result.rejected() for row in pq.read_table(path).to_pylist()]
        assert line.dropped == len(rejected) > 3
        last = next(row for row in rejected if row["id"] == "0-last")
        assert (last["text"], last["removed_bytes"], last["rejected_by"]) == (MENU, len(MENU), "LineDeduplicationStage")
        assert line.counts["documents_cut"] > 100
    assert found[0] == found[1] == found[2]
    rows = [json.loads(line) for data in found[0].values() for line in data.splitlines()]
    assert all(set(row) == {"id", "text"} for row in rows)
    assert sum(MENU in row["text"] for row in rows) == 1


class Breaks(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Fails on one file, as long as there is no other."""

    not_identity = ("flag",)

    def __init__(self, flag: Path) -> None:
        super().__init__()
        self.flag = flag

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if task.metadata.get("file") == "1.jsonl" and not self.flag.exists():
            raise RuntimeError("not now")
        return task


@pytest.mark.parametrize(
    "stage", [LineDeduplicationStage(min_length=10), LineDeduplicationStage(unit="sentence", keep="none", min_count=3)]
)
def test_a_run_that_failed_after_the_exchange_goes_on(tmp_path: Path, stage: Any) -> None:
    source, flag = write(tmp_path), tmp_path / "flag"
    outputs = []
    for number, tries in enumerate([2, 1]):
        place = tmp_path / str(number)
        stages = [JsonlReader(source), stage, Breaks(flag), JsonlWriter(place / "out")]
        for attempt in range(tries):
            if attempt == 0 and tries == 2:
                with pytest.raises(StageError, match="not now"):
                    Pipeline("p", stages=stages).run(LocalExecutor(0), place / "run", on_error="raise")
                flag.touch()
            else:
                Pipeline("p", stages=stages).run(LocalExecutor(0), place / "run")
        outputs.append({path.name: path.read_bytes() for path in (place / "out").glob("*.jsonl")})
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 3


def test_documents_and_paragraphs_in_one_pipeline() -> None:
    texts = ["one\n\ntwo\n\n", "one\n\nthree\n\n", "one\n\ntwo\n\n", "one\n\n"]
    stages = [ExactDeduplicationStage(), LineDeduplicationStage(unit="paragraph", min_length=1)]
    assert run(stages, texts) == [(0, "one\n\ntwo\n\n"), (1, "three\n\n")]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"unit": "word"}, "unit is 'word'"),
        ({"keep": "last"}, "keep is 'last'"),
        ({"count_by": "x"}, "count_by is 'x'"),
        ({"min_count": 1}, "min_count is 1"),
        ({"min_length": 0}, "min_length is 0"),
        ({"normalize": ["cases"]}, "Did you mean 'case'"),
        ({"num_partitions": 0}, "num_partitions"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LineDeduplicationStage(**options)
