from __future__ import annotations

from typing import Any

import pytest

from gristmill import Resources

WRONG: list[dict[str, Any]] = [
    {"gpus": 1, "gpu_memory_gb": 10},
    {"cpus": -1},
    {"gpus": -0.25},
    {"gpu_memory_gb": -10},
    {"memory_gb": -1},
    {"gpus": float("nan")},
    {"memory_gb": float("inf")},
    {"cpus": "2"},
    {"cpus": True},
]


@pytest.mark.parametrize("wishes", WRONG, ids=str)
def test_what_cannot_be_wished_for(wishes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wishes))):
        Resources(**wishes)


def test_both_ways_to_ask_for_a_gpu_name_the_way_out() -> None:
    with pytest.raises(ValueError, match="give one of the two, a share of a GPU or an amount of its memory"):
        Resources(gpus=1, gpu_memory_gb=10)


# wishes, memory of the GPU, share of it
SHARES: list[tuple[Resources, float | None, float]] = [
    (Resources(), 80.0, 0.0),
    (Resources(gpus=0.25), 80.0, 0.25),
    (Resources(gpus=0.25), None, 0.25),
    (Resources(gpus=2), 24.0, 2.0),
    (Resources(gpu_memory_gb=10), 40.0, 0.25),
    (Resources(gpu_memory_gb=10), 10.0, 1.0),
    (Resources(gpu_memory_gb=10), None, 1.0),  # memory unknown: the whole device
]


@pytest.mark.parametrize(("wish", "memory", "share"), SHARES)
def test_memory_becomes_a_share_where_the_worker_is_placed(wish: Resources, memory: float | None, share: float) -> None:
    assert wish.gpu_share(memory) == share


def test_nothing_is_measured_when_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    wish = Resources(gpu_memory_gb=10)
    assert (wish.gpus, wish.gpu_memory_gb) == (0.0, 10)
    assert wish.requires_gpu
    assert not Resources(cpus=4, memory_gb=2).requires_gpu


def test_it_is_a_value() -> None:
    assert Resources(gpus=0.5) == Resources(gpus=0.5)
    assert len({Resources(), Resources(cpus=1.0)}) == 1
    with pytest.raises(AttributeError):
        Resources().cpus = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        (Resources(), "cpus=1"),
        (Resources(gpus=0.25), "cpus=1 gpus=0.25"),
        (Resources(cpus=0), "nothing"),
        (Resources(cpus=10, memory_gb=0.5), "cpus=10 memory_gb=0.5"),
    ],
)
def test_it_prints_what_is_wished_for(wish: Resources, text: str) -> None:
    assert str(wish) == text
