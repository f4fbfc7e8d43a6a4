"""The driver of a run whose first groups another engine schedules: Ray Data, Xenna.

The engine gets the groups before the first that gathers, and all tasks that enter them. It decides when and where each
is run, and passes rows from group to group. The books stay here: every call of the engine posts a receipt (`desk.py`).

Tasks that went through one call together are a convoy. Nothing of a convoy counts until all of it has arrived: each
task that went in, and each that came out of it, up to the end of the engine's groups. Then it counts as a whole. So it
does not matter what an engine does with the rest. When it has ended, failed, or lost something on the way, or the desk
was killed, whatever has not arrived whole is done again by actors of our own, which also gather and commit.

A segment after an exchange that has no more tasks than there are cores is done by our actors, too: to start the engine
takes longer, and it would have nothing to schedule.

What is given up: all tasks that enter are listed before the engine starts.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gristmill.core.errors import ErrorBudgetError, GristmillError, ResourceError, StageError
from gristmill.core.executor import Job, Ref
from gristmill.core.flow import Call, Output
from gristmill.core.place import joined
from gristmill.core.plan import Group, Plan
from gristmill.core.record import record
from gristmill.core.recover import ancestors
from gristmill.core.stats import StageStats
from gristmill.core.task import Lineage
from gristmill.executors.convoy import Convoy
from gristmill.executors.desk import Desk, Keeper, News, Receipt
from gristmill.executors.freight import load_up
from gristmill.executors.guard import GRACE, LINGER, Duty
from gristmill.executors.lodging import Lodging, see_off_all
from gristmill.executors.machine import Machine
from gristmill.executors.pool import Pool, pickled
from gristmill.executors.ray_actors import RayActorPoolExecutor, RayDriver
from gristmill.executors.ray_board import Past
from gristmill.executors.ray_cluster import cluster
from gristmill.executors.ray_worker import Stored
from gristmill.executors.transport import Parcel

_TAKE_SECONDS = 1.0
_PAUSE = 0.1


@record(frozen=True)
class Score:
    """What an engine is to play: one duty per group, with what each worker needs, and the rows that go in."""

    duties: list[Duty]
    rows: list[bytes]
    needs: list[Any]
    """Resources of each group."""
    num_workers: list[int | None]
    batch_sizes: list[int]
    environments: list[dict[str, Any]]
    cpus: float
    nodes: list[str] | None = None
    """Where workers may run; None: anywhere."""


def chain_of(plan: Plan) -> list[Group]:
    """The groups that an engine gets: those before the first that gathers, without a user's own source."""
    chain = itertools.takewhile(lambda group: not group.gather, plan.way)
    return [group for group in chain if group.index or not plan.own_source]


