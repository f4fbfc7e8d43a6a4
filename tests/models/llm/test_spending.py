"""A budget is shared by workers that know nothing of each other, and is never passed by what is reserved."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from gristmill.models.llm import Budget
from gristmill.models.llm.spending import Spending, Spent

PRICES = {"m": {"input": 1.0, "output": 4.0}}


def spend(budget: Budget, leases: str, expected: Spent, options: Any = None) -> int:
    spending, count = Spending(budget, Spent(), leases, options), 0
    while spending.reserve(expected):
        spending.settle(expected, expected)
        count += 1
    return count


def worker(arguments: tuple[str, int]) -> int:
    leases, tokens = arguments
    return spend(Budget(100_000), leases, Spent(tokens))


def test_processes_share_a_budget(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        counts = pool.map(worker, [(str(tmp_path), tokens) for tokens in (100, 130, 170, 300)], 1)
    spent = sum(count * tokens for count, tokens in zip(counts, (100, 130, 170, 300), strict=True))
    assert 97_000 < spent <= 100_000
    assert len(list(tmp_path.iterdir())) == 256


@pytest.mark.parametrize("system", ["memory", pytest.param("s3", marks=pytest.mark.slow)])
def test_on_object_storage(system: str, request: pytest.FixtureRequest) -> None:
    import fsspec

    options = request.getfixturevalue("s3") if system == "s3" else {}
    fsspec.filesystem(system, **options).mkdir("leases")
    counts = [spend(Budget(10_000), f"{system}://leases/run", Spent(500), options) for _ in range(2)]
    assert counts == [20, 0]


def test_what_a_request_did_not_take_is_free_again() -> None:
    spending = Spending(Budget(1000), Spent(400))
    assert spending.reserve(Spent(600))
    assert not spending.reserve(Spent(1))
    spending.settle(Spent(600), Spent(50))
    assert spending.reserve(Spent(549))


def test_cost_by_price() -> None:
    budget = Budget(max_cost=0.001, prices=PRICES)
    assert budget.spent("m", 100, 25) == Spent(125, 200e-6)
    assert spend(budget, "", budget.spent("m", 100, 25)) == 5
    lines = [
        {"run": "r", "model": "m", "prompt_tokens": 100, "answer_tokens": 25},
        {"run": "other", "model": "m", "prompt_tokens": 100, "answer_tokens": 25},
        {"run": "r", "model": "free", "prompt_tokens": None, "answer_tokens": 1},
    ]
    assert budget.spent_by("r", lines) == Spent(126, 200e-6)
    assert "0.00 of cost is spent" in str(budget.reached(Spent()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens_total": 0},
        {"max_cost": 1.0},
        {"max_cost": 1.0, "prices": {"m": {"input": 1}}},
        {"max_tokens_total": "many"},
    ],
)
def test_parameters_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Budget"):
        Budget(**wrong)
