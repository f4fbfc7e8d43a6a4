"""What is asked of a language model, what it answers, and the key by which an answer is found again.

    LLMRequest      model, messages, parameters, schema, and the how-manieth answer to them
    Answer          the text, why it ended, and what it cost in tokens
    FailedRequest   why there is no answer

The key is a hash of all that is sent. The address of the endpoint is not part of it: what a model has answered is the
same wherever it runs, and a run may move to another server.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import orjson
import xxhash

from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.models.llm.generation_config import GenerationConfig

Message = Mapping[str, Any]
"""`{"role": "user", "content": ...}`, where the content is a text, or a list of parts."""

CHARS_PER_TOKEN = 3.5
"""For estimates before an answer is there: about what English text has."""

_IMAGE_TOKENS = 800
_MEDIA = ("image_url", "input_audio")


class LLMRequest:
    """One question to a language model."""

    def __init__(
        self,
        model: str,
        messages: Sequence[Message],
        config: GenerationConfig | None = None,
        schema: Mapping[str, Any] | None = None,
        sample: int = 0,
    ) -> None:
        self.model, self.messages, self.config = model, messages, config or GenerationConfig()
        self.schema, self.sample = schema, sample

    @cached_property
    def payload(self) -> bytes:
        """The body of the request to `/v1/chat/completions`."""
        fields: dict[str, Any] = {"model": self.model, "messages": self.messages, **self.config.fields(self.sample)}
        if self.schema is not None:
            wanted = {"name": "answer", "schema": self.schema, "strict": True}
            fields["response_format"] = {"type": "json_schema", "json_schema": wanted}
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)

    @cached_property
    def key(self) -> str:
        """The same for the same question in every process."""
        return xxhash.xxh3_128_hexdigest(b"1 %d " % self.sample + self.payload)

    @property
    def expected_prompt_tokens(self) -> int:
        """About how many tokens the messages have."""
        return sum(_expected_tokens(message.get("content")) + 4 for message in self.messages)

    @property
    def most_answer_tokens(self) -> int:
        """How many tokens the answer has at most, as far as that is known."""
        extra = self.config.extra_kwargs or {}
        return int(extra.get("max_completion_tokens") or self.config.max_tokens or 2048)


@fast_dataclass(frozen=True, slots=True)
class Answer:
    """What a model has answered."""

    key: str
    model: str
    text: str
    finish_reason: str = ""
    """`stop`; `length` if the answer was cut at `max_tokens`; empty if the client does not say."""
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    seconds: float = 0.0
    """From the request to the answer, retries not counted."""
    cached: bool = False
    """Whether it was there already, so that nothing was paid for it."""
    value: Any = None
    """What the text says, if JSON of a schema was wanted."""

    @property
    def is_cut(self) -> bool:
        return self.finish_reason == "length"


@fast_dataclass(frozen=True, slots=True)
class FailedRequest:
    """Why there is no answer, and what came instead of it."""

    reason: str
    raw: str | None = None
    status: int | None = None
    final: bool = False
    """Whether the endpoint has refused it, so that asking again would not help: another 4xx than 429, or an error
    instead of an answer."""


def text_part(text: str) -> dict[str, Any]:
    """A part of a message that is text."""
    return {"type": "text", "text": text}


def image_part(data: bytes, media_type: str | None = None, detail: str | None = None) -> dict[str, Any]:
    """A part of a message that is an image, as it is encoded (JPEG, PNG, WebP or GIF)."""
    kind = media_type or _image_type(data)
    url: dict[str, Any] = {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}"}
    return {"type": "image_url", "image_url": url | ({"detail": detail} if detail else {})}


def audio_part(data: bytes, sound_format: str = "wav") -> dict[str, Any]:
    """A part of a message that is sound, as it is encoded (`wav` or `mp3`)."""
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": sound_format}}


def user_message(content: str | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"role": "user", "content": content if isinstance(content, str) else list(content)}


def _image_type(data: bytes) -> str:
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "image/png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return "image/gif" if data[:4] == b"GIF8" else "image/jpeg"


def _expected_tokens(content: Any) -> int:
    if isinstance(content, str):
        return int(len(content) / CHARS_PER_TOKEN) + 1
    parts = content if isinstance(content, list | tuple) else ()
    return sum(_IMAGE_TOKENS if part.get("type") in _MEDIA else _expected_tokens(part.get("text")) for part in parts)
