"""LLMClient: what a stage needs of a client, and how clients of other makes are called.

A client of your own needs only `query_model`, which may be a coroutine:

    class MyClient:
        def query_model(self, *, messages, model, generation_config=None, **_) -> list[str]: ...

What is given up with such a client: usage, `finish_reason`, schemas and limits per minute are known to `OpenAIClient`
only.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gristmill.core.errors import describe_error
from gristmill.models.llm.llm_request import Answer, FailedRequest, LLMRequest, Message

if TYPE_CHECKING:
    from gristmill.models.llm.generation_config import GenerationConfig


@runtime_checkable
class LLMClient(Protocol):
    """Answers messages: `query_model` returns one text for each of the `n` answers."""

    def query_model(
        self,
        *,
        messages: Iterable[Message],
        model: str,
        generation_config: GenerationConfig | None = None,
        **others: Any,
    ) -> list[str]: ...


@runtime_checkable
class AsyncLLMClient(Protocol):
    """Like `LLMClient`, with a `query_model` to be awaited."""

    async def query_model(
        self,
        *,
        messages: Iterable[Message],
        model: str,
        generation_config: GenerationConfig | None = None,
        **others: Any,
    ) -> list[str]: ...


class AskingClient(Protocol):
    """What a session calls. `OpenAIClient` and `AsyncOpenAIClient` are such clients."""

    max_concurrent_requests: int

    async def ask(self, request: LLMRequest) -> Answer | FailedRequest: ...

    def share(self, workers: int) -> None:
        """This process is one of several workers with the same client."""

    def close(self) -> None: ...

    def take_counts(self) -> dict[str, float]: ...


class ForeignClient:
    """A client that has only `query_model`."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.max_concurrent_requests: int = getattr(client, "max_concurrent_requests", 5)
        if callable(setup := getattr(client, "setup", None)):
            setup()

    async def ask(self, request: LLMRequest) -> Answer | FailedRequest:
        arguments = {
            "messages": request.messages,
            "model": request.model,
            "generation_config": request.config.for_sample(request.sample),
        }
        try:
            if inspect.iscoroutinefunction(self.client.query_model):
                texts: Sequence[str] = await self.client.query_model(**arguments)
            else:
                texts = await asyncio.to_thread(self.client.query_model, **arguments)
                texts = await texts if inspect.isawaitable(texts) else texts
        except Exception as error:  # noqa: BLE001  whatever a client of another make raises is about this request
            return FailedRequest(describe_error(error))
        if not texts or not isinstance(texts[0], str):
            return FailedRequest(f"the client returned {texts!r:.200} instead of a list of texts")
        return Answer(request.key, request.model, texts[0])

    def share(self, workers: int) -> None:
        self.max_concurrent_requests = max(1, self.max_concurrent_requests // workers)

    def close(self) -> None:
        return None

    def take_counts(self) -> dict[str, float]:
        return {}


def asking_client(client: Any) -> AskingClient:
    """The client as a session calls it."""
    return client if hasattr(client, "ask") else ForeignClient(client)


def check_client(owner: str, client: Any) -> None:
    """Raise a TypeError for what is no client."""
    if not (callable(getattr(client, "ask", None)) or callable(getattr(client, "query_model", None))):
        raise TypeError(
            f"{owner}: client is {client!r:.100}, must have query_model, as "
            "AsyncOpenAIClient(base_url='http://localhost:8000/v1') has"
        )
