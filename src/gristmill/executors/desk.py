"""What an engine's actors and the driver say to each other.

A `Station` is the place of work in an engine's actor: it has the guard run the rows that the engine brings, gives the
engine rows for the next group, and posts a receipt to the `Desk`, an actor near the driver. The receipts hold what the
driver keeps books of; payloads stay with the engine until they leave its last group.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

import cloudpickle

from gristmill.core.errors import GristmillError, StageError
from gristmill.core.flow import Output
from gristmill.core.quarantine import SetAside
from gristmill.core.record import record
from gristmill.core.rejects import REJECTED
from gristmill.core.stage import implements
from gristmill.core.stats import StageStats
from gristmill.core.task import Lineage, Task
from gristmill.executors.freight import load_up, unload
from gristmill.executors.guard import Duty, Guard
from gristmill.executors.lodging import Lodging, lives
from gristmill.executors.process import as_stage_error
from gristmill.executors.ray_board import Board, Past, mark_on
from gristmill.executors.ray_voice import Voice
from gristmill.executors.ray_worker import Stored
from gristmill.executors.transport import Parcel

_NODE_SECONDS = 1.0
"""How often those that wait until their node is set up look whether the one who does it lives."""

_KEEPER_SECONDS = 30.0
_WAITING = 256
_KEEP_BYTES = 8 * 2**20
_PAUSE = 0.05
_OVER = "the run is over"


@record(slots=True)
class Receipt:
    """What one call of an engine did: which tasks of which convoys went in, what came out, or why it must stop."""

    group: int
    items: list[tuple[int, str]] = field(default_factory=list)
    outputs: list[tuple[Lineage, Any, int, int]] = field(default_factory=list)
    stats: list[StageStats] = field(default_factory=list)
    aside: list[SetAside] = field(default_factory=list)
    error: StageError | None = None


@record(slots=True)
class News:
    """What the driver has not heard yet: receipts, where guards have moved in, nodes that nobody keeps results on."""

    receipts: list[Receipt] = field(default_factory=list)
    lodgings: list[Lodging] = field(default_factory=list)
    want_keepers: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.receipts or self.lodgings or self.want_keepers)


class Desk(Board):
    """Where receipts are posted, and taken by the driver. It is also the board of our own actors."""

    def __init__(self, past: Past | None = None) -> None:
        super().__init__(past)
        self.inputs: dict[int, Any] = {}
        self.news, self.lodgings = News(), list[Lodging]()
        self.nodes: dict[tuple[int, str], tuple[int, asyncio.Event]] = {}
        self.keepers: dict[str, asyncio.Future[Any]] = {}
        self.closed = past is not None and past.closed
        self.posted = asyncio.Event()

    async def post(self, receipt: Receipt) -> bool:
        """False: the run is over. Who posts waits when nobody takes, because somebody is slow to look at results."""
        while len(self.news.receipts) > _WAITING and not self.closed:
            await asyncio.sleep(0.05)
        self.news.receipts.append(receipt)
        self.posted.set()
        if receipt.error is not None:  # which ends the run: nobody need begin anything any more
            await self.close()
        return not self.closed

    async def hand_out(self, seconds: float) -> News:
        """What is new, as soon as there is something."""
        if not self.news and seconds:
            self.posted.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.posted.wait(), seconds)
        news, self.news = self.news, News()
        return news

    async def hold(self, inputs: dict[int, Any]) -> None:
        """Large tasks that enter the engine."""
        self.inputs = inputs

    async def fetch(self, number: int) -> Any:
        return self.inputs[number]

    async def open(self, lodging: Lodging) -> bool:
        """A guard moves in. False: the run is over."""
        if not self.closed:
            self.lodgings.append(lodging)
            self.news.lodgings.append(lodging)
        return not self.closed

    async def close(self) -> list[Lodging]:
        """The run is over. Where guards lived."""
        self.closed = True
        for _, waiting in self.nodes.values():
            waiting.set()
        return self.lodgings

    async def first_on_node(self, group: int, node: str, who: int, gone: int = 0) -> tuple[int, bool] | None:
        """Which guard has to set up the node, by its process, and whether it has; None: the run is over.

        `who` asks, and does not wait for itself. It may have found that the one that had to is `gone`.
        """
        first, done = self.nodes.get((group, node), (gone, asyncio.Event()))
        if first == gone and not done.is_set():
            first, done = self.nodes[group, node] = who, asyncio.Event()
        if first != who:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), _NODE_SECONDS)
        return None if self.closed else (first, done.is_set())

    async def node_is_set_up(self, group: int, node: str) -> None:
        self.nodes[group, node][1].set()

    async def keeper(self, node: str) -> Any:
        """Who keeps large results on a node: they must outlive the engine's actors, and the desk."""
        asks = node not in self.keepers
        keeper = self.keepers.setdefault(node, asyncio.get_running_loop().create_future())
        while not keeper.done():
            if asks and node not in self.news.want_keepers:
                self.news.want_keepers.append(node)
                self.posted.set()
            await asyncio.wait([keeper], timeout=_KEEPER_SECONDS)
            asks = True  # what was handed out has not arrived
        return keeper.result()

    async def has_keeper(self, node: str, keeper: Any) -> None:
        if not self.keepers[node].done():
            self.keepers[node].set_result(keeper)


