"""LLMStage: the base of stages that ask a language model, in every modality.

A subclass makes requests of its rows and calls `ask`:

    class Caption(LLMStage[ImageBatch, ImageBatch]):
        def process(self, task):
            answers = self.ask([self.request([user_message([image_part(data)])]) for data in ...])

One worker asks for all rows of a batch at once, as many at a time as the client may, so one worker is enough and the
default. Answers are kept with the records of the run, or in `cache`; what was answered is not asked again, whatever
killed the run, and whatever changed in stages after this one.

What is given up: a row waits for the slowest answer of its batch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from gristmill.core.errors import GristmillError, PlanError
from gristmill.core.stage import ProcessingStage
from gristmill.core.stage_roles import EndpointForecast, EndpointRole, LastingRecordsRole, ReportingRole
from gristmill.core.task import Task, digest
from gristmill.models.llm.answer_store import AnswerStore
from gristmill.models.llm.dry_run import DryRun, Recorder, mean_answer
from gristmill.models.llm.failure_watch import FailureWatch
from gristmill.models.llm.generation_config import GenerationConfig
from gristmill.models.llm.llm_client import asking_client, check_client
from gristmill.models.llm.llm_request import Answer, FailedRequest, LLMRequest, Message
from gristmill.models.llm.llm_session import LLMSession
from gristmill.models.llm.openai_client import AsyncOpenAIClient
from gristmill.models.llm.spending import Budget, Spending, Spent
from gristmill.models.llm.structured_output import schema_of

if TYPE_CHECKING:
    from gristmill.core.stage import WorkerMetadata

ANSWERS, LEASES = "answers", "budget"
"""Folders among the records of a run."""

IN_ALL_ATTEMPTS = "_in_all_attempts"
"""The end of counters that include what attempts asked whose rows were not finished."""

In = TypeVar("In", bound=Task[Any])
Out = TypeVar("Out", bound=Task[Any])


class LLMStage(ProcessingStage[In, Out], LastingRecordsRole, EndpointRole, ReportingRole):
    """Asks a language model about its rows. A subclass writes `process` or `process_batch`.

    `client` may also be the parameters of an `AsyncOpenAIClient`, as recipes have them. `cache` is a directory, on any
    fsspec URL, for answers that several runs share; `cache_only` takes answers from there and never asks.
    """

    is_base: ClassVar[bool] = True
    num_workers = 1
    not_identity: ClassVar[tuple[str, ...]] = ("client", "cache", "cache_options", "cache_only", "budget")
    schema: Any = None

    def __init__(
        self,
        client: Any = None,
        model_name: str = "",
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
        *,
        cache: str | None = None,
        cache_options: Mapping[str, Any] | None = None,
        cache_only: bool = False,
        budget: Budget | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.client, self.model_name, self.generation_config = client, model_name, generation_config
        self.cache, self.cache_options, self.cache_only, self.budget = cache, cache_options, cache_only, budget
        if client is None:
            raise TypeError(f"{self.name}: client must be given, such as AsyncOpenAIClient(base_url=...)")
        self._client = AsyncOpenAIClient(**client) if isinstance(client, Mapping) else client
        check_client(self.name, self._client)
        self.client_identity = None if isinstance(self._client, AsyncOpenAIClient) else type(self._client)
        if not isinstance(model_name, str) or not model_name:
            raise ValueError(f"{self.name}: model_name must be given: {model_name!r}")
        self._config, self._budget = GenerationConfig.of(generation_config), Budget.of(budget)
        self._records: tuple[str, Mapping[str, Any], str] = ("", {}, "")
        self._run = ""
        self._spent = Spent()
        self._session: LLMSession | None = None
        self._dry: DryRun | None = None

    def check(self) -> None:
        budget = self._budget
        if budget is not None and budget.max_cost is not None and self.model_name not in budget.prices:
            raise PlanError(f"stage {self.name!r}: max_cost needs a price for the model {self.model_name!r} in prices")

    # -- the run ---------------------------------------------------------------------------------------

    def assign_records(self, url: str, storage_options: Mapping[str, Any], attempt: str, run: str) -> None:
        """In the driver, before each attempt: where answers are kept, and what was spent so far."""
        self._records, self._run = (url, dict(storage_options), attempt), run
        if self._budget is not None and self._budget.is_limited and url:
            store = self._open_store()
            assert store is not None, "there is a place for it"
            self._spent = self._budget.spent_by(store.run, store.lines())

    def _open_store(self) -> AnswerStore | None:
        url, options, _ = self._records
        if not self.cache and not url:
            return None
        if self.cache:
            return AnswerStore(self.cache, self.cache_options, self._run)
        return AnswerStore(f"{url}/{ANSWERS}", options, self._run)

    def _open_spending(self) -> Spending | None:
        if self._budget is None:
            return None
        url, options, attempt = self._records
        shared = digest([repr(self._budget.left(Spent()))], 4)
        leases = f"{url}/{LEASES}/{attempt}-{shared}" if url and self._budget.is_limited else ""
        return Spending(self._budget, self._spent, leases, options)

    # -- without asking --------------------------------------------------------------------------------

    def dry_copy(self, recorder: Recorder | None = None) -> Any:
        """A copy that asks nobody; the `recorder` is called with the stage's name and each request that is new."""
        other = copy.copy(self)
        other._session, other._dry = None, DryRun(self.name, recorder)
        return other

    def foresee(self, counts: Mapping[str, float], scale: float) -> EndpointForecast:
        store = AnswerStore(self.cache, self.cache_options) if self.cache else None
        known = mean_answer(self.model_name, store.lines() if store else ())
        requests, prompts = counts.get("requests", 0) * scale, counts.get("prompt_tokens", 0) * scale
        answers = requests * known.tokens if known else counts.get("answer_tokens", 0) * scale
        priced = self._budget is not None and self.model_name in self._budget.prices
        cost = self._budget.spent(self.model_name, prompts, answers).cost if self._budget and priced else None
        at_once = getattr(self._client, "max_concurrent_requests", 1)
        seconds = requests * known.seconds / at_once if known else None
        return EndpointForecast(
            self.model_name, round(requests), round(prompts), round(answers), known is None, cost, seconds
        )

    # -- the worker ------------------------------------------------------------------------------------

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        if self._dry is not None:
            return
        client = None
        if not self.cache_only:
            client = asking_client(
                copy.copy(self._client) if isinstance(self._client, AsyncOpenAIClient) else self._client
            )
            client.share(self._workers())
        notes, watch = {"stage": self.name}, self._failure_watch()
        self._session = LLMSession(client, self._open_store(), self._open_spending(), self.count, notes, watch=watch)

    def _failure_watch(self) -> FailureWatch | None:
        """What stops a run whose first requests all fail; None for stages whose failed rows go to quarantine, where
        `max_errors` is for that."""
        return None

    @property
    def endpoint(self) -> str:
        """The address that is asked, or the kind of client."""
        return str(getattr(self._client, "base_url", type(self._client).__name__))

    def _workers(self) -> int:
        return self.num_workers if isinstance(self.num_workers, int) else 1

    def teardown(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}

    def displayed_counts(self, counts: Mapping[str, float]) -> Mapping[str, float]:
        """What was asked and paid for in all attempts of the run, also in those that were killed: by the answers."""
        if not self._records[0] or self._dry is not None:
            return counts
        try:
            store = self._open_store()
            assert store is not None, "there is a place for it"
            own = [line for line in store.lines() if line.get("run") == store.run and line.get("stage") == self.name]
        except (OSError, GristmillError):
            return counts
        tokens = {name: sum(line.get(name) or 0 for line in own) for name in ("prompt_tokens", "answer_tokens")}
        shown = dict(counts)
        for name, value in {"requests": len(own), **tokens}.items():
            if value > counts.get(name, 0):
                shown.pop(name, None)
                shown[f"{name}{IN_ALL_ATTEMPTS}"] = value
        if self._budget is not None and self._budget.prices:
            shown["cost"] = sum(self._budget.spent_by(store.run, [line]).cost for line in own)
        return shown

    # -- for subclasses --------------------------------------------------------------------------------

    def request(self, messages: Sequence[Message], sample: int = 0, model: str = "") -> LLMRequest:
        """A request of this stage, for the n-th answer to the same messages."""
        return LLMRequest(model or self.model_name, messages, self._config, schema_of(self.schema), sample)

    def ask(self, requests: Sequence[LLMRequest]) -> list[Answer | FailedRequest]:
        """The answer to each request, or why there is none; put that row into quarantine."""
        if self._dry is not None:
            return list(self._dry.answers(requests, self._open_store(), self.count))
        if self._session is None:
            self.setup()  # called by hand
        assert self._session is not None, "opened by setup"
        outcomes = self._session.ask(requests)
        cut = sum(isinstance(outcome, Answer) and outcome.is_cut for outcome in outcomes)
        failed = sum(isinstance(outcome, FailedRequest) for outcome in outcomes)
        for name, number in (("cut_answers", cut), ("failed_requests", failed)):
            if number:
                self.count(name, number)
        return outcomes
