"""Stages and filters of a user, for recipes to name as `tests.recipes.user_stages:Name`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gristmill import CompositeStage, DocumentBatch, ProcessingStage, Resources, Task
from gristmill.text import DocumentFilter, DocumentModifier


@dataclass
class MakeDocuments(ProcessingStage[Task[Any], DocumentBatch]):
    """Makes documents from nothing."""

    count: int = 4
    resources: Resources = Resources(cpus=0.5)  # noqa: RUF009 - it is frozen

    def process(self, task: Task[Any]) -> DocumentBatch:
        return DocumentBatch(data=[{"text": "word " * number} for number in range(1, self.count + 1)])


class Tag(ProcessingStage[DocumentBatch, DocumentBatch]):
    def __init__(self, label: str, extra: dict[str, Any] | None = None) -> None:
        self.label, self.extra = label, extra

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


class TwoTags(CompositeStage[DocumentBatch, DocumentBatch]):
    def __init__(self, first: str = "a", second: str = "b") -> None:
        self.first, self.second = first, second

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        return [Tag(self.first).with_(name="one"), Tag(self.second).with_(name="two")]


class StartsWith(DocumentFilter):
    def __init__(self, letter: str = "w") -> None:
        self.letter = letter

    def score_document(self, text: str) -> bool:
        return text.startswith(self.letter)

    def keep_document(self, score: bool) -> bool:
        return score


class Shout(DocumentModifier):
    def modify_document(self, text: str) -> str:
        return text.upper()


class Forgetful(ProcessingStage[DocumentBatch, DocumentBatch]):
    def __init__(self, secret: int) -> None:
        self._hidden = secret

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


class Fussy(ProcessingStage[DocumentBatch, DocumentBatch]):
    def __init__(self, size: int = 1) -> None:
        if size > 10:
            raise ValueError(f"size is {size}, at most 10 are allowed")
        self.size = size

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


class Untyped(ProcessingStage[DocumentBatch, DocumentBatch]):
    def __init__(self, tool=None) -> None:  # type: ignore[no-untyped-def]
        self.tool = tool

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


class Fails(ProcessingStage[DocumentBatch, DocumentBatch]):
    max_retries = 0

    def process(self, task: DocumentBatch) -> DocumentBatch:
        raise RuntimeError("the mill has no wind")


class Chokes(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Raises on a document with the word poison, unless there is a file `cure`."""

    max_retries = 1

    def __init__(self, cure: str) -> None:
        self.cure = cure

    def process(self, task: DocumentBatch) -> DocumentBatch:
        from pathlib import Path

        for text in task.data["text"].to_pylist():
            if "poison" in text and not Path(self.cure).exists():
                raise ValueError(f"cannot digest {text}")
        return task


class Slow(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Says something and takes its time."""

    def __init__(self, seconds: float = 30.0, lines: int = 1) -> None:
        self.seconds, self.lines = seconds, lines

    def process(self, task: DocumentBatch) -> DocumentBatch:
        import time

        for line in range(self.lines):
            print(f"printed by a stage, line {line}", flush=True)
            time.sleep(self.seconds / self.lines)
        return task


class NotAStage:
    pass
