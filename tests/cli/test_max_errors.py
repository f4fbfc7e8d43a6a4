"""What `--max-errors` takes."""

from __future__ import annotations

import pytest

from gristmill.cli.recipe_runner import parse_max_errors
from gristmill.core.errors import RecipeError


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("50", 50),
        ("0", 0),
        ("1", 1),
        ("1%", 0.01),
        ("0.5%", 0.005),
        ("100%", 1.0),
        ("0.01", 0.01),
        (".01", 0.01),
        ("1.0", 1.0),
        ("none", None),
        ("None", None),
    ],
)
def test_what_max_errors_means(text: str, budget: float | None) -> None:
    got = parse_max_errors(text)
    assert got == budget
    assert type(got) is type(budget), "a number of records is whole, a share is not"


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5", "150%", "nan", "inf", "1e3", "50 records", "1,000", "٣"])
def test_what_max_errors_cannot_mean(text: str) -> None:
    with pytest.raises(RecipeError, match="write a number of records such as 50, a share such as 1% or 0.01, or none"):
        parse_max_errors(text)
