"""AsyncOpenAIClient and OpenAIClient: any endpoint that speaks the protocol of OpenAI (vLLM, SGLang, llama.cpp ...).

    client = AsyncOpenAIClient(base_url="http://localhost:8000/v1", max_concurrent_requests=256)

A request that fails for a reason that may pass (a status such as 429 or 500, a cut connection, silence) is sent again
after a random time that doubles, and not before the endpoint's own `Retry-After`. Waiting takes no place of those that
may be sent at once. Refusals (429, 503) do not count as failures until `max_wait_s` is over.

What is given up: streaming, tool calls, and `logprobs`. Cookies are not kept and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import threading
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from gristmill.core.errors import EndpointError, printable
from gristmill.core.secret_values import Secret, remember_secrets
from gristmill.models.llm.endpoint_limits import EndpointLimits
from gristmill.models.llm.generation_config import GenerationConfig
from gristmill.models.llm.http_connection import HttpAnswer, HttpPool, split_base_url
from gristmill.models.llm.llm_request import Answer, FailedRequest, LLMRequest, Message
from gristmill.models.plain_parameters import PlainParameters

OPENAI = "https://api.openai.com/v1"
_RETRIED = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
_REFUSED = frozenset((429, 503, 529))
_FOR_ALL = frozenset((401, 402, 403, 404, 405))
"""Statuses that every other request would get too."""
_MAX_DELAY_S = 60.0
_RAW_CHARS = 4_000


class _Failure(Exception):
    """An attempt that failed. `passes`: another one may succeed."""

    def __init__(self, reason: str, *, status: int | None = None, raw: str = "", passes: bool, wait: float = 0) -> None:
        super().__init__(reason)
        self.reason, self.status, self.raw, self.passes, self.wait = reason, status, raw, passes, wait


class AsyncOpenAIClient(PlainParameters):
    """Asks an endpoint that speaks the protocol of OpenAI, many requests at a time.

    `api_key` is best written as `${env:NAME}` in a recipe; without one, the environment's OPENAI_API_KEY is used for
    the address of OpenAI, and none for others. `max_concurrent_requests`, `requests_per_minute` and `tokens_per_minute`
    are for all workers of a stage together. `timeout` is for one attempt, `max_wait_s` for one request with all its
    retries. `headers` are sent with each request.
    """

    def __init__(
        self,
        max_concurrent_requests: int = 5,
        max_retries: int = 3,
        base_delay: float = 1.0,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        timeout: float = 600.0,
        max_wait_s: float = 3600.0,
        headers: Mapping[str, str] | None = None,
        ca_file: str | None = None,
    ) -> None:
        for name, value, least in (
            ("max_concurrent_requests", max_concurrent_requests, 1),
            ("max_retries", max_retries, 0),
            ("base_delay", base_delay, 0),
            ("timeout", timeout, 0.001),
            ("max_wait_s", max_wait_s, 0),
            ("requests_per_minute", requests_per_minute or 1, 0.001),
            ("tokens_per_minute", tokens_per_minute or 1, 0.001),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
                raise ValueError(f"{type(self).__name__}: {name} is {value!r}, must be a number, {least} or more")
        self.max_concurrent_requests, self.max_retries, self.base_delay = (
            max_concurrent_requests,
            max_retries,
            base_delay,
        )
        self.base_url = (base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI).rstrip("/")
        split_base_url(self.base_url)
        if not api_key and self.base_url == OPENAI:
            api_key = Secret(os.environ.get("OPENAI_API_KEY", ""), "${env:OPENAI_API_KEY}")
        self.api_key = api_key if api_key is None or isinstance(api_key, Secret) else Secret(api_key)
        self.requests_per_minute, self.tokens_per_minute = requests_per_minute, tokens_per_minute
        self.timeout, self.max_wait_s, self.ca_file = timeout, max_wait_s, ca_file
        self.headers = dict(headers or {})
        self._start()

    def _start(self) -> None:
        self._workers = 1
        self._counts: dict[str, float] = {}
        self._live: dict[int, tuple[Any, HttpPool, EndpointLimits]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name[0] != "_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def setup(self) -> None:
        """Nothing needs to be opened: for code that calls it."""

    def share(self, workers: int) -> None:
        """This process is one of several workers with the same client: it takes its part of the limits."""
        self._workers = max(1, workers)

    # -- asking ----------------------------------------------------------------------------------------

    async def query_model(
        self,
        *,
        messages: Iterable[Message],
        model: str,
        conversation_formatter: Any = None,
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
    ) -> list[str]:
        """The texts of the `n` answers. Raises an EndpointError if there are none."""
        if conversation_formatter is not None:
            raise TypeError("conversation_formatter is not used: the endpoint applies the template of its model")
        config, listed = GenerationConfig.of(generation_config), list(messages)
        requests = [LLMRequest(model, listed, config, sample=number) for number in range(config.n or 1)]
        answers = await asyncio.gather(*map(self.ask, requests))
        return [_text_or_raise(answer) for answer in answers]

    async def ask(self, request: LLMRequest) -> Answer | FailedRequest:
        """The answer to one request, after retries. Raises an EndpointError if no request can succeed."""
        expected = request.expected_prompt_tokens + request.most_answer_tokens
        found = await self.post("/chat/completions", request.payload, expected)
        if isinstance(found, FailedRequest):
            return found
        data, seconds = found
        return _answer_of(request, data, seconds)

    async def post(
        self, path: str, payload: bytes, expected_tokens: int = 0
    ) -> tuple[dict[str, Any], float] | FailedRequest:
        """The JSON that the endpoint answers, and the seconds that it took, after retries."""
        _, pool, limits = self._open()
        began, failures, tries = time.monotonic(), 0, 0
        while True:
            tries += 1
            try:
                async with limits.slot(expected_tokens):
                    sent = time.monotonic()
                    data = await self._attempt(pool, path, payload)
                    seconds = time.monotonic() - sent
                usage = data.get("usage") if isinstance(data.get("usage"), dict) else None
                limits.succeeded(expected_tokens, usage.get("total_tokens") if usage else None)
            except _Failure as failure:
                delay = self._delay(failure, failures)
                failures += failure.status not in _REFUSED
                refused = failure.status in _REFUSED
                if refused:
                    limits.refused(failure.wait or delay)
                out_of_time = time.monotonic() - began + delay > self.max_wait_s
                if not failure.passes or failures > self.max_retries or out_of_time:
                    return self._give_up(failure, tries)
                self._count("retries")
            else:
                return data, seconds
            await asyncio.sleep(delay)

    async def _attempt(self, pool: HttpPool, path: str, payload: bytes) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self.timeout):
                answer = await pool.request("POST", path, payload)
        except TimeoutError as error:
            raise _Failure(f"no answer within {self.timeout:g} s", passes=True) from error
        except OSError as error:
            raise _Failure(f"{type(error).__name__}: {error}", passes=True, status=_unreachable(error)) from error
        return _json_of(answer)

    def _give_up(self, failure: _Failure, tries: int) -> FailedRequest:
        times = f" (tried {tries} times)" if tries > 1 else ""
        if failure.status in _FOR_ALL or failure.status == 0:
            hint = _hint(failure.status, self.base_url)
            raise EndpointError(
                f"{self.base_url}: {failure.reason}{times}. {hint}{_KEPT if not failure.status else ''}"
            )
        final = not failure.passes and failure.status is not None and 400 <= failure.status < 500
        return FailedRequest(f"{failure.reason}{times}", failure.raw or None, failure.status, final)

    def _delay(self, failure: _Failure, failures: int) -> float:
        doubled: float = min(self.base_delay * 2**failures, _MAX_DELAY_S)
        return max(failure.wait, doubled * random.uniform(0.5, 1.5))  # noqa: S311  no secret depends on it

    def _header_lines(self) -> bytes:
        headers = {"Content-Type": "application/json", "User-Agent": "gristmill", **self.headers}
        if self.api_key:
            headers["Authorization"] = f"Bearer {str.__str__(self.api_key)}"
        lines = [f"{name}: {value}" for name, value in headers.items()]
        if any("\n" in line or "\r" in line for line in lines):
            raise EndpointError("api_key and headers must be single lines")
        remember_secrets({"api_key": self.api_key, "headers": self.headers})
        return "".join(f"{line}\r\n" for line in lines).encode()

    def _open(self) -> tuple[Any, HttpPool, EndpointLimits]:
        """The connections and limits of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._live.get(id(loop))
        if found is None or found[0] is not loop:
            part = 1 / self._workers
            limits = EndpointLimits(
                max(1, int(self.max_concurrent_requests * part)),
                self.requests_per_minute and self.requests_per_minute * part,
                self.tokens_per_minute and self.tokens_per_minute * part,
            )
            found = self._live[id(loop)] = loop, HttpPool(self.base_url, self._header_lines(), self.ca_file), limits
        return found

    def close(self) -> None:
        """Close the connections of the running event loop."""
        _, pool, _ = self._live.pop(id(asyncio.get_running_loop()), (None, None, None))
        if pool is not None:
            pool.close()

    # -- what users and reports ask --------------------------------------------------------------------

    async def models(self) -> list[str]:
        """The models that the endpoint offers. Raises an EndpointError if it does not answer."""
        _, pool, _ = self._open()
        try:
            async with asyncio.timeout(min(self.timeout, 30.0)):
                data = _json_of(await pool.request("GET", "/models"))
        except (OSError, _Failure) as error:
            status = error.status if isinstance(error, _Failure) else 0
            reason = str(error) or type(error).__name__
            raise EndpointError(f"{self.base_url}: {reason}. {_hint(status, self.base_url)}") from error
        listed = data.get("data")
        names = [item.get("id") for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
        return [name for name in names if isinstance(name, str)]

    def _count(self, name: str) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1

    def take_counts(self) -> dict[str, float]:
        """What was counted since the last call, such as retries."""
        counts, self._counts = self._counts, {}
        return counts


class OpenAIClient(AsyncOpenAIClient):
    """Like `AsyncOpenAIClient`, with a `query_model` that waits for the answers."""

    def query_model(self, **arguments: Any) -> list[str]:  # type: ignore[override]
        """The texts of the `n` answers. Raises an EndpointError if there are none."""
        found: list[list[str] | BaseException] = []

        async def once() -> list[str]:
            try:
                return await AsyncOpenAIClient.query_model(self, **arguments)
            finally:
                self.close()

        def in_own_loop() -> None:
            try:
                found.append(asyncio.run(once()))
            except BaseException as error:  # noqa: BLE001  raised again in the thread of the caller
                found.append(error)

        thread = threading.Thread(target=in_own_loop)
        thread.start()
        thread.join()
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]


