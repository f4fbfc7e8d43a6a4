"""What a run may spend on models, and how its workers share that.

The budget that is left when an attempt of a run starts is divided into equal units. A worker takes a unit by creating a
file of its name, which only one can (`budget/ATTEMPT/unit-007`), on a disk or on object storage. It may send requests
as long as its units cover what they are expected to take. So no worker needs to hear of another, and what is spent
passes the budget only by how much more the requests in flight take than was expected of them.

What a killed attempt has spent is known from its answers: each is kept with its tokens.

What is given up: a worker may keep the rest of a unit, so that a run stops a little before its budget is spent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gristmill.core.errors import BudgetReachedError, cannot_write
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.remote_storage import open_file_system
from gristmill.models.plain_parameters import PlainParameters

UNITS = 256


@fast_dataclass(frozen=True, slots=True)
class Spent:
    """Tokens, and what they cost, as far as prices are known."""

    tokens: float = 0
    cost: float = 0.0

    def plus(self, other: Spent) -> Spent:
        return Spent(self.tokens + other.tokens, self.cost + other.cost)

    def minus(self, other: Spent) -> Spent:
        return Spent(self.tokens - other.tokens, self.cost - other.cost)


class Budget(PlainParameters):
    """What a run may spend on language models: tokens, or money by a table of prices, or both.

    `prices` are per million tokens: `{"gpt-x": {"input": 0.15, "output": 0.60}}`. The limits are those of the run, over
    all its attempts; stages with equal budgets share one.
    """

    def __init__(
        self,
        max_tokens_total: float | None = None,
        max_cost: float | None = None,
        prices: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        for name, value in (("max_tokens_total", max_tokens_total), ("max_cost", max_cost)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
                raise ValueError(f"Budget: {name} is {value!r}, must be a number above 0, or None")
        for model, price in (prices or {}).items():
            if not isinstance(price, Mapping) or set(price) != {"input", "output"}:
                raise ValueError(
                    f"Budget: the price of {model!r} is {price!r}, must be like {{'input': 0.15, 'output': 0.6}}, "
                    "for a million tokens"
                )
        if max_cost is not None and not prices:
            raise ValueError("Budget: max_cost needs prices, such as {'MODEL': {'input': 0.15, 'output': 0.6}}")
        self.max_tokens_total, self.max_cost = max_tokens_total, max_cost
        self.prices = {model: dict(price) for model, price in (prices or {}).items()}

    @classmethod
    def of(cls, value: Budget | Mapping[str, Any] | None) -> Budget | None:
        """A budget from one, or from its parameters."""
        return cls(**value) if isinstance(value, Mapping) else value

    @property
    def is_limited(self) -> bool:
        return self.max_tokens_total is not None or self.max_cost is not None

    def spent(self, model: str, prompt_tokens: float, answer_tokens: float) -> Spent:
        """What a request takes."""
        price = self.prices.get(model)
        cost = (prompt_tokens * price["input"] + answer_tokens * price["output"]) / 1e6 if price else 0.0
        return Spent(prompt_tokens + answer_tokens, cost)

    def spent_by(self, run: str, lines: Iterable[Mapping[str, Any]]) -> Spent:
        """What the answers of a run took."""
        total = Spent()
        for line in lines:
            if line.get("run") == run:
                tokens = line.get("prompt_tokens") or 0, line.get("answer_tokens") or 0
                total = total.plus(self.spent(str(line.get("model")), *tokens))
        return total

    def left(self, spent: Spent) -> Spent:
        """What is left; infinite where there is no limit."""
        tokens = float("inf") if self.max_tokens_total is None else self.max_tokens_total
        cost = float("inf") if self.max_cost is None else self.max_cost
        return Spent(max(tokens - spent.tokens, 0.0), max(cost - spent.cost, 0.0))

    def describe(self) -> str:
        parts = [f"{self.max_tokens_total:,.0f} tokens"] if self.max_tokens_total is not None else []
        parts += [f"{self.max_cost:,.2f} of cost"] if self.max_cost is not None else []
        return " and ".join(parts)

    def reached(self, spent: Spent) -> BudgetReachedError:
        cost = f" ({spent.cost:,.4f} of cost)" if self.prices else ""
        return BudgetReachedError(
            f"the budget of {self.describe()} is spent: this attempt began with {spent.tokens:,.0f} tokens{cost} "
            "spent, and the next request would pass it. All answers are kept: start again with the same run_dir and a "
            "larger budget (max_tokens_total, max_cost), and none is paid for twice"
        )


class Spending:
    """What one worker has taken of the budget, and what it has used of that."""

    def __init__(
        self, budget: Budget, before: Spent, leases: str = "", storage_options: Mapping[str, Any] | None = None
    ) -> None:
        """`before` is what was spent before this attempt, `leases` a directory that all workers of the attempt share.
        Without one, this worker is the only one."""
        self.budget, self.before = budget, before
        left = budget.left(before)
        self._unit = Spent(left.tokens / UNITS, left.cost / UNITS)
        self._leases = _open_leases(leases, storage_options or {}) if leases else None
        self._next = 0
        self._free = Spent()

    def reserve(self, expected: Spent) -> bool:
        """Set aside what a request is expected to take. False if there is not so much left."""
        while not self._covers(expected):
            if not self._take_unit():
                return False
        self._free = self._free.minus(expected)
        return True

    def settle(self, expected: Spent, actual: Spent) -> None:
        """The request took this instead."""
        self._free = self._free.plus(expected).minus(actual)

    def _covers(self, expected: Spent) -> bool:
        slack = 1e-9
        tokens = self.budget.max_tokens_total is None or self._free.tokens + slack >= expected.tokens
        return tokens and (self.budget.max_cost is None or self._free.cost + slack >= expected.cost)

    def _take_unit(self) -> bool:
        while self._next < UNITS:
            number, self._next = self._next, self._next + 1
            if self._leases is None or self._leases.take(f"unit-{number:03}"):
                finite = Spent(
                    0 if self.budget.max_tokens_total is None else self._unit.tokens,
                    0 if self.budget.max_cost is None else self._unit.cost,
                )
                self._free = self._free.plus(finite)
                return True
        return False


class _DiskLeases:
    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)

    def take(self, name: str) -> bool:
        try:
            os.close(os.open(self.path / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            return False
        except OSError as error:
            raise cannot_write(str(self.path / name), error) from error
        return True


class _ObjectLeases:
    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        self.system, self.root = open_file_system(url, storage_options)
        self.system.makedirs(self.root, exist_ok=True)

    def take(self, name: str) -> bool:
        try:
            self.system.pipe_file(f"{self.root}/{name}", b"taken", mode="create")
        except FileExistsError:
            return False
        return True


def _open_leases(url: str, storage_options: Mapping[str, Any]) -> _DiskLeases | _ObjectLeases:
    return _ObjectLeases(url, storage_options) if "://" in url else _DiskLeases(url)