def rows_per_call(score: Score, group: int = 0) -> int:
    """How many of the tasks that go in make one call: calls enough for all workers, and not one per tiny task."""
    most = max(64, int(16 * score.cpus))
    batch = score.batch_sizes[group]
    each = -(-len(score.rows) // most)
    return -(-each // batch) * batch


class Conductor:
    """Runs an engine in a process of its own. When it is killed, all that the engine has started ends."""

    def play(self, executor: EngineExecutor, score: Score, desk: Any) -> None:
        executor.play(score, desk)


class EngineExecutor(RayActorPoolExecutor, ABC):
    """An executor that hands scheduling to another engine."""

    engine_name = ""
    options = tuple(option for option in RayActorPoolExecutor.options if not option.startswith("reserved_"))
    at_once = True
    """Whether the engine wants a worker of every group at once."""

    def places(self) -> list[str] | None:
        """The nodes that workers may run on; None: all."""
        return [node.id for node in cluster(True)] if self.ignore_head_node else None

    def room(self) -> float:
        """How many cores its workers may have, with those that the autoscaler will be asked for."""
        return max(self.machine().cpus, self.config.get("request_cpus") or 0.0)

    def arrange(self, plan: Plan) -> Plan:
        """The plan, in fewer groups where there are not cores enough for a worker of every group."""
        most = max((node.memory_gb for node in self.nodes()), default=0.0) or math.inf
        return joined(plan, chain_of(plan), self.room(), most) if self.at_once and self.fuse else plan

    def check(self, plan: Plan) -> None:
        super().check(plan)
        wanted = sum(group.resources.gpu_share(self.config.get("gpu_memory_gb")) for group in chain_of(plan))
        there = len(self.machine().gpus)
        if wanted > there + 1e-9 and self.at_once:
            raise ResourceError(
                f"{self.engine_name} wants a worker of every group at once, which takes {wanted:g} GPUs, and the "
                f"cluster has {there}: lower gpus, or use RayActorPoolExecutor, which takes turns"
            )

    @abstractmethod
    def play(self, score: Score, desk: Any) -> None:
        """Run the engine. This happens in an actor, on a copy of the executor."""

    def execute(self, job: Job) -> Iterator[tuple[Lineage, Ref | None]]:
        return EngineDriver(job, self.machine(), self).run()


class EngineDriver(RayDriver):
    """Feeds an engine, keeps the books, and does with actors what the engine does not do."""

    executor: EngineExecutor
    board_class = Desk
    played = False
    """Whether the engine was started."""

    def __init__(self, job: Job, machine: Machine, executor: EngineExecutor) -> None:
        super().__init__(job, machine, executor)
        self.name = executor.engine_name
        chain = [group.index for group in chain_of(job.plan)]
        self.chain = range(chain[0], chain[-1] + 1) if chain else range(0)
        self.state = "listing" if self.chain else "over"
        self.handed: dict[int, Call] = {}
        self.convoys: dict[int, Convoy] = {}
        self.heard = 0
        self.problem: StageError | None = None
        """What went wrong when the engine's workers tore down."""
        self.lodgings: list[Lodging] = []
        self.keepers: list[Any] = []
        self.desk: Any = None
        """The one that the engine knows: another board may have taken its place for others."""
        self.conductor: Any = None
        self.playing: Any = None
        self.taking: Any = None

    # -- giving work to the engine -------------------------------------------------------------------------

    def _enough(self) -> int:
        return 10**9 if self.state == "listing" else super()._enough()

    def may_begin(self, pool: Pool) -> bool:
        """Our own actors do the engine's groups only when it has ended."""
        return super().may_begin(pool) and (self.state == "over" or pool.index not in self.chain)

    def _dispatch(self) -> None:
        if self.state == "listing":
            self._hand_over()
        super()._dispatch()

    def _hand_over(self) -> None:
        first = self.chain.start
        while self.flow.pools[first].queue:
            call = self.flow.take(first, 1)
            number = len(self.handed)
            self.handed[number] = call
            self.convoys[number] = Convoy([number], {(first, number, call.items[0].lineage.id)})
        if self.flow.is_over(first - 1) if first else self.flow.listing_done:
            self._start() if self._is_worth_it else self._leave()

    @property
    def _is_worth_it(self) -> bool:
        """Whether the engine is started, which takes longer than many a segment. After an exchange, tasks that have a
        core each leave it nothing to schedule."""
        few = bool(self.job.plan.number) and len(self.handed) <= self.machine.cpus
        return bool(self.handed) and not few

    def _start(self) -> None:
        items = {number: call.items[0] for number, call in self.handed.items()}
        large = {number: item.refs[0] for number, item in items.items() if not isinstance(item.refs[0], Parcel)}
        rows = [load_up(number, item.lineage, item.refs[0]) for number, item in items.items()]
        self.boards.ask("hold", large)  # another board may have to: the engine must know the one that does
        self.desk = self.board
        self.state = "playing"
        self.played = True
        self.crew.dismiss()
        self._play(rows)

    def _play(self, rows: list[bytes]) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        self.conductor = ray.remote(Conductor).options(num_cpus=0, scheduling_strategy=here).remote()
        self.playing = self.conductor.play.remote(self.executor, self._score(rows), self.desk)
        self.taking = self.desk.hand_out.remote(_TAKE_SECONDS)

    def _score(self, rows: list[bytes]) -> Score:
        plan, quarantine = self.job.plan, self.job.quarantine
        groups = [plan.groups[index] for index in self.chain]
        return Score(
            duties=[
                Duty(
                    group.index,
                    pickled(group, plan.rejecter(group)),
                    last=group.index == self.chain.stop - 1,
                    final=group.index == len(plan.way) - 1,
                    isolates=quarantine.isolates,
                    budget=quarantine.budget,
                    gpu_memory_gb=self.executor.config.get("gpu_memory_gb"),
                )
                for group in groups
            ],
            rows=rows,
            needs=[group.resources for group in groups],
            num_workers=[group.num_workers for group in groups],
            batch_sizes=[group.batch_size for group in groups],
            environments=[self.pools[group.index].env() for group in groups],
            cpus=self.machine.cpus,
            nodes=self.executor.places(),
        )

    # -- listening ---------------------------------------------------------------------------------------

    def ready(self, refs: list[Any], seconds: float) -> list[Any]:
        if self.state != "playing":
            return super().ready(refs, seconds)
        found = super().ready([*refs, self.taking, self.playing], seconds)
        if self.taking in found:
            self._take(_TAKE_SECONDS)
        elif self.playing in found:
            self._played()
        return [ref for ref in found if ref in refs]

    def _take(self, seconds: float) -> bool:
        """Receive what was posted, and ask for more. Whether there was any; without the desk, there is no more."""
        import ray

        news = News()
        try:
            news = ray.get(self.taking)
        except ray.exceptions.ActorUnavailableError:  # which it may be again; if not, that is known next time
            time.sleep(_PAUSE)
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError:
            self._end_engine(GRACE)
            self.problem = None
            self._take_over("Ray has killed the actor that had its receipts")
            return False
        self.taking = self.desk.hand_out.remote(seconds)
        self.lodgings += news.lodgings
        for node in news.want_keepers:
            self.keepers.append(Keeper.on(node))
            self.desk.has_keeper.remote(node, self.keepers[-1])
        for receipt in news.receipts:
            self._receive(receipt)
        return bool(news)

    def _receive(self, receipt: Receipt) -> None:
        self.heard += 1
        if isinstance(receipt.error, ErrorBudgetError):
            raise self.job.quarantine.overspent(receipt.aside, self.flow.rows_read)
        if receipt.error is not None:
            raise receipt.error
        convoys = {id(found): found for number, _ in receipt.items if (found := self.convoys.get(number))}
        if not convoys:  # it has arrived whole before
            return
        joined, *others = sorted(convoys.values(), key=lambda convoy: -len(convoy.roots))
        for other in others:
            joined.join(other)
            self.convoys |= dict.fromkeys(other.roots, joined)
        after = receipt.group + 1
        joined.take(receipt, after if after in self.chain else None)
        if joined.whole:
            self._arrive(joined)

    def _arrive(self, convoy: Convoy) -> None:
        """All of a convoy is there: enter it into the books, group by group."""
        calls = {(self.chain.start, self._id(number)): self.handed.pop(number) for number in convoy.roots}
        inputs = list(calls.values())
        queues = {group: self.flow.pools[group].queue for group in self.chain}
        held = {group: len(queue) for group, queue in queues.items()}  # to be run again, when the engine has ended
        for group, queue in queues.items():
            queue.rotate(-held[group])
            while len(queue) > held[group]:
                call = self.flow.take(group, 1)
                calls[group, call.items[0].lineage.id] = call
            for receipt in (receipt for receipt in convoy.receipts if receipt.group == group):
                self._enter(receipt, [calls[group, name] for _, name in receipt.items])
        for number in convoy.roots:
            del self.convoys[number]
        for call in inputs:
            call.discard()

    def _id(self, number: int) -> str:
        return self.handed[number].items[0].lineage.id

    def _enter(self, receipt: Receipt, calls: Sequence[Call]) -> None:
        by_id = {call.items[0].lineage.id: call for call in calls}
        for lineage, ref, nbytes, position in receipt.outputs:
            parent = next((by_id[name] for name in ancestors(lineage.id) if name in by_id), calls[0])
            # what stays with the engine cannot be had from it: should it be needed once more, it is made again
            self.flow.output(parent, Output(lineage, ref or Stored([], 0, nbytes), nbytes, position))
        self.flow.finish(calls[0], receipt.stats, receipt.aside)
        nothing = [StageStats() for _ in receipt.stats]
        for call in calls[1:]:
            self.flow.finish(call, nothing)

    # -- the end of the engine -----------------------------------------------------------------------------

    def _played(self) -> None:
        """The engine has ended. What it has not done is done by actors."""
        import ray

        error: Exception | None = None
        try:
            ray.get(self.playing)
        except Exception as raised:  # noqa: BLE001  whatever an engine raises
            error = raised
        self._end_engine(LINGER if error is None else GRACE)  # or it might still work on what is done again below
        self.problem = self.problem if error is None else None
        self._take(0)  # asked for before it ended: the answer may be older than the last receipt
        while self.state == "playing" and self._take(0):
            pass
        if self.state != "playing":
            return
        why = f"It said:\n{type(error).__name__}: {error}" if error else "It ended without a word"
        if error and not self.heard:
            raise GristmillError(
                f"{self.name} cannot run this pipeline here. {why}\n\nRayActorPoolExecutor may"
            ) from error
        self._take_over(why)

    def _take_over(self, why: str) -> None:
        """What the engine has not done is done by actors."""
        if self.handed:
            warnings.warn(
                f"{self.name} has not done {len(self.handed):,} of the tasks that it was given; they are done by "
                f"actors of Gristmill. {why}",
                RuntimeWarning,
                stacklevel=2,
            )
        self._leave()

    def _leave(self) -> None:
        """From here on, actors do what is left."""
        self.state = "over"
        for call in self.handed.values():
            self.flow.put_back(call)
        self.handed.clear()
        self.convoys.clear()

    def _stop(self, raises: bool) -> None:
        if self.state == "playing":
            self.state = "over"
        try:
            super()._stop(raises)
        finally:
            self._end_engine(LINGER if raises else GRACE)
        if raises and self.problem is not None:
            raise self.problem

    def _end_engine(self, grace: float) -> None:
        """Kill the engine, and wait until its workers have torn down."""
        import ray

        conductor, self.conductor = self.conductor, None
        if conductor is None or not ray.is_initialized():
            return
        with contextlib.suppress(ray.exceptions.RayError):
            self.lodgings = ray.get(self.desk.close.remote())
        ray.kill(conductor)
        self.problem = see_off_all(self.lodgings, grace)

    @property
    def has_use_for_spares(self) -> bool:
        return super().has_use_for_spares and not self.played  # the engine counts cores, and each has some of one

    @property
    def goes_on(self) -> bool:
        return super().goes_on and not self.played  # a desk serves one engine

    def _past(self) -> Past:
        return replace(super()._past(), closed=self.played)
