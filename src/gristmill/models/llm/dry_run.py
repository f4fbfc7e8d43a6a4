"""What would be asked, without asking: for estimates, for looking at prompts, and for files of batch APIs.

Answers are made up. They have the length that real ones have at most, or the least that a schema allows, so that the
stages after this one have something to work on; what those then do is no more than a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from gristmill.models.llm.llm_request import CHARS_PER_TOKEN, Answer, LLMRequest

if TYPE_CHECKING:
    from gristmill.models.llm.answer_store import AnswerStore

Recorder = Callable[[str, LLMRequest], None]
_MOST_CHARS = 20_000


class DryRun:
    """Stands in for the session of a stage. Copies share what they have seen."""

    def __init__(self, stage: str, recorder: Recorder | None = None) -> None:
        self.stage, self.recorder = stage, recorder
        self._seen: set[str] = set()

    def __deepcopy__(self, memo: object) -> DryRun:
        return self

    def answers(
        self, requests: Sequence[LLMRequest], store: AnswerStore | None, count: Callable[[str, float], None]
    ) -> Iterator[Answer]:
        """An answer to each request: the one that is kept, or a made-up one."""
        if store is not None:
            store.refresh()
        kept = store.get_many({request.key for request in requests}) if store is not None else {}
        for request in requests:
            if request.key not in kept:
                self._note(request, count)
            yield kept.get(request.key) or made_up_answer(request)

    def _note(self, request: LLMRequest, count: Callable[[str, float], None]) -> None:
        if request.key in self._seen:
            return
        self._seen.add(request.key)
        count("requests", 1)
        count("prompt_tokens", request.expected_prompt_tokens)
        count("answer_tokens", request.most_answer_tokens)
        if self.recorder is not None:
            self.recorder(self.stage, request)


def made_up_answer(request: LLMRequest) -> Answer:
    """An answer as long as the question, and of its schema, if there is one."""
    if request.schema is not None:
        value = least_value(request.schema)
        return Answer(request.key, request.model, orjson.dumps(value).decode(), "stop", value=value)
    content = request.messages[-1].get("content")
    said = content if isinstance(content, str) else "an answer"
    most = min(int(request.most_answer_tokens * CHARS_PER_TOKEN), _MOST_CHARS)
    own = f"{request.key[:8]} {said[-most:]}"  # as different as the questions are
    return Answer(request.key, request.model, own, "stop")


def least_value(schema: Any) -> Any:
    """A small value that fits most schemas."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        return {name: least_value(properties.get(name)) for name in schema.get("required") or properties}
    plain: dict[Any, Any] = {"array": [], "string": "", "integer": schema.get("minimum", 0), "boolean": False}
    return plain.get(kind, schema.get("minimum", 0) if kind == "number" else None)


class MeanAnswer(NamedTuple):
    """What answers of a model had so far."""

    tokens: float
    seconds: float


def mean_answer(model: str, lines: Iterable[Mapping[str, Any]]) -> MeanAnswer | None:
    """The mean over the answers of a model that are kept; None if there are none."""
    known = [line for line in lines if line.get("model") == model and line.get("answer_tokens") is not None]
    if not known:
        return None
    tokens = sum(line["answer_tokens"] for line in known)
    return MeanAnswer(tokens / len(known), sum(line.get("seconds") or 0.0 for line in known) / len(known))
