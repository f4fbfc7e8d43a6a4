"""Flow, driven by a simulated executor: calls overlap, fail, die half-way and share their work, in any order.

Whatever happens, every child is delivered once, gathering stages get everything in order, and every source closes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import ProcessingStage, Task
from gristmill.core.errors import LostTaskError, StageError, WorkerLostError
from gristmill.core.flow import MOST_MOVES, Call, Flow, Item, Output
from gristmill.core.plan import Group, Plan
from gristmill.core.recover import MOST_LOSSES, Recovery, Wishes
from gristmill.core.repeat import Repeat
from gristmill.core.stats import StageStats
from gristmill.core.task import Lineage

RETRIES = 3


class Step(ProcessingStage[Task[Any], Task[Any]]):
    max_retries = RETRIES

    def process(self, task: Task[Any]) -> Task[Any]:
        return task


class Collect(Step):
    gather = True


@dataclass
class Ref:
    """A payload that may be lost. What enters the pipeline is not."""

    name: str
    there: bool = True

    def discard(self) -> None:
        self.there = False


@dataclass(frozen=True)
class Shape:
    """A pipeline to simulate: stages per group, which groups gather, and a seed for how tasks multiply."""

    stages: tuple[int, ...]
    gathers: tuple[bool, ...]
    sources: tuple[int, ...]
    own_source: bool
    seed: int

    def plan(self) -> Plan:
        groups = []
        for index, (count, gathers) in enumerate(zip(self.stages, self.gathers, strict=True)):
            first = Collect() if gathers else Step()
            groups.append(Group(index, (first, *(Step() for _ in range(count - 1)))))
        return Plan("simulated", None, tuple(groups), self.own_source)

    def items(self) -> Iterator[list[Item]]:
        for order, count in enumerate(self.sources):
            names = [f"{order}.{index}" if count > 1 else f"{order}" for index in range(count)]
            yield [Item(Lineage(name, f"{order}", (f"file-{order}",), order), [Ref(name)], nbytes=10) for name in names]

    def children(self, group: int, position: int, lineage: Lineage) -> list[Lineage]:
        """What one stage makes of one task: none, itself, or some children. The same on every attempt."""
        count = random.Random(f"{self.seed} {group} {position} {lineage.id}").choice([0, 1, 1, 2, 3])
        return [lineage] if count == 1 else [lineage.child(index) for index in range(count)]

    def through(self, group: int, start: int, lineage: Lineage) -> list[Lineage]:
        """What a whole group makes of one task."""
        tasks = [lineage]
        for position in range(start, self.stages[group]):
            tasks = [child for task in tasks for child in self.children(group, position, task)]
        return tasks

    def expected(self) -> tuple[list[str], dict[tuple[int, str], list[str]]]:
        """The ids that leave the pipeline, and what each gathering group gets for each source."""
        tasks = [item.lineage for items in self.items() for item in items]
        gathered: dict[tuple[int, str], list[str]] = {}
        for group in range(len(self.stages)):
            if self.gathers[group]:
                by_source: dict[str, list[Lineage]] = {}
                for task in sorted(tasks, key=Lineage.sort_key):
                    by_source.setdefault(task.source, []).append(task)
                gathered |= {(group, source): [task.id for task in found] for source, found in by_source.items()}
                tasks = [Lineage(source, source, t[0].files, t[0].order) for source, t in by_source.items()]
            tasks = [child for task in tasks for child in self.through(group, 0, task)]
            if group == 0 and self.own_source:
                tasks = [task.as_source() for task in tasks]
        return sorted(task.id for task in tasks), gathered


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    own = draw(st.booleans())
    count = draw(st.integers(2 if own else 1, 4))
    gathers = [False, *(draw(st.booleans()) for _ in range(count - 1))]
    stages = [1 if own else draw(st.integers(1, 3)), *(draw(st.integers(1, 3)) for _ in range(count - 1))]
    sources = [1] if own else draw(st.lists(st.integers(0, 3), max_size=5))
    return Shape(tuple(stages), tuple(gathers), tuple(sources), own, draw(st.integers(0, 10**6)))


class Simulation:
    """Several workers at once; each step one of them, chosen at random, does one thing."""

    def __init__(self, shape: Shape, dice: random.Random, failures: float, losses: float = 0.0) -> None:
        self.shape, self.dice, self.failures, self.losses = shape, dice, failures, losses
        self.flow = Flow(shape.plan(), shape.items())
        self.flow.fragile = lambda ref: True
        self.running: list[tuple[Call, Iterator[Output]]] = []
        self.gathered: dict[tuple[int, str], list[str]] = {}
        self.delivered: list[Lineage] = []

    def run(self) -> None:
        for _ in range(100_000):
            if self.flow.over and not self.running:
                break
            self.flow.feed(self.dice.randint(0, 4))
            waiting = [index for index, pool in enumerate(self.flow.pools) if pool.queue]
            if waiting and (not self.running or (len(self.running) < 4 and self.dice.random() < 0.5)):
                self.start(self.dice.choice(waiting))
            elif self.running:
                self.advance(self.dice.randrange(len(self.running)))
            while self.flow.results:
                lineage, ref = self.flow.results.popleft()
                if ref is not None:
                    self.delivered.append(lineage)
            assert all(pool.queued_bytes >= 0 for pool in self.flow.pools)
        assert self.flow.over

    def start(self, group: int) -> None:
        call = self.flow.take(group, self.dice.randint(1, 4))
        assert all(item.start == call.start for item in call.items)
        if missing := self.lose(call):
            self.flow.recover(call, missing)
            return
        if self.losses and self.dice.random() < self.losses and all(item.moves < MOST_MOVES for item in call.items):
            self.flow.move(call)
            return
        if self.shape.gathers[group] and call.start == 0:
            for item in call.items:
                self.gathered[group, item.lineage.source] = [ref.name for ref in item.refs]
        self.running.append((call, self.work(call) if not call.repeats else self.repeat(call)))

    def lose(self, call: Call) -> list[tuple[int, int]]:
        """Which parts of which items are not there any more when a worker looks for them."""
        missing = []
        for number, item in enumerate(call.items):
            for part, ref in enumerate(item.refs):
                origin = item.origins[part] if item.origins else None
                if origin and item.losses < MOST_LOSSES and self.dice.random() < self.losses:
                    ref.there = False
                ref.there = ref.there or origin is None
                if not ref.there:
                    missing.append((number, part))
        return missing

    def repeat(self, call: Call) -> Iterator[Output]:
        """What a worker sends of an item that is run again: what is wanted, and what comes before it all ends."""
        [item] = call.items
        assert item.wanted is not None
        wishes, last = Wishes(item.wanted), self.shape.stages[call.group]

        def walk(lineage: Lineage, position: int) -> Iterator[tuple[Lineage, int]]:
            if position == last:
                yield lineage, last
                return
            children = self.shape.children(call.group, position, lineage)
            for child in children:
                alone = children == [lineage] or position + 1 == last
                if not alone and (child.id, position + 1) in wishes:
                    continue
                if not alone and wishes.shares():
                    yield child, position + 1
                else:
                    yield from walk(child, position + 1)

        for lineage, position in walk(item.lineage, call.start):
            if wishes.take(lineage.id, position):
                yield Output(lineage, Ref(lineage.id), nbytes=1, position=position)
        assert not wishes.open

    def work(self, call: Call) -> Iterator[Output]:
        """What a worker sends: for a call of one item, nothing that an earlier attempt has sent."""
        last = self.shape.stages[call.group]
        repeat = Repeat(call.items[0].sent, [Step()], call.items[0].lineage)
        may_share = call.streams and not call.items[0].shed
        for item in call.items:
            walk = self.walk(call, item.lineage, call.start, lambda: may_share and not repeat.lags)
            for lineage, position in walk:
                if position != last or not repeat.leaves_out(Task(0).named(lineage)):
                    yield Output(lineage, Ref(lineage.id), nbytes=1, position=position)
        repeat.check()

    def walk(
        self, call: Call, lineage: Lineage, position: int, shares: Callable[[], bool]
    ) -> Iterator[tuple[Lineage, int]]:
        last = self.shape.stages[call.group]
        if position == last:
            yield lineage, last
            return
        children = self.shape.children(call.group, position, lineage)
        for child in children:
            alone = children == [lineage] or position + 1 == last
            if not alone and (child.id, position + 1) in call.items[0].shed:
                continue
            if not alone and shares() and self.dice.random() < 0.3:
                yield child, position + 1
            else:
                yield from self.walk(call, child, position + 1, shares)

    def advance(self, index: int) -> None:
        call, outputs = self.running[index]
        if self.dice.random() < self.failures and all(item.history.attempts < RETRIES for item in call.items):
            del self.running[index]
            self.flow.fail(call, StageError("Step", call.items[0].lineage.id, (), "bad luck"))
            return
        output = next(outputs, None)
        if output is not None:
            self.flow.output(call, output)
            return
        del self.running[index]
        self.flow.finish(call, [StageStats(tasks_in=len(call.items)) for _ in range(self.shape.stages[call.group])])
        for item in call.items:
            for ref in item.refs:
                ref.discard()


CHANCES = st.sampled_from([0.0, 0.1, 0.4])


@given(shapes(), st.integers(0, 10**9), CHANCES, CHANCES)
@settings(max_examples=200, deadline=None)
def test_every_child_is_delivered_once_and_every_source_closes(
    shape: Shape, seed: int, failures: float, losses: float
) -> None:
    simulation = Simulation(shape, random.Random(seed), failures, losses)
    simulation.run()
    ids, gathered = shape.expected()
    assert sorted(lineage.id for lineage in simulation.delivered) == ids
    assert simulation.gathered == gathered
    flow = simulation.flow
    assert all(not pool.queued_bytes and not pool.queue and not pool.running for pool in flow.pools)
    assert not flow._live
    assert not flow._gathered
    assert flow._recovery == Recovery()


@given(shapes().filter(lambda shape: not shape.own_source), st.integers(0, 10**9))
@settings(deadline=None)
def test_sources_are_counted(shape: Shape, seed: int) -> None:
    simulation = Simulation(shape, random.Random(seed), 0.1)
    simulation.run()
    progress = simulation.flow.progress()
    assert progress.sources_seen == progress.sources_done == sum(bool(count) for count in shape.sources)
    assert progress.listing_done
    # With a user's own source as the only stage, its tasks are counted as seen and never as done.


def flow_of(*items: Item, stages: int = 1, batch_size: int = 1) -> Flow:
    group = Group(0, tuple(Step().with_(batch_size=batch_size) for _ in range(stages)))
    flow = Flow(Plan("p", None, (group,)), iter([list(items)]))
    flow.feed(100)
    return flow


def item(name: str, nbytes: int = 1, start: int = 0) -> Item:
    return Item(Lineage(name, name, (f"{name}.jsonl",)), [name], nbytes, start)


def names(call: Call) -> list[str]:
    return [entry.lineage.id for entry in call.items]


def test_after_a_failure_each_item_goes_alone() -> None:
    flow = flow_of(item("a"), item("b"), item("c"))
    call = flow.take(0, 3)
    assert names(call) == ["a", "b", "c"]
    flow.fail(call, StageError("Step", "a", (), "?"))
    assert [names(flow.take(0, 3)) for _ in range(3)] == [["a"], ["b"], ["c"]]


def test_a_call_that_nobody_has_run_waits_again_before_all_others_and_is_not_to_blame() -> None:
    flow = flow_of(*(item(name, nbytes=10) for name in "abcd"))
    running, waiting = flow.take(0, 1), flow.take(0, 2, waits=True)
    assert flow.pools[0].waiting_bytes == 20
    flow.put_back(waiting)
    assert flow.pools[0].waiting_bytes == 0
    flow.fail(running, StageError("Step", "a", (), "?"))
    again = [flow.take(0, 4), flow.take(0, 4)]
    assert [names(call) for call in again] == [["a"], ["b", "c", "d"]]
    assert [call.alone for call in again] == [True, False]
    assert flow.pools[0].running == 2


def test_the_error_is_raised_when_the_retries_are_used_up() -> None:
    flow = flow_of(item("a"))
    error = StageError("Step", "a", ("a.jsonl",), "bad byte")
    for _ in range(RETRIES):
        flow.fail(flow.take(0, 1), error)
    with pytest.raises(StageError, match=r"stage 'Step' failed on task a from a\.jsonl: bad byte"):
        flow.fail(flow.take(0, 1), error)


def test_the_stage_at_fault_says_how_often() -> None:
    group = Group(0, (Step(), Step().with_(max_retries=0)))
    flow = Flow(Plan("p", None, (group,)), iter([[item("a")]]))
    flow.feed(1)
    with pytest.raises(StageError):
        flow.fail(flow.take(0, 1), StageError("second", "a", (), "?", position=1))


def test_what_a_failed_call_of_several_gave_does_not_count() -> None:
    flow = flow_of(item("a"), item("b"))
    call = flow.take(0, 2)
    flow.output(call, Output(call.items[0].lineage, "ref", 1, 1))
    flow.fail(call, StageError("Step", "a", (), "?"))
    assert not flow.results


def two_groups(*items: Item) -> tuple[Flow, Call]:
    """A flow of which the first group has turned an item into two, and a call with both of them."""
    plan = Plan("p", None, (Group(0, (Step(),)), Group(1, (Step(),))))
    flow = Flow(plan, iter([list(items)]))
    flow.fragile = lambda ref: True
    flow.feed(10)
    finish(flow, flow.take(0, 1), "a.0", "a.1")
    return flow, flow.take(1, 2)


def finish(flow: Flow, call: Call, *outputs: str) -> None:
    for name in outputs:
        flow.output(call, Output(Lineage(name, "a"), Ref(name), 1, 1))
    flow.finish(call, [StageStats(tasks_in=1)])


def test_what_is_lost_is_made_again_once_for_all_who_wait_for_it() -> None:
    flow, call = two_groups(item("a"))
    assert names(call) == ["a.0", "a.1"]
    flow.recover(call, [(1, 0), (0, 0)])
    assert not flow.pools[1].queue
    again = flow.take(0, 10)
    assert again.items[0].wanted == {("a.0", 1), ("a.1", 1)}
    assert not flow.pools[0].queue
    finish(flow, again, "a.0", "a.1")
    assert sorted(names(flow.take(1, 2))) == ["a.0", "a.1"]
    assert flow.stats[0][0].tasks_in == 1  # and not 2
    assert flow.progress().sources_done == 0


def test_a_stage_that_gives_something_else_the_second_time_is_named() -> None:
    flow, call = two_groups(item("a"))
    flow.recover(call, [(0, 0)])
    with pytest.raises(StageError, match=r"'Step' failed on task a from a\.jsonl: .* depend on chance"):
        finish(flow, flow.take(0, 1), "a.1")


def test_what_is_lost_again_and_again_ends_the_run() -> None:
    flow, call = two_groups(item("a"))
    for _ in range(MOST_LOSSES):
        flow.recover(call, [(0, 0)])
        finish(flow, flow.take(0, 1), "a.0")
        call = flow.take(1, 1)
    with pytest.raises(LostTaskError, match=r"task a\.0 was lost with its node and made again 5 times"):
        flow.recover(call, [(0, 0)])
    flow = flow_of(item("b"))
    with pytest.raises(LostTaskError, match=r"task b from b\.jsonl .* nothing to make it from"):
        flow.recover(flow.take(0, 1), [(0, 0)])


def test_a_node_that_disappears_is_not_the_fault_of_what_was_on_it() -> None:
    flow = flow_of(item("a"), item("b"))
    for _ in range(MOST_MOVES):
        call = flow.take(0, 2)
        assert names(call) == ["a", "b"]
        flow.move(call)
    assert call.items[0].history.attempts == 0
    with pytest.raises(WorkerLostError, match="11 nodes disappeared"):
        flow.move(flow.take(0, 2))


def test_calls_are_bounded_by_bytes_and_start_at_one_stage() -> None:
    large = 20 * 2**20
    flow = flow_of(item("a", large), item("b", large), item("c", large), stages=2)
    assert names(flow.take(0, 10)) == ["a"]
    flow = flow_of(item("a", large), item("b", large), item("c", large), batch_size=2)
    assert names(flow.take(0, 10)) == ["a", "b"]  # a batch is never cut for its size
    flow = flow_of(item("a"), item("b", start=1), item("c", start=1), stages=2)
    assert [names(flow.take(0, 10)) for _ in range(2)] == [["a"], ["b", "c"]]


def test_a_batch_waits_until_it_is_full_or_nothing_more_comes() -> None:
    group = Group(0, (Step().with_(batch_size=4),))
    flow = Flow(Plan("p", None, (group,)), iter([[item("a"), item("b")], [item("c")]]))
    flow.feed(1)
    assert flow.ready(0) == 0
    flow.feed(100)
    assert flow.listing_done
    assert flow.ready(0) == 3


def test_progress_adds_up() -> None:
    flow = flow_of(item("a"), item("b"))
    first, second = flow.take(0, 1), flow.take(0, 1)
    flow.finish(first, [StageStats(tasks_in=1, rows_in=5, counts={"bad": 1})])
    second.so_far = [StageStats(tasks_in=1, rows_in=2, counts={"bad": 2})]
    [(name, stats)] = flow.progress(calls=[second]).stages
    assert (name, stats.rows_in, stats.counts) == ("Step", 7, {"bad": 3})
    [(_, settled)] = flow.progress().stages
    assert (settled.rows_in, settled.counts) == (5, {"bad": 1})  # looking changes nothing


def test_expected_is_not_trivial() -> None:
    shape = Shape((2, 1, 2), (False, True, False), (2, 1, 3), False, 7)
    ids, gathered = shape.expected()
    assert ids
    assert max(map(len, gathered.values())) > 1
    assert max(Counter(ids).values()) == 1