def _text_or_raise(answer: Answer | FailedRequest) -> str:
    if isinstance(answer, FailedRequest):
        raise EndpointError(answer.reason)
    return answer.text


def _json_of(answer: HttpAnswer) -> dict[str, Any]:
    """The JSON of an answer. Raises a _Failure for another status, and for what is no JSON."""
    raw = answer.body.decode("utf-8", "replace")
    if answer.status != 200:
        wait = retry_after_seconds(answer.headers.get("retry-after"))
        said = f"status {answer.status}: {printable(_message_of(raw), 500)}"
        raise _Failure(said, status=answer.status, raw=raw[:_RAW_CHARS], passes=answer.status in _RETRIED, wait=wait)
    try:
        data = orjson.loads(answer.body)
    except ValueError as error:
        raise _Failure(f"the answer is not JSON ({error})", raw=raw[:_RAW_CHARS], passes=True) from error
    if not isinstance(data, dict):
        raise _Failure("the answer is not a JSON object", raw=raw[:_RAW_CHARS], passes=True)
    return data


def _answer_of(request: LLMRequest, data: Mapping[str, Any], seconds: float) -> Answer | FailedRequest:
    choices = data.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message") or {}
    text = message.get("content")
    if not isinstance(text, str):
        raw = orjson.dumps(data).decode()
        said = message.get("refusal") or "the answer has no text"
        if not choice and data.get("error"):
            said = f"an error instead of an answer: {_message_of(raw)}"
        return FailedRequest(printable(said, 500), raw[:_RAW_CHARS], final=not choice)
    usage = data.get("usage") or {}
    return Answer(
        request.key,
        request.model,
        text,
        str(choice.get("finish_reason") or ""),
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
        seconds,
    )


def _message_of(raw: str) -> str:
    """What the body of an error says."""
    try:
        found = orjson.loads(raw)
        error = found.get("error", found)
        return str(error.get("message", error)) if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError):
        return raw or "no explanation"


def retry_after_seconds(value: str | None) -> float:
    """What a Retry-After header asks for, 0 if there is none that can be read."""
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (TypeError, ValueError):
            return 0.0
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


def _unreachable(error: OSError) -> int | None:
    """0 if there is nobody to talk to, so that no other request would succeed either."""
    nobody = isinstance(error, ConnectionRefusedError) or type(error).__name__ in (
        "gaierror",
        "SSLCertVerificationError",
    )
    return 0 if nobody else None


_KEPT = " `gristmill doctor --endpoint URL` checks it. Answers so far are kept: start again with the same run_dir"


def _hint(status: int | None, base_url: str) -> str:
    if status in (401, 403):
        return "Check api_key, for example ${env:OPENAI_API_KEY} in a recipe"
    if status == 402:
        return "The account has no credit left"
    if status in (404, 405):
        return f"Check base_url, which mostly ends with /v1, and the name of the model: {base_url}/models lists them"
    return "Is the server running?"
