"""LLMSession: many requests at a time, each answered once: from the store, or by the endpoint within the budget.

A worker has one for each of its LLM stages. It runs an event loop in a thread of its own, so that hundreds of requests
are in flight while the stage waits in plain code. `ask` returns in the order of the requests.

An answer is in the store before `ask` returns it. If the endpoint refuses everything, or the budget is spent, what is
in flight is awaited and stored first, and then the error is raised.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from gristmill.core.errors import EndpointError, GristmillError
from gristmill.models.llm.llm_request import CHARS_PER_TOKEN, Answer, FailedRequest, LLMRequest
from gristmill.models.llm.spending import Spent
from gristmill.models.llm.structured_output import NotOfSchemaError, read_json, repair_messages

if TYPE_CHECKING:
    from gristmill.models.llm.answer_store import AnswerStore
    from gristmill.models.llm.failure_watch import FailureWatch
    from gristmill.models.llm.llm_client import AskingClient
    from gristmill.models.llm.spending import Spending

T = TypeVar("T")
Outcome = Answer | FailedRequest
Count = Callable[[str, float], None]

_QUEUED = 2
"""How many tasks there are for each request that may be in flight, so that one is always ready to be sent."""


class LLMSession:
    """Answers requests from a store, or through a client."""

    def __init__(
        self,
        client: AskingClient | None,
        store: AnswerStore | None = None,
        spending: Spending | None = None,
        count: Count = lambda name, value: None,
        notes: Mapping[str, Any] | None = None,
        repairs: int = 1,
        watch: FailureWatch | None = None,
    ) -> None:
        """Without a client, answers come from the store only. `notes` are kept with each answer. The `watch` sees the
        outcome of each request that was sent."""
        self.client, self.store, self.spending, self.count = client, store, spending, count
        self.notes, self.repairs, self.watch = dict(notes or {}), repairs, watch
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="llm-session", daemon=True)
        self._thread.start()
        self._settled = asyncio.Event()
        self._paying = 0

    def ask(self, requests: Sequence[LLMRequest]) -> list[Outcome]:
        """The answer to each request, or why there is none."""
        return self._run(self._ask_all(requests))

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
        if not self._loop.is_closed():
            self._run(self._close_client())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _close_client(self) -> None:
        if self.client is not None:
            self.client.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # connections that were closed are gone when the loop comes round

    # -- in the loop -----------------------------------------------------------------------------------

    async def _ask_all(self, requests: Sequence[LLMRequest]) -> list[Outcome]:
        distinct = {request.key: request for request in requests}
        if self.store is not None:
            self.store.refresh()
        found: dict[str, Outcome] = dict(self.store.get_many(distinct)) if self.store is not None else {}
        missing = deque(request for key, request in distinct.items() if key not in found)
        if found:
            self.count("cached_answers", len(found))
        checked = deque(request for key, request in distinct.items() if key in found and request.schema is not None)
        try:
            await self._work_off(missing, found, self._answered)
            await self._work_off(checked, found, self._of_schema)
        finally:
            if self.store is not None:
                self.store.flush()
            self._take_client_counts()
        return [found[request.key] for request in requests]

    async def _work_off(
        self,
        todo: deque[LLMRequest],
        found: dict[str, Outcome],
        answered: Callable[[LLMRequest, Outcome | None], Coroutine[Any, Any, Outcome]],
    ) -> None:
        """Work on as many requests at a time as the client may have in flight, in order."""
        failures: list[GristmillError] = []

        async def work() -> None:
            while todo and not failures:
                request = todo.popleft()
                try:
                    found[request.key] = await answered(request, found.get(request.key))
                except GristmillError as failure:
                    failures.append(failure)

        most = _QUEUED * self.client.max_concurrent_requests if self.client is not None else 1
        await asyncio.gather(*(work() for _ in range(min(len(todo), most))))
        if failures:
            raise failures[0]

    async def _answered(self, request: LLMRequest, _: Outcome | None) -> Outcome:
        return await self._of_schema(request, await self._paid(request))

    async def _of_schema(self, request: LLMRequest, outcome: Outcome | None) -> Outcome:
        """The answer with its value; one that is not of the schema is asked for again."""
        assert outcome is not None, "asked for"
        if request.schema is None or isinstance(outcome, FailedRequest):
            return outcome
        messages, answer = list(request.messages), outcome
        for tries in range(self.repairs + 1):
            try:
                return replace(answer, value=read_json(answer.text, request.schema))
            except NotOfSchemaError as problem:
                why = f"{problem}; it was cut at max_tokens" if answer.is_cut else str(problem)
                failed = FailedRequest(f"the answer is not of the schema: {why}", answer.text)
                messages = repair_messages(messages, answer.text, str(problem))
            if tries < self.repairs:
                self.count("repairs", 1)
                again = LLMRequest(request.model, messages, request.config, request.schema, request.sample)
                repaired = await self._once(again)
                if isinstance(repaired, FailedRequest):
                    return repaired
                answer = repaired
        return failed

    async def _once(self, request: LLMRequest) -> Outcome:
        """The answer from the store, or from the endpoint."""
        known = self.store.get_many([request.key]) if self.store is not None else {}
        if request.key in known:
            self.count("cached_answers", 1)
            return known[request.key]
        return await self._paid(request)

    async def _paid(self, request: LLMRequest) -> Outcome:
        if self.client is None:
            raise EndpointError(
                f"the answer {request.key} is not in the store, and cache_only forbids to ask for it. Run once without "
                "cache_only"
            )
        expected = await self._reserve(request)
        self._paying += 1
        actual = Spent()
        try:
            self.count("requests", 1)
            outcome = await self.client.ask(request)
            if isinstance(outcome, Answer):
                actual = self._keep(request, outcome)
        finally:
            self._paying -= 1
            if self.spending is not None:
                self.spending.settle(expected, actual)
            self._settled.set()
        if self.watch is not None:
            self.watch.saw(outcome)
        return outcome

    def _keep(self, request: LLMRequest, answer: Answer) -> Spent:
        if self.store is not None:
            self.store.add(answer, **self.notes)
        prompt = answer.prompt_tokens if answer.prompt_tokens is not None else request.expected_prompt_tokens
        made = answer.answer_tokens if answer.answer_tokens is not None else len(answer.text) / CHARS_PER_TOKEN
        self.count("prompt_tokens", prompt)
        self.count("answer_tokens", made)
        if self.spending is None:
            return Spent()
        spent = self.spending.budget.spent(request.model, prompt, made)
        if spent.cost:
            self.count("cost", spent.cost)
        return spent

    async def _reserve(self, request: LLMRequest) -> Spent:
        """Wait until the budget covers a request, for those in flight may take less than was reserved for them."""
        if self.spending is None:
            return Spent()
        expected = self.spending.budget.spent(request.model, request.expected_prompt_tokens, request.most_answer_tokens)
        while not self.spending.reserve(expected):
            if not self._paying:
                raise self.spending.budget.reached(self.spending.before)
            self._settled.clear()
            await self._settled.wait()
        return expected

    def _take_client_counts(self) -> None:
        for name, value in (self.client.take_counts() if self.client is not None else {}).items():
            self.count(name, value)
