"""What a stage raises is its own failure, whatever it raises; an interrupt by the user is not."""

from __future__ import annotations

import os
import signal
from typing import Any

import pyarrow as pa
import pytest

from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage


class Pass(ProcessingStage[DocumentBatch, DocumentBatch]):
    """The first stage of the group, which was blamed."""

    name = "pass"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


class Raise(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Raises on one row, from its answer or from a generator."""

    name = "raise"

    def __init__(self, kind: type[BaseException], lazily: bool = False) -> None:
        self.kind, self.lazily = kind, lazily

    def process(self, task: DocumentBatch) -> Any:
        return self._outputs(task) if self.lazily else next(self._outputs(task))

    def _outputs(self, task: DocumentBatch) -> Any:
        if 3 in task.data.column("id").to_pylist():
            raise self.kind("enough")
        yield task


class Interrupted(Pass):
    """Is interrupted by a signal."""

    def process(self, task: DocumentBatch) -> DocumentBatch:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise
        return task


def batch() -> list[Any]:
    return [DocumentBatch(pa.table({"id": list(range(8))}))]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, SystemExit])
def test_a_stage_that_raises_an_exit_has_failed_on_a_record(
    workers: int, lazily: bool, kind: type[BaseException]
) -> None:
    done = Pipeline("p", stages=[Pass(), Raise(kind, lazily)]).run(LocalExecutor(workers), batch(), max_errors=1)
    assert sum(task.num_rows for task in done) == 7
    [record] = done.quarantined()
    assert (record.stage, record.error) == ("raise", f"{kind.__name__}: enough")


def test_an_interrupt_by_the_user_ends_the_run(request: pytest.FixtureRequest) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with pytest.raises(KeyboardInterrupt):
        Pipeline("p", stages=[Interrupted()]).run(LocalExecutor(0), batch())


class Terminated(Pass):
    """Is ended by a signal whose handler exits."""

    def process(self, task: DocumentBatch) -> DocumentBatch:
        os.kill(os.getpid(), signal.SIGTERM)
        return task


class RaisedAgain(Pass):
    """Cleans up after an interrupt."""

    def process(self, task: DocumentBatch) -> DocumentBatch:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("after cleaning up") from None
        return task


def exit_now(*_: object) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("stage", "number", "handler", "raised"),
    [
        (Terminated(), signal.SIGTERM, exit_now, SystemExit),
        (RaisedAgain(), signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
    ],
)
def test_what_signal_handlers_raise_ends_the_run(
    request: pytest.FixtureRequest, stage: Any, number: signal.Signals, handler: Any, raised: type[BaseException]
) -> None:
    before = signal.signal(number, handler)
    request.addfinalizer(lambda: signal.signal(number, before))
    with pytest.raises(raised):
        Pipeline("p", stages=[stage]).run(LocalExecutor(0), batch())
    assert signal.getsignal(number) is handler
