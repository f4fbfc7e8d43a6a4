"""Stages that look at frames, and share one decoding pass with their neighbours.

`FrameStage` is the base of those that are no filters. It names its analysers, and writes `process_measured(rows,
measured)`: rows that could be decoded, each with what the analysers found of it. The first such stage of a worker
decodes each film once, for its own analysers and for those that later stages of the worker ask for
(`LooksAtFrames.analysers`); what those find stays with the rows. Rows that cannot be decoded go to quarantine.

A stage that makes clips of films (`clips.py`) hands on what was measured: filters of clips decode nothing again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from gristmill.core.arrow.table_conversion import POSITION, table_to_rows
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.errors import BadRecordError
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.core.stage_roles import LookAheadRole
from gristmill.video.batch import CLIP_ID, END, SOURCE, START, VIDEO, VIDEO_ID, BadVideo, VideoBatch
from gristmill.video.frame_analyser import FrameAnalyser
from gristmill.video.one_pass import Measured, films_of, measured_rows, spans_of

_KEPT_FRAME_BYTES = 4096
"""What takes more memory for each frame is freed when the last stage that asked for it has had it."""


class LooksAtFrames(LookAheadRole):
    """A stage with analysers of frames."""

    _ahead: tuple[FrameAnalyser, ...] = ()

    piece_seconds: ClassVar[float | None] = None
    """The stage is given rows of about so many seconds at once, for stages whose analysers keep frames; None: all rows
    of a batch."""

    @abstractmethod
    def analysers(self) -> Sequence[FrameAnalyser]:
        """What the stage wants to have measured. Called often: models and the like are not loaded here."""

    def see_later_stages(self, stages: Sequence[ProcessingStage[Any, Any]]) -> None:
        later = [analyser for stage in stages if isinstance(stage, LooksAtFrames) for analyser in stage.analysers()]
        self._ahead = tuple(later)

    def measured(self, batch: VideoBatch) -> list[Measured | BadVideo]:
        """What the analysers have found of each row, or why it cannot be decoded."""
        stage = self if isinstance(self, ProcessingStage) else None
        return measured_rows(batch, self.analysers(), self._ahead, stage)

    def forget_frames(self, batch: VideoBatch, last: bool = True) -> None:
        """Free what was found for this stage alone, if it is large: all of it if this is the `last` piece of a batch,
        else what was decoded for it."""
        later = {analyser.key() for analyser in self._ahead}
        large = [one for one in self.analysers() if one.key() not in later]
        spans = None if last else spans_of(batch)
        for film in {id(film): film for film in films_of(batch)}.values():
            for analyser in large:
                if film.info is not None and analyser.bytes_per_frame(film.info) > _KEPT_FRAME_BYTES:
                    film.forget(analyser, spans)

    def pieces(self, batch: VideoBatch) -> Iterator[VideoBatch]:
        """The rows of a batch, about `piece_seconds` at a time."""
        start = 0
        for end in self._ends(batch):
            yield batch if end - start == batch.num_items else batch.slice(start, end - start)
            start = end

    def _ends(self, batch: VideoBatch) -> Iterator[int]:
        """Where the pieces of a batch end."""
        names = batch.get_columns()
        if self.piece_seconds is not None and START in names and END in names:
            seconds = 0.0
            ends, starts = batch.data.column(END).to_pylist(), batch.data.column(START).to_pylist()
            films_of(batch)  # pieces share them
            for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
                seconds += (end or 0.0) - (start or 0.0)
                if seconds >= self.piece_seconds and row + 1 < batch.num_items:
                    yield row + 1
                    seconds = 0.0
        yield batch.num_items


class FrameStage(ProcessingStage[VideoBatch, VideoBatch], LooksAtFrames):
    """Base of the stages that look at frames. Write `analysers` and `process_measured`."""

    takes_empty = True
    max_retries = 0
    """What cannot be decoded once cannot be decoded."""

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    @abstractmethod
    def process_measured(self, rows: VideoBatch, measured: Sequence[Measured]) -> VideoBatch:
        """The rows, each with what was measured of it. Gives rows with more columns, or other rows."""

    def process(self, task: VideoBatch) -> Iterator[VideoBatch]:
        done = 0
        for piece in self.pieces(task):
            done += piece.num_items
            rows, measured = good_rows(piece, self.measured(piece), self)
            yield self.process_measured(rows, measured)
            self.forget_frames(piece, last=done == task.num_items)


def good_rows(
    batch: VideoBatch, measured: Sequence[Measured | BadVideo], stage: ProcessingStage[Any, Any] | None
) -> tuple[VideoBatch, list[Measured]]:
    """The rows that could be decoded, with what was measured of them. The others are set aside."""
    good: list[int] = []
    found: list[Measured] = []
    for row, one in enumerate(measured):
        if isinstance(one, BadVideo):
            set_aside_row(batch, row, one, stage)
        else:
            good.append(row)
            found.append(one)
    return (batch if len(good) == batch.num_items else batch.take(good)), found


def set_aside_row(
    batch: VideoBatch, row: int, error: BadVideo, stage: ProcessingStage[Any, Any] | None, records: int = 1
) -> None:
    """Put a row into quarantine, with its file, its time and the reason; without a stage, raise."""
    values = table_to_rows(batch.data.slice(row, 1))[0]
    position, file = values.pop(POSITION, None), batch.metadata.get(SOURCE_FILE)
    values.pop(VIDEO, None)
    reason = f"{shown_name(values)}: {error}"
    if stage is None:
        raise BadRecordError(f"{file}: {reason}" if file else reason)
    stage.set_aside(reason, row=values, file=file, position=position, records=records)


def shown_name(row: dict[str, Any]) -> str:
    """What users know a row by: its file or its id and, for a clip, its time."""
    name = str(row.get(SOURCE) or row.get(VIDEO_ID) or "a video without a name")
    if row.get(CLIP_ID) is None or row.get(START) is None or row.get(END) is None:
        return name
    return f"{name}, {row[START]:.3f} to {row[END]:.3f} s"
