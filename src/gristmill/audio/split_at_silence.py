"""SplitLongAudioStage: long recordings as segments, cut where it is quiet.

Cutting changes offset and duration, and copies no sound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.audio.batch import AUDIO_FILEPATH, AUDIO_ID, DURATION, OFFSET, AudioBatch, BadAudio
from gristmill.audio.decode import open_sound
from gristmill.audio.sound_transforms import with_segments
from gristmill.audio.waveforms import row_of, set_aside_row, sources_of
from gristmill.audio.write_recordings import ORIGINAL_FILE
from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.stage import Columns, ProcessingStage

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

SPLIT_ID, SPLIT_INDEX = "split_id", "split_index"
_SEARCH_SECONDS = 10.0
"""How long before the largest length a quiet place to cut is looked for."""


class SplitLongAudioStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Cuts recordings of more than `suggested_max_len` seconds into segments of at most that, each where it is quietest
    in the last ten seconds before it must end. A rest of less than `min_len` seconds goes to the segment before it.

    Recordings are read window by window, so memory does not depend on their length. `split_id` and `split_index` say
    which segments belong together.
    """

    takes_empty = True

    def __init__(self, suggested_max_len: float = 3600.0, min_len: float = 1.0) -> None:
        super().__init__()
        if suggested_max_len <= 0 or min_len < 0 or min_len >= suggested_max_len:
            raise ValueError(
                f"SplitLongAudioStage: suggested_max_len={suggested_max_len} must be above min_len={min_len}, and both "
                "above 0"
            )
        self.suggested_max_len, self.min_len = suggested_max_len, min_len

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [OFFSET, DURATION, SPLIT_ID, SPLIT_INDEX]

    def process(self, task: AudioBatch) -> AudioBatch:
        rows: list[int] = []
        spans: list[tuple[float, float, int]] = []
        for row, source in enumerate(sources_of(task)):
            cuts = row_of(source, self._spans)
            if isinstance(cuts, BadAudio):
                set_aside_row(task, row, cuts, self)
                continue
            rows += [row] * len(cuts)
            spans += [(start, end - start, index) for index, (start, end) in enumerate(cuts)]
        batch = with_segments(task.take(rows), [span[0] for span in spans], [span[1] for span in spans])
        ids = _row_names(task)
        batch = batch.with_column(SPLIT_ID, make_array([ids[row] for row in rows], pa.string()))
        return batch.with_column(SPLIT_INDEX, make_array([span[2] for span in spans], pa.int64()))

    def _spans(self, source: Any, offset: float | None, duration: float | None) -> list[tuple[float, float]]:
        """The segments of a recording, as beginnings and ends in seconds of the file."""
        begin = offset or 0.0
        with open_sound(source) as sound:
            rate = sound.header.rate
            whole = sound.header.seconds
            length = duration if offset is not None and duration is not None else None
            if length is None and whole is not None:
                length = whole - begin
            if length is not None and 0 < length <= self.suggested_max_len:
                return [(begin, begin + length)]
            step = max(round(0.02 * rate), 1)
            powers, rest, frames = [], np.zeros(0, np.float32), 0
            for block in sound.windows(offset, duration):
                frames += len(block)
                samples = np.concatenate([rest, block[:, 0]])
                count = len(samples) // step
                stretches = samples[: count * step].reshape(count, step)
                powers.append(np.einsum("ij,ij->i", stretches, stretches))
                rest = samples[count * step :]
        ends = cut_places(np.concatenate(powers), step / rate, frames / rate, self.suggested_max_len, self.min_len)
        starts = [0.0, *ends[:-1]]
        return [(begin + start, begin + end) for start, end in zip(starts, ends, strict=True)]


def _row_names(batch: AudioBatch) -> list[str]:
    """A name for each row that does not depend on how the input is cut into batches: what it is made of, and where it
    stands in its file."""
    names, rows = batch.get_columns(), range(batch.num_items)

    def values(name: str) -> list[Any]:
        return batch.data.column(name).to_pylist() if name in names else [None] * len(rows)

    places = values(POSITION) if POSITION in names else rows
    given = zip(recordings_of(batch.data), values(OFFSET), places, strict=True)
    file = batch.metadata.get(SOURCE_FILE) or batch.sample_name
    return [f"{name or file}{'' if start is None else f'@{start}'}#{place}" for name, start, place in given]


def recordings_of(table: pa.Table) -> list[str | None]:
    """The recording that each row is a part of: its original file, its file, or its id."""
    found = pa.nulls(table.num_rows, pa.string())
    for name in (ORIGINAL_FILE, AUDIO_FILEPATH, AUDIO_ID):
        if name in table.column_names:
            found = pc.coalesce(found, table.column(name).cast(pa.string()))
    names: list[str | None] = found.to_pylist()
    return names


def parts_at_silence(blocks: Iterator[Samples], rate: int, longest: float) -> Iterator[Samples]:
    """A recording of one channel in parts of at most `longest` seconds, each cut where it is quietest in the last ten
    seconds before it must end."""
    step, size = round(0.02 * rate), round(longest * rate)
    rest = np.zeros(0, np.float32)
    for block in blocks:
        rest = np.concatenate([rest, block[:, 0]])
        while len(rest) > size:
            first = max(size - round(_SEARCH_SECONDS * rate), size // 2) // step
            window = rest[first * step : size // step * step].reshape(-1, step)
            powers = np.einsum("ij,ij->i", window, window)
            end = (first + len(powers) - int(np.argmin(powers[::-1]))) * step
            yield rest[:end].copy()
            rest = rest[end:]
    if len(rest):
        yield rest


def cut_places(powers: Any, step: float, seconds: float, longest: float, shortest: float) -> list[float]:
    """Where segments end, in seconds: each at the quietest stretch near its largest length."""
    ends: list[float] = []
    start = 0.0
    while seconds - start > longest:
        latest = start + longest
        if seconds - latest < shortest:  # the rest would be too short: both parts get about half
            latest = start + (seconds - start) / 2
        earliest = max(latest - _SEARCH_SECONDS, start + min(shortest + step, (latest - start) / 2))
        first, last = int(earliest / step), max(int(latest / step), int(earliest / step) + 1)
        window = powers[first:last]
        place = first + (len(window) - 1 - int(np.argmin(window[::-1])) if len(window) else 0)
        ends.append(min((place + 0.5) * step, latest))
        start = ends[-1]
    return [*ends, seconds]
