"""The driver loop with hundreds of workers in virtual time: GPUs are used, queues are bounded, nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.virtual_cluster import STEPS, Outcome, World, drained, simulate

from gristmill import Resources
from gristmill.core.run.schedule import EDGE_BYTES

WORLD = World(nodes=12, cpus=32, gpus=8, seconds=600, losses=((0.7, 1),), stragglers=0.0, slow_nodes=0.0)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return simulate(WORLD)


def test_gpus_are_used_once_rates_are_known(outcome: Outcome) -> None:
    end = drained(WORLD, outcome)
    assert outcome.utilisation(0.4 * WORLD.seconds, 0.7 * WORLD.seconds) > 0.98
    assert outcome.utilisation(0.85 * WORLD.seconds, end) > 0.98  # also with a node less


def test_nothing_is_lost_with_a_node(outcome: Outcome) -> None:
    assert outcome.lost_calls > 0
    assert outcome.results == WORLD.tasks


def test_what_waits_is_bounded(outcome: Outcome) -> None:
    """Also by what the 384 calls that run at once would give: that is three times the budget."""
    assert max(outcome.most_bytes) < 1.25 * EDGE_BYTES * WORLD.nodes
    assert min(outcome.most_bytes[1:3]) > 0.75 * EDGE_BYTES * WORLD.nodes  # and what may wait, does


def test_the_same_seed_gives_the_same_run() -> None:
    small = replace(WORLD, nodes=1, seconds=100, losses=())
    first, second = simulate(small), simulate(small)
    assert (first.samples, first.decisions) == (second.samples, second.decisions)


def test_gpus_follow_the_work_when_rates_change() -> None:
    """A stage that is fast for the first half and slow for the second: the other one hands its GPUs over."""
    gpu = Resources(cpus=1, gpus=1)
    steps = tuple(replace(step, resources=gpu, seconds=2.0, setup_s=5.0) for step in STEPS[1:3])
    world = replace(WORLD, nodes=3, seconds=300, losses=(), steps=steps, changes_at=0.5, change=(3.0, 1 / 3))
    outcome = simulate(world)
    early, late = ([s for s in outcome.samples if a < s.at < b] for a, b in ((90, 140), (230, 270)))
    ratio = [sum(s.busy[0] for s in part) / sum(s.busy[1] for s in part) for part in (early, late)]
    assert ratio[0] == pytest.approx(1.0, abs=0.2)
    assert ratio[1] == pytest.approx(9.0, rel=0.4)
    assert outcome.utilisation(230, 270) > 0.95
