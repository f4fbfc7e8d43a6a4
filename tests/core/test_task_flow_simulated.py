"""Flow, driven by a simulated executor: calls overlap, fail, die half-way and share their work, in any order.

Whatever happens, every child is delivered once, gathering stages get everything in order, and every source closes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import Task
from gristmill.core.errors import StageError
from gristmill.core.plan.planner import Group, Plan
from gristmill.core.records.stage_stats import StageStats
from gristmill.core.run.lost_tasks import MAX_LOSSES, Recovery, RetryCheck, WantedOutputs
from gristmill.core.run.task_flow import MOST_MOVES, CallOutput, Flow, WorkerCall, WorkItem
from gristmill.core.stage_roles import GatherRole
from gristmill.core.task import Lineage
from tests.core.task_flow_stages import RETRIES, Ref, Step


class Collect(Step, GatherRole):
    pass


@dataclass(frozen=True)
class Shape:
    """A pipeline to simulate: stages per group, which one of each gathers, and a seed for how tasks multiply."""

    stages: tuple[int, ...]
    gather_position: tuple[int | None, ...]
    sources: tuple[int, ...]
    tasks_are_sources: bool
    seed: int

    def plan(self) -> Plan:
        groups = []
        for index, (count, meets) in enumerate(zip(self.stages, self.gather_position, strict=True)):
            groups.append(Group(index, tuple(Collect() if at == meets else Step() for at in range(count))))
        return Plan("simulated", None, tuple(groups), self.tasks_are_sources)

    def items(self) -> Iterator[list[WorkItem]]:
        for order, count in enumerate(self.sources):
            names = [f"{order}.{index}" if count > 1 else f"{order}" for index in range(count)]
            yield [
                WorkItem(Lineage(name, f"{order}", (f"file-{order}",), order), [Ref(name)], nbytes=10) for name in names
            ]

    def children(self, group: int, position: int, lineage: Lineage) -> list[Lineage]:
        """What one stage makes of one task: none, itself, or some children. The same on every attempt."""
        count = random.Random(f"{self.seed} {group} {position} {lineage.id}").choice([0, 1, 1, 2, 3])
        return [lineage] if count == 1 else [lineage.child(index) for index in range(count)]

    def expected(self) -> tuple[list[str], dict[tuple[int, str], list[str]]]:
        """The ids that leave the pipeline, and what each gathering group gets for each source."""
        tasks = [item.lineage for items in self.items() for item in items]
        gathered: dict[tuple[int, str], list[str]] = {}
        for group, position in ((group, at) for group, count in enumerate(self.stages) for at in range(count)):
            if position == self.gather_position[group]:
                by_source: dict[str, list[Lineage]] = {}
                for task in sorted(tasks, key=Lineage.sort_key):
                    by_source.setdefault(task.source, []).append(task)
                gathered |= {(group, source): [task.id for task in found] for source, found in by_source.items()}
                tasks = [Lineage(source, source, t[0].files, t[0].order) for source, t in by_source.items()]
            tasks = [child for task in tasks for child in self.children(group, position, task)]
            if group == 0 and self.tasks_are_sources:
                tasks = [task.as_source() for task in tasks]
        return sorted(task.id for task in tasks), gathered


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    own = draw(st.booleans())
    count = draw(st.integers(2 if own else 1, 4))
    stages = [1 if own else draw(st.integers(1, 3)), *(draw(st.integers(1, 3)) for _ in range(count - 1))]
    places = [[None, *range(1 if group == 0 else 0, most)] for group, most in enumerate(stages)]
    meets = [draw(st.sampled_from(some)) for some in places]
    sources = [1] if own else draw(st.lists(st.integers(0, 3), max_size=5))
    return Shape(tuple(stages), tuple(meets), tuple(sources), own, draw(st.integers(0, 10**6)))


class Simulation:
    """Several workers at once; each step one of them, chosen at random, does one thing."""

    def __init__(self, shape: Shape, dice: random.Random, failures: float, losses: float = 0.0) -> None:
        self.shape, self.dice, self.failures, self.losses = shape, dice, failures, losses
        self.flow = Flow(shape.plan(), shape.items())
        self.flow.may_be_lost = lambda ref: (
            not any(shape.gather_position)
        )  # what may be lost is gathered by groups of its own
        self.running: list[tuple[WorkerCall, Iterator[CallOutput]]] = []
        self.gathered: dict[tuple[int, str], list[str]] = {}
        self.delivered: list[Lineage] = []

    def run(self) -> None:
        for _ in range(1_000_000):  # where four in ten calls fail and are lost, some shapes take a hundred thousand
            if self.flow.over and not self.running:
                break
            self.flow.list_sources(self.dice.randint(0, 4))
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
        call = self.flow.next_call(group, self.dice.randint(1, 4))
        assert all(item.start == call.start for item in call.items)
        if missing := self.lose(call):
            self.flow.recover(call, missing)
            return
        if self.losses and self.dice.random() < self.losses and all(item.moves < MOST_MOVES for item in call.items):
            self.flow.requeue_moved(call)
            return
        if call.start == self.shape.gather_position[group]:
            for item in call.items:
                self.gathered[group, item.lineage.source] = [ref.name for ref in item.refs]
        self.running.append((call, self.work(call) if not call.is_recovery else self.repeat(call)))

    def lose(self, call: WorkerCall) -> list[tuple[int, int]]:
        """Which parts of which items are not there any more when a worker looks for them."""
        missing = []
        for number, item in enumerate(call.items):
            for part, ref in enumerate(item.refs):
                origin = item.origins[part] if item.origins else None
                if origin and item.losses < MAX_LOSSES and self.dice.random() < self.losses:
                    ref.there = False
                ref.there = ref.there or origin is None
                if not ref.there:
                    missing.append((number, part))
        return missing

    def repeat(self, call: WorkerCall) -> Iterator[CallOutput]:
        """What a worker sends of an item that is run again: what is wanted, and what comes before it all ends."""
        [item] = call.items
        assert item.wanted is not None
        wishes, last = WantedOutputs(item.wanted), self.shape.stages[call.group]

        def walk(lineage: Lineage, position: int) -> Iterator[tuple[Lineage, int]]:
            if position == last:
                yield lineage, last
                return
            children = self.shape.children(call.group, position, lineage)
            for child in children:
                alone = children == [lineage] or position + 1 == last
                if not alone and (child.id, position + 1) in wishes:
                    continue
                if not alone and wishes.is_wanted_here():
                    yield child, position + 1
                else:
                    yield from walk(child, position + 1)

        for lineage, position in walk(item.lineage, call.start):
            if wishes.take(lineage.id, position):
                yield CallOutput(lineage, Ref(lineage.id), nbytes=1, position=position)
        assert not wishes.pending

    def work(self, call: WorkerCall) -> Iterator[CallOutput]:
        """What a worker sends: for a call of one item, nothing that an earlier attempt has sent."""
        ends = (self.shape.stages[call.group], self.shape.gather_position[call.group])
        repeat = RetryCheck(call.items[0].sent_outputs, [Step()], call.items[0].lineage)
        may_share = call.streams and not call.items[0].shared_outputs
        for lineage, position in self.met(call, lambda: may_share and not repeat.lags):
            if position not in ends or not repeat.leaves_out(Task(0).named(lineage)):
                yield CallOutput(lineage, Ref(lineage.id), nbytes=1, position=position)
        repeat.check()

    def met(self, call: WorkerCall, shares: Callable[[], bool]) -> Iterator[tuple[Lineage, int]]:
        """What leaves a worker, which gathers a source if it has all of it and has shared none."""
        meets = self.shape.gather_position[call.group]
        all_of = [item.holds_whole_source for item in call.items]  # as the worker is told when it begins
        for item, alone in zip(call.items, all_of, strict=True):
            here, shared = [], False
            for lineage, position in self.walk(call, item.lineage, call.start, shares):
                if alone and position == meets:
                    here.append(lineage)
                    continue
                shared = True
                yield lineage, position
            if here and not shared:
                self.gathered[call.group, item.lineage.source] = [lineage.id for lineage in here]
                assert meets is not None
                yield from self.walk(call, here[0].gathered(), meets, lambda: False)
            else:
                yield from ((lineage, meets or 0) for lineage in here)

    def walk(
        self, call: WorkerCall, lineage: Lineage, position: int, shares: Callable[[], bool]
    ) -> Iterator[tuple[Lineage, int]]:
        last, meets = self.shape.stages[call.group], self.shape.gather_position[call.group]
        if position == last:
            yield lineage, last
            return
        children = self.shape.children(call.group, position, lineage)
        for child in children:
            if position + 1 == meets:
                yield child, meets
                continue
            alone = children == [lineage] or position + 1 == last
            if not alone and (child.id, position + 1) in call.items[0].shared_outputs:
                continue
            if not alone and shares() and self.dice.random() < 0.3:
                yield child, position + 1
            else:
                yield from self.walk(call, child, position + 1, shares)

    def advance(self, index: int) -> None:
        call, outputs = self.running[index]
        if self.dice.random() < self.failures and all(item.history.attempts < RETRIES for item in call.items):
            del self.running[index]
            self.flow.retry_call(call, StageError("Step", call.items[0].lineage.id, (), "bad luck"))
            return
        output = next(outputs, None)
        if output is not None:
            self.flow.add_output(call, output)
            return
        del self.running[index]
        self.flow.finish_call(
            call, [StageStats(tasks_in=len(call.items)) for _ in range(self.shape.stages[call.group])]
        )
        for item in call.items:
            for ref in item.refs:
                ref.discard()


CHANCES = st.sampled_from([0.0, 0.1, 0.4])


@given(shapes(), st.integers(0, 10**9), CHANCES, CHANCES)
@settings(max_examples=200, deadline=None)
def test_every_child_is_delivered_once_and_every_source_closes(
    shape: Shape, seed: int, failures: float, losses: float
) -> None:
    simulation = Simulation(shape, random.Random(seed), failures, 0.0 if any(shape.gather_position) else losses)
    simulation.run()
    ids, gathered = shape.expected()
    assert sorted(lineage.id for lineage in simulation.delivered) == ids
    assert simulation.gathered == gathered
    flow = simulation.flow
    assert all(not pool.queued_bytes and not pool.queue and not pool.running for pool in flow.pools)
    assert not flow._live
    assert not flow._gathered
    assert flow._recovery == Recovery()


@given(shapes().filter(lambda shape: not shape.tasks_are_sources), st.integers(0, 10**9))
@settings(deadline=None)
def test_sources_are_counted(shape: Shape, seed: int) -> None:
    simulation = Simulation(shape, random.Random(seed), 0.1)
    simulation.run()
    progress = simulation.flow.progress()
    assert progress.sources_seen == progress.sources_done == sum(bool(count) for count in shape.sources)
    assert progress.listing_done
    # With a user's own source as the only stage, its tasks are counted as seen and never as done.


def test_expected_is_not_trivial() -> None:
    shape = Shape((2, 1, 2), (None, 0, None), (2, 1, 3), False, 7)
    ids, gathered = shape.expected()
    assert ids
    assert max(map(len, gathered.values())) > 1
    assert max(Counter(ids).values()) == 1
