from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import DocumentBatch, EmptyTask, FileGroupTask, Task
from gristmill.core.task import FileSlice, GatherTask, Lineage, digest, id_sort_key, name_sources

NAMED = Lineage("a", "a", ("x.jsonl",), 3)


def test_a_plain_task_carries_anything() -> None:
    task = Task(data={"any": "thing"}, dataset_name="d", metadata={"k": 1})
    assert (task.data, task.dataset_name, task.metadata, task.id) == ({"any": "thing"}, "d", {"k": 1}, "")
    assert (task.num_items, task.num_rows, task.nbytes, task.key(), task.files()) == (1, 1, 0, None, ())


def test_ids_are_the_frameworks() -> None:
    with pytest.raises(TypeError):
        Task(data=1, lineage=NAMED)  # type: ignore[call-arg]
    task = Task(data=1)
    named = task.named(NAMED)
    assert (named.id, named.task_id, task.id) == ("a", "a", "")
    assert named == task  # equal in what they hold


def test_children_are_named_after_their_parent() -> None:
    child = NAMED.child(2).child(0)
    assert (child.id, child.source, child.files, child.order) == ("a.2.0", "a", ("x.jsonl",), 3)
    assert child.as_source() == Lineage("a.2.0", "a.2.0", ("x.jsonl",), 3)


def test_sorting_is_by_place_and_not_by_text() -> None:
    ids = ["a.10", "a.2", "a", "a.2.1", "a.1.30", "a.1.4"]
    assert sorted(ids, key=id_sort_key) == ["a", "a.1.4", "a.1.30", "a.2", "a.2.1", "a.10"]
    late, early = Lineage("a", "a", (), 1), Lineage("z", "z", (), 0)
    assert sorted([late, early], key=Lineage.sort_key) == [early, late]


PARTS = st.integers(0, 10**6).map(str) | st.text("abcdef0123456789", min_size=1, max_size=8)


@given(st.lists(st.lists(PARTS, min_size=1, max_size=5).map(".".join), min_size=1))
def test_any_ids_can_be_sorted(ids: list[str]) -> None:
    keys = [id_sort_key(task_id) for task_id in ids]
    in_order = sorted(keys)  # numbers and text are never compared with each other
    assert all(before <= after for before, after in pairwise(in_order))


@given(st.lists(st.text()), st.lists(st.text()))
def test_digests_tell_lists_apart(left: list[str], right: list[str]) -> None:
    assert (digest(left) == digest(right)) == (left == right)


def test_a_digest_is_the_same_tomorrow() -> None:
    assert digest(["a", "b"]) == "cfb9cbd0aeeea44e"
    assert len(digest(["a"], 4)) == 8
    assert digest(["\udcff"])  # names of files need not be Unicode


def test_files_have_names_parts_and_no_rows() -> None:
    task = FileGroupTask(["b.jsonl", "a.jsonl"])
    assert (task.num_items, task.num_rows, task.files()) == (2, 0, ("b.jsonl", "a.jsonl"))
    assert task.parts() == (FileSlice("b.jsonl"), FileSlice("a.jsonl"))
    assert task.key() == FileGroupTask(["a.jsonl", "b.jsonl"]).key() != FileGroupTask(["a.jsonl"]).key()
    half = FileGroupTask(["a.jsonl"], slices=(FileSlice("a.jsonl", 0, 10),))
    assert half.parts()[0].size == 10


def test_storage_options_are_not_shown() -> None:
    assert "hunter2" not in repr(FileGroupTask(["s3://b/k"], storage_options={"secret": "hunter2"}))


def test_empty_and_gathered_tasks_count_what_they_hold() -> None:
    assert EmptyTask().num_items == 0
    gathered = GatherTask([DocumentBatch([{"text": "a"}, {"text": "b"}]), FileGroupTask(["x"])])
    assert (gathered.num_items, gathered.num_rows) == (3, 2)


@pytest.mark.parametrize(
    "task",
    [Task([1, 2]), EmptyTask(), FileGroupTask(["a"], slices=(FileSlice("a", 1, 2),)), DocumentBatch([{"a": [1]}])],
    ids=lambda task: type(task).__name__,
)
def test_tasks_travel(task: Task[Any]) -> None:
    copy = pickle.loads(pickle.dumps(task.named(NAMED), 5))
    assert (copy, copy.lineage) == (task, NAMED)


def test_sources_are_named_by_content_or_by_place() -> None:
    listed = [[FileGroupTask(["a"])], [FileGroupTask(["b"]), FileGroupTask(["b"])]]
    by_content = [[task.id for task in tasks] for tasks in name_sources(iter(listed), by_content=True)]
    b = FileGroupTask(["b"]).key()
    assert by_content == [[FileGroupTask(["a"]).key()], [f"{b}.0", f"{b}.1"]]
    by_place = [[task.id for task in tasks] for tasks in name_sources(iter(listed), by_content=False)]
    assert by_place == [["0"], ["1.0", "1.1"]]
    named = [task.lineage for tasks in name_sources(iter(listed), by_content=True) for task in tasks]
    assert [lineage.source for lineage in named] == [FileGroupTask(["a"]).key(), b, b]
    assert [lineage.order for lineage in named] == [0, 1, 1]
    assert [lineage.files for lineage in named] == [("a",), ("b",), ("b",)]
