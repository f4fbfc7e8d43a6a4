"""Conversations: what they say as text, the values at paths such as `messages.*.content`, and rows of question and
answer as conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from gristmill.core.arrow.table_conversion import to_array
from gristmill.core.stage import ProcessingStage
from gristmill.samples.batch import DocumentBatch
from gristmill.synthetic.nemotron_cc_cleaning import question_answer_pairs

if TYPE_CHECKING:
    from gristmill.core.stage import Columns


def text_of_value(value: Any) -> str:
    """A value as text; of a conversation, who says what."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, Mapping) and "content" in item for item in value):
        return "\n\n".join(f"{item.get('role', 'user')}: {text_of_value(item['content'])}" for item in value)
    return orjson.dumps(value, default=str).decode()


def texts_at(value: Any, path: str) -> Iterator[str]:
    """The texts at a path within a row: `text`, `meta.title`, `messages.*.content`."""

    def see(text: str) -> str:
        found.append(text)
        return text

    found: list[str] = []
    replace_at(value, path, see)
    yield from found


def replace_at(value: Any, path: str, replace: Callable[[str], str | None]) -> Any:
    """The value with the texts at a path replaced, in order; what is elsewhere is shared."""
    if not path:
        return replace(value) if isinstance(value, str) else value
    first, _, rest = path.partition(".")
    if first == "*":
        return [replace_at(item, rest, replace) for item in value] if isinstance(value, list) else value
    if isinstance(value, Mapping) and first in value:
        return {**value, first: replace_at(value[first], rest, replace)}
    return value


class ConversationStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Makes conversations, `messages` with roles and contents, of questions and answers.

    They are in two columns, or with `pairs_field` in one text with lines `Question:` and `Answer:`, of which each pair
    becomes two messages. Rows without a pair are dropped. `system` is the first message of each conversation.
    """

    takes_empty = True

    def __init__(
        self,
        question_field: str = "question",
        answer_field: str = "answer",
        pairs_field: str | None = None,
        output_field: str = "messages",
        system: str | None = None,
    ) -> None:
        super().__init__()
        self.question_field, self.answer_field, self.pairs_field = question_field, answer_field, pairs_field
        self.output_field, self.system = output_field, system

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.pairs_field] if self.pairs_field else [self.question_field, self.answer_field]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.output_field]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        rows = task.to_rows()
        pairs = [self._pairs(row) for row in rows]
        kept = [index for index, found in enumerate(pairs) if found]
        messages = [self._messages(pairs[index]) for index in kept]
        return task.take(kept).with_column(self.output_field, to_array(messages))

    def _pairs(self, row: Mapping[str, Any]) -> list[tuple[str, str]]:
        if self.pairs_field:
            return question_answer_pairs(text_of_value(row.get(self.pairs_field)))
        question, answer = (text_of_value(row.get(name)) for name in (self.question_field, self.answer_field))
        return [(question, answer)] if question.strip() and answer.strip() else []

    def _messages(self, pairs: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
        start = [{"role": "system", "content": self.system}] if self.system else []
        return start + [
            {"role": role, "content": text}
            for question, answer in pairs
            for role, text in (("user", question), ("assistant", answer))
        ]
