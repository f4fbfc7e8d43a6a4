"""How numbers are spread, and the limits that thresholds name."""

from __future__ import annotations

import pytest

from gristmill.report.run_report.score_histogram import build_histogram, limits_in_threshold


@pytest.mark.parametrize(
    ("threshold", "limits"),
    [
        ("min_words=50, max_words=1e5", [("min_words", 50.0), ("max_words", 1e5)]),
        ("n=2, max_repeating_ngram_ratio=0.2", [("max_repeating_ngram_ratio", 0.2)]),
        ("cutoff=-0.5, seed=7", [("cutoff", -0.5)]),
        ("not (max_ratio=.25)", [("max_ratio", 0.25)]),
        ("", []),
    ],
)
def test_limits_have_names(threshold: str, limits: list[tuple[str, float]]) -> None:
    assert limits_in_threshold(threshold) == limits


@pytest.mark.parametrize(
    ("numbers", "counts", "edges", "bars"),
    [
        ([1, 2, 2, 4], None, [1, 2, 3, 4, 5], [1, 2, 0, 1]),  # whole numbers have a bar each
        ([7, 7], None, [7, 8], [2]),
        ([0.25, 0.25], None, [0, 1], [2]),  # a share
        ([2.5, 2.5], None, [2, 3], [2]),
        ([1, 1], None, [0, 0.5, 1], [0, 2]),  # it may be one, too
        ([0, 1, 1], [1, 2, 3], [0, 0.5, 1], [1, 5]),
        ([0.953125, 0.96875, 0.984375, 1], [1, 2, 3, 4], [0.953125, 0.984375, 1], [3, 7]),
        ([0.5, 0.515625], [3, 4], [0.5, 0.515625, 0.53125], [3, 4]),  # a bar is as wide as what a summary tells apart
        ([float("nan"), 3.0], None, [3, 4], [1]),
        ([], None, [0, 1], [0]),
    ],
)
def test_bars(numbers: list[float], counts: list[int] | None, edges: list[float], bars: list[int]) -> None:
    found = build_histogram(numbers, counts)
    assert (found["edges"], found["counts"]) == (edges, bars)
    assert found["rows"] == sum(bars)


@pytest.mark.parametrize("least", [0, 1, 13, 31, 32, 50, 60, 63])
@pytest.mark.parametrize("bins", [2, 5, 9, 48])
def test_shares_end_at_one_and_no_bar_has_more_numbers_than_others(least: int, bins: int) -> None:
    numbers = [number / 64 for number in range(least, 65)]
    found = build_histogram(numbers, [10] * len(numbers), bins)
    edges, counts = found["edges"], found["counts"]
    assert edges == sorted(set(edges))
    assert 0 <= edges[0] <= numbers[0]
    assert edges[-1] == 1
    assert set(counts[1:]) <= {max(counts)}
    assert sum(counts) == found["rows"]
    assert build_histogram(numbers[:-1], [10] * (len(numbers) - 1), bins)["edges"][-1] <= 1


def test_numbers_of_very_different_sizes_get_bars_of_one_ratio() -> None:
    found = build_histogram([2**power for power in range(16)], bins=15)
    assert max(found["counts"]) <= 2
    assert found["edges"][1] / found["edges"][0] == pytest.approx(2)
