"""What is made of the answers of `DiverseQAStage` and `KnowledgeListStage`.

Which questions are kept is drawn by a hash of the seed and the document, so that it is the same in every run.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, make_array
from gristmill.core.stage import ProcessingStage
from gristmill.core.task import digest
from gristmill.models.llm.llm_request import CHARS_PER_TOKEN
from gristmill.samples.batch import DocumentBatch

if TYPE_CHECKING:
    from gristmill.core.stage import Columns, WorkerMetadata

_MARK = re.compile(r"^\s*(?:[-*•]|\d+[.)])?\s*\**\s*")
_QUESTION = re.compile(r"^(?:question(?:\s*\d+)?|q\d*)\**\s*[:.]\**\s*", re.I)
_ANSWER = re.compile(r"^(?:answer(?:\s*\d+)?|a\d*)\**\s*[:.]\**\s*", re.I)
TOKENS_PER_PAIR = 150
"""A document gets at most 10 pairs for each so many tokens, drawn between 1 and that."""


def question_answer_pairs(text: str) -> list[tuple[str, str]]:
    """The complete pairs in an answer. Lines after an answer, up to the next question, belong to it."""
    pairs: list[tuple[str, str]] = []
    question, answer = "", ""
    for line in text.splitlines():
        bare = _MARK.sub("", line).strip()
        if found := _QUESTION.match(bare):
            pairs += [(question, answer)] if question and answer else []
            question, answer = bare[found.end() :].strip(" *"), ""
        elif found := _ANSWER.match(bare):
            answer = bare[found.end() :].strip(" *")
        elif answer and bare:
            answer = f"{answer}\n{bare}"
        elif question and bare:
            question = f"{question}\n{bare}"
    return pairs + ([(question, answer)] if question and answer else [])


class DiverseQAPostProcessingStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Takes the pairs out of the answers of `DiverseQAStage`, draws some and appends them to the document.

    A long document gets more pairs than a short one, `max_num_pairs` at most. Rows of which no pair can be read, or
    whose answer does not begin with `prefix`, are dropped. Lengths are tokens of the `tokenizer` (an object with
    `encode`), or without one estimated from the characters.
    """

    takes_empty = True

    def __init__(
        self,
        input_field: str = "text",
        qa_field: str = "diverse_qa",
        tokenizer: Any = None,
        prefix: str = "Here are the questions and answers based on the provided text:",
        max_num_pairs: int = 10,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if max_num_pairs < 1:
            raise ValueError(f"{self.name}: max_num_pairs is {max_num_pairs!r}, must be 1 or more")
        self.input_field, self.qa_field, self.tokenizer = input_field, qa_field, tokenizer
        self.prefix, self.max_num_pairs, self.seed = prefix, max_num_pairs, seed

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.input_field: "string", self.qa_field: "string"}

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.qa_field]

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        if self.tokenizer is not None and not hasattr(self.tokenizer, "encode"):
            raise TypeError(f"{self.name}: tokenizer is {self.tokenizer!r:.80}, must have encode(text)")

    def process(self, task: DocumentBatch) -> DocumentBatch:
        documents = as_one_array(task.data.column(self.input_field)).to_pylist()
        answers = as_one_array(task.data.column(self.qa_field)).to_pylist()
        made = [self._appended(document or "", answer) for document, answer in zip(documents, answers, strict=True)]
        kept = [row for row, text in enumerate(made) if text is not None]
        self.count("without_pairs", len(made) - len(kept))
        return task.take(kept).with_column(self.qa_field, make_array([made[row] for row in kept], pa.string()))

    def _appended(self, document: str, answer: str | None) -> str | None:
        if answer is None or not answer.lstrip().startswith(self.prefix):
            return None
        pairs = question_answer_pairs(answer.lstrip().removeprefix(self.prefix))
        if not pairs:
            return None
        draw = random.Random(digest([str(self.seed), document]))  # noqa: S311  the same in every run
        draw.shuffle(pairs)
        most = max(1, int(10 * self._tokens(document) / TOKENS_PER_PAIR))
        chosen = pairs[: min(self.max_num_pairs, draw.randint(1, most))]
        return "\n\n".join([document, *(f"Question: {question}\nAnswer: {answer}" for question, answer in chosen)])

    def _tokens(self, text: str) -> float:
        return len(self.tokenizer.encode(text)) if self.tokenizer is not None else len(text) / CHARS_PER_TOKEN


class KnowledgeListPostProcessingStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Takes the marks of lists off the answers of `KnowledgeListStage`: one fact in each line."""

    takes_empty = True

    def __init__(self, input_field: str = "knowledge_list") -> None:
        super().__init__()
        self.input_field = input_field

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.input_field: "string"}

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.input_field]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        texts = as_one_array(task.data.column(self.input_field)).to_pylist()
        cleaned = [None if text is None else _facts(text) for text in texts]
        return task.with_column(self.input_field, make_array(cleaned, pa.string()))


def _facts(text: str) -> str:
    lines = text.strip().splitlines()
    if lines and not _is_item(lines[0]) and any(map(_is_item, lines[1:])):
        lines = lines[1:]  # such as "Here are the facts:"
    bare = (_MARK.sub("", line).rstrip(" *") for line in lines)
    return "\n".join(line for line in bare if line)


def _is_item(line: str) -> bool:
    return line.lstrip().startswith(("-", "*", "•")) or bool(re.match(r"\s*\d+[.)]", line))