class Keeper:
    """Owns results. It is the driver's, and lives as long as somebody has one of them."""

    @classmethod
    def on(cls, node: str) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(node, soft=True)
        return ray.remote(cls).options(num_cpus=0, scheduling_strategy=place).remote()

    def keep(self, tasks: list[Task[Any]]) -> list[Any]:
        import ray

        return [ray.put(tasks)]


class Station:
    """The place of work in one actor of an engine."""

    def __init__(self, duty: Duty, desk: Any) -> None:
        import ray

        self.duty, self.desk = duty, desk
        self.node: str = ray.get_runtime_context().get_node_id()
        self.guard: Guard | None = None
        self.keeper: Any = None
        self.over = False
        self.voice = Voice()

    def work(self, rows: Iterable[Any]) -> Iterator[bytes]:
        """Pass rows through the group, and give the rows for the next one.

        Should the guard itself break down, or the desk, nothing is posted, and the driver sees to it that others do the
        work.
        """
        import ray

        rows = list(rows)
        if self.over or not rows:
            return
        receipt = Receipt(self.duty.group)
        try:
            self._open()
            yield from self._run(rows, receipt)
        except StageError as error:
            receipt.error, self.over = error, True
        except (GristmillError, OSError, ray.exceptions.RayError):
            self._end()
            return
        if self.guard is not None:
            receipt.aside = self.guard.take_aside()
            self._post(receipt)
        if self.over:
            self._end()

    def _open(self) -> None:
        """Start the guard, at the first call."""
        if self.guard is not None:
            return
        try:
            stages, _ = cloudpickle.loads(self.duty.payload)
        except Exception as error:
            raise as_stage_error(error) from error
        self.guard = Guard(self.duty, self.node, _gpus(stages))
        lodging = Lodging(self.node, self.guard.zygote.pid, tuple(self.guard.folders))
        if not self._ask("open", lodging):
            raise GristmillError(_OVER)
        on_node = any(implements(stage, "setup_on_node") for stage in stages) and self._is_first(lodging.pid)
        self.guard.begin(on_node)
        if on_node:
            self._ask("node_is_set_up", self.duty.group, self.node)

    def _is_first(self, pid: int) -> bool:
        """Whether this guard has to set up the node. Another one is waited for, as long as anything of it lives."""
        gone = 0
        while (found := self._ask("first_on_node", self.duty.group, self.node, pid, gone)) is not None:
            first, done = found
            if done or first == pid:
                return not done
            gone = 0 if lives(first) else first
        raise GristmillError(_OVER)

    def _end(self) -> None:
        self.over = True
        guard, self.guard = self.guard, None
        if guard is not None:
            guard.end()

    def _run(self, rows: Iterable[Any], receipt: Receipt) -> Iterator[bytes]:
        assert self.guard is not None
        items = [unload(row, self.guard.folders, self._fetch) for row in rows]
        receipt.items = [(convoy, item.lineage.id) for convoy, item in items]
        for outputs in self.guard.pass_through([item for _, item in items]):
            yield from self._hand_on(items[0][0], outputs, receipt)
        receipt.stats = self.guard.stats

    def _hand_on(self, convoy: int, outputs: list[Output], receipt: Receipt) -> Iterator[bytes]:
        """Rows for the next group; what leaves the engine goes with the receipt."""
        leaving = [output for output in outputs if self.duty.last or output.position == REJECTED]
        for output, ref in zip(leaving, self._kept([output.ref for output in leaving]), strict=True):
            receipt.outputs.append((output.lineage, ref, output.nbytes, output.position))
        for output in outputs:
            if not (self.duty.last or output.position == REJECTED):
                receipt.outputs.append((output.lineage, None, output.nbytes, output.position))
                yield load_up(convoy, output.lineage, output.ref)
            output.ref.discard()

    def _kept(self, parcels: list[Parcel]) -> list[Any]:
        """References that outlive this actor."""
        import ray

        large = [parcel for parcel in parcels if parcel.path is not None]
        if not large:
            return parcels
        if self.keeper is None:
            self.keeper = self._ask("keeper", self.node)
        kept: dict[int, Stored] = {}
        while large:
            part, size = [], 0
            while large and size < _KEEP_BYTES:
                part.append(large.pop())
                size += part[-1].nbytes
            refs = ray.get(self.keeper.keep.remote([parcel.load() for parcel in part]))
            # the handle is kept with what is owned: a keeper ends when nobody has any of it any more
            kept |= {
                id(parcel): Stored([*refs, self.keeper], index, parcel.nbytes, self.node)
                for index, parcel in enumerate(part)
            }
        return [kept.get(id(parcel), parcel) for parcel in parcels]

    def _fetch(self, number: int) -> Any:
        return self._ask("fetch", number)

    def _post(self, receipt: Receipt) -> None:
        import ray

        try:
            mark_on(self.desk, self.voice)
            self.over = not self._ask("post", receipt) or self.over
        except ray.exceptions.RayError:
            self.over = True

    def _ask(self, method: str, *args: Any) -> Any:
        """What the desk answers."""
        import ray

        while True:
            try:
                return ray.get(getattr(self.desk, method).remote(*args))
            except ray.exceptions.ActorUnavailableError:  # which it may be again; if not, that is known next time
                time.sleep(_PAUSE)


def _gpus(stages: list[Any]) -> int:
    """How many GPUs the engine has given to this actor."""
    if not any(stage.resources.requires_gpu for stage in stages):
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return len([device for device in visible.split(",") if device.strip()])
