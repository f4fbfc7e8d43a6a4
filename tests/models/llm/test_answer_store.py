"""Answers are found again: by other workers, after a kill, on object storage, and none is mixed up."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gristmill.models.llm import Answer, AnswerStore, LLMRequest


def answer(number: int, text: str = "") -> Answer:
    key = LLMRequest("m", [{"role": "user", "content": str(number)}]).key
    return Answer(key, "m", text or f"answer {number}\n\u2028 é", "stop", 10, number, 0.25)


def found(store: AnswerStore, *numbers: int) -> list[str]:
    answers = store.get_many([answer(number).key for number in numbers])
    return [one.text.split("\n")[0] for one in answers.values()]


@pytest.fixture(params=["disk", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    if request.param == "disk":
        return str(tmp_path / "answers"), {}
    if request.param == "memory":
        return f"memory://{tmp_path.name}/answers", {}
    import fsspec

    options = request.getfixturevalue("s3")
    fsspec.filesystem("s3", **options).mkdir("bucket")
    return "s3://bucket/answers", options


def test_workers_share_answers(place: tuple[str, dict[str, Any]]) -> None:
    url, options = place
    one, other = AnswerStore(url, options), AnswerStore(url, options)
    assert one.get_many([answer(1).key]) == {}
    for number in range(5):
        one.add(answer(number))
    assert found(one, 3, 4, 9) == ["answer 3", "answer 4"]
    one.flush()
    other.add(answer(7))
    other.flush()
    for store in (one, other):
        store.refresh()
        assert found(store, 0, 7, 2, 9) == ["answer 0", "answer 7", "answer 2"] or len(found(store, 0, 7, 2)) == 3
        store.close()
    [again] = AnswerStore(url, options).get_many([]).values() or [None]
    assert again is None
    later = AnswerStore(url, options)
    later.refresh()
    [kept] = later.get_many([answer(4).key]).values()
    assert kept.cached
    assert (kept.text, kept.finish_reason, kept.prompt_tokens, kept.answer_tokens) == (
        "answer 4\n\u2028 é",
        "stop",
        10,
        4,
    )
    assert len(later) == 6


def test_a_line_that_was_cut_off_is_ignored_until_it_is_whole(tmp_path: Path) -> None:
    store = AnswerStore(str(tmp_path))
    store.add(answer(1))
    store.add(answer(2))
    [segment] = tmp_path.iterdir()
    whole = segment.read_bytes()
    for cut in (1, 5, len(whole) // 4):
        segment.write_bytes(whole[:-cut])
        fresh = AnswerStore(str(tmp_path))
        fresh.refresh()
        assert found(fresh, 1, 2) == ["answer 1"]
        with segment.open("ab") as file:
            file.write(whole[-cut:])
        fresh.refresh()
        assert sorted(found(fresh, 1, 2)) == ["answer 1", "answer 2"]
    store.close()


def test_damage_loses_only_what_it_hits(tmp_path: Path) -> None:
    store = AnswerStore(str(tmp_path), run="r")
    for number in range(3):
        store.add(answer(number), stage="s")
    store.close()
    [segment] = tmp_path.iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(
        lines[0] + b'{"key":"zz' + os.urandom(60).replace(b"\n", b"") + b"\n" + lines[1][:-30] + b"\n" + lines[2]
    )
    (tmp_path / "x.jsonl").write_bytes(b"\n\nnot ours\n")
    fresh = AnswerStore(str(tmp_path))
    fresh.refresh()
    assert found(fresh, 0, 1, 2) == ["answer 0", "answer 2"]
    assert [(line["run"], line["stage"]) for line in fresh.lines()] == [("r", "s")] * 2


def test_the_first_answer_counts(tmp_path: Path) -> None:
    for name, text in (("2-b", "second"), ("1-a", "first")):
        store = AnswerStore(str(tmp_path))
        store._base = name
        store.add(answer(1, text))
        store.close()
    fresh = AnswerStore(str(tmp_path))
    fresh.refresh()
    assert found(fresh, 1) == ["first"]


def test_a_directory_that_is_made_is_private_and_one_that_exists_keeps_its_rights(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    for path, mode in ((tmp_path / "made", 0o700), (shared, 0o755)):
        with closing(AnswerStore(str(path))) as store:
            store.add(answer(1))
        assert path.stat().st_mode & 0o777 == mode
        assert all(file.stat().st_mode & 0o600 == 0o600 for file in path.iterdir())
