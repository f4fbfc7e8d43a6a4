"""Stages that cut recordings into segments and put segments together, with times that map back to the original.

    SplitLongAudioStage         long recordings as segments, cut where it is quiet
    JoinSplitAudioMetadataStage the rows of one recording as one row again
    SegmentConcatenationStage   the segments of one recording as one sound, with silence between them
    TimestampMapperStage        times in joined sound as times in the original file

Cutting changes offset and duration, and copies no sound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.audio.batch import AUDIO, AUDIO_FILEPATH, DURATION, OFFSET, TEXT, AudioBatch, BadAudio
from gristmill.audio.clean_sound import with_segments, with_sounds
from gristmill.audio.decode import Sound, open_sound
from gristmill.audio.waveforms import WaveformStage, row_of, set_aside_row, sources_of
from gristmill.audio.write_recordings import ORIGINAL_FILE
from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import column_values, to_array
from gristmill.core.errors import ColumnError
from gristmill.core.stage import Columns, ProcessingStage

SPLIT_ID, SPLIT_INDEX, MAPPING = "split_id", "split_index", "segment_mapping"
_SEARCH_SECONDS = 10.0
"""How long before the largest length a quiet place to cut is looked for."""


class SplitLongAudioStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Cuts recordings of more than `suggested_max_len` seconds into segments of at most that, each where it is quietest
    in the last ten seconds before it must end. A rest of less than `min_len` seconds goes to the segment before it.

    Recordings are read window by window, so memory does not depend on their length. `split_id` and `split_index` say
    which segments belong together.
    """

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
        names = batch.get_columns()
        origin = batch.data.column(AUDIO_FILEPATH).to_pylist() if AUDIO_FILEPATH in names else [None] * len(rows)
        ids = [f"{path or task.id}#{row}" for path, row in zip(origin, rows, strict=True)]
        batch = batch.with_column(SPLIT_ID, make_array(ids, pa.string()))
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


class JoinSplitAudioMetadataStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Makes one row again of the segments that `SplitLongAudioStage` made of a recording: their texts are joined with
    spaces, offset and duration cover all of them, and other columns are those of the first."""

    def __init__(self, text_keys: Sequence[str] = (TEXT, "pred_text")) -> None:
        super().__init__()
        self.text_keys = list(text_keys)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [SPLIT_ID]

    def process(self, task: AudioBatch) -> AudioBatch:
        table = task.data
        if SPLIT_ID not in table.column_names:
            raise ColumnError(f"stage {self.name!r}: there is no column {SPLIT_ID!r}: use SplitLongAudioStage before")
        groups = groups_of(table.column(SPLIT_ID).to_pylist())
        joined = task.take([rows[0] for rows in groups])
        starts, ends = _spans_of(table)
        offsets = [min(starts[row] for row in rows) for rows in groups]
        lengths = [max(ends[row] for row in rows) - start for rows, start in zip(groups, offsets, strict=True)]
        joined = with_segments(joined, offsets, lengths)
        for key in self.text_keys:
            if key in table.column_names:
                texts = column_values(table.column(key))
                given = [[str(texts[row]) for row in rows if texts[row]] for rows in groups]
                joined = joined.with_column(key, make_array([" ".join(one) or None for one in given], pa.string()))
        return joined.with_data(joined.data.drop_columns([SPLIT_ID, SPLIT_INDEX]))


def _spans_of(table: pa.Table) -> tuple[list[float], list[float]]:
    starts = [float(value or 0.0) for value in table.column(OFFSET).to_pylist()]
    lengths = [float(value or 0.0) for value in table.column(DURATION).to_pylist()]
    return starts, [start + length for start, length in zip(starts, lengths, strict=True)]


def groups_of(keys: Sequence[Any]) -> list[list[int]]:
    """The numbers of neighbouring rows with one key."""
    return [[row for row, _ in group] for _, group in groupby(enumerate(keys), key=lambda pair: pair[1])]


class SegmentConcatenationStage(WaveformStage):
    """Joins neighbouring segments of one recording into one sound, with `silence_duration_sec` of silence between them.

    `segment_mapping` says which part of the new sound was where in the original file: a list of original_file,
    original_start, original_end, start and end, in seconds.
    """

    rate, mono = None, False

    def __init__(self, silence_duration_sec: float = 0.5) -> None:
        super().__init__()
        if silence_duration_sec < 0:
            raise ValueError(
                f"SegmentConcatenationStage: silence_duration_sec is {silence_duration_sec}, must be 0 or more"
            )
        self.silence_duration_sec = silence_duration_sec

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [AUDIO, DURATION, MAPPING]

    def kept_together(self, task: AudioBatch) -> Sequence[Any]:
        return _files_of(task.data)

    def process_sounds(self, rows: AudioBatch, sounds: Sequence[Sound]) -> AudioBatch:
        files = _files_of(rows.data)
        names = rows.get_columns()
        offsets = rows.data.column(OFFSET).to_pylist() if OFFSET in names else [None] * len(sounds)
        keys = [(file, sound.rate, sound.samples.shape[1]) for file, sound in zip(files, sounds, strict=True)]
        groups = groups_of(keys)
        parts = [[(sounds[row], files[row], float(offsets[row] or 0.0)) for row in group] for group in groups]
        joined = [self._joined(part) for part in parts]
        made = with_sounds(rows.take([group[0] for group in groups]), [sound for sound, _ in joined])
        return made.with_column(MAPPING, to_array([mapping for _, mapping in joined]))

    def _joined(self, parts: Sequence[tuple[Sound, Any, float]]) -> tuple[Sound, list[dict[str, Any]]]:
        """The sounds of one recording with silence between them, and where each of them was."""
        rate, channels = parts[0][0].rate, parts[0][0].samples.shape[1]
        gap = np.zeros((round(self.silence_duration_sec * rate), channels), np.float32)
        pieces: list[Any] = []
        mapping: list[dict[str, Any]] = []
        at = 0
        for sound, file, start in parts:
            if pieces:
                pieces.append(gap)
                at += len(gap)
            mapping.append({
                "original_file": file, "original_start": start, "original_end": start + sound.seconds,
                "start": at / rate, "end": at / rate + sound.seconds,
            })  # fmt: skip
            pieces.append(sound.samples)
            at += len(sound.samples)
        return Sound(np.concatenate(pieces), rate), mapping


def _files_of(table: pa.Table) -> list[Any]:
    """The recording that each row is a part of."""
    name = ORIGINAL_FILE if ORIGINAL_FILE in table.column_names else AUDIO_FILEPATH
    files: list[Any] = table.column(name).to_pylist() if name in table.column_names else [None] * table.num_rows
    return files


class TimestampMapperStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Maps rows of joined sound back to their original files: a row for each part of an original that a row covers,
    with `original_file`, `original_start`, `original_end` in seconds and `original_start_ms`, `original_end_ms`.

    A row with `offset` and `duration` covers that part of the joined sound, otherwise all of it. `passthrough_keys` are
    the columns that are kept, by default all but the sound.
    """

    def __init__(self, passthrough_keys: Sequence[str] | None = None) -> None:
        super().__init__()
        self.passthrough_keys = None if passthrough_keys is None else list(passthrough_keys)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def process(self, task: AudioBatch) -> AudioBatch:
        table = task.data
        found = list(self._parts(table))
        rows = [row for row, *_ in found]
        left_out = (AUDIO, MAPPING, OFFSET, DURATION, "original_offset", ORIGINAL_FILE)
        wanted = [name for name in table.column_names if name not in left_out]
        if self.passthrough_keys is not None:
            wanted = [name for name in wanted if name in self.passthrough_keys or name.startswith("__")]
        taken = table.select(wanted).take(make_array(rows, pa.int64()))
        starts, ends = [start for _, _, start, _ in found], [end for _, _, _, end in found]
        new = {
            ORIGINAL_FILE: make_array([file for _, file, _, _ in found], pa.string()),
            "original_start": make_array(starts, pa.float64()),
            "original_end": make_array(ends, pa.float64()),
            "original_start_ms": make_array([round(1000 * start) for start in starts], pa.int64()),
            "original_end_ms": make_array([round(1000 * end) for end in ends], pa.int64()),
            DURATION: make_array([end - start for start, end in zip(starts, ends, strict=True)], pa.float64()),
        }
        columns = {name: taken.column(name) for name in wanted if name not in new}
        return AudioBatch(pa.table(columns | new), dataset_name=task.dataset_name, metadata=dict(task.metadata))

    def _parts(self, table: pa.Table) -> Iterator[tuple[int, str | None, float, float]]:
        """Row, original file, beginning and end of each part."""
        names = table.column_names
        count = table.num_rows

        def values(name: str) -> list[Any]:
            return column_values(table.column(name)) if name in names else [None] * count

        files = values(ORIGINAL_FILE) if ORIGINAL_FILE in names else values(AUDIO_FILEPATH)
        columns = zip(values(MAPPING), files, values(OFFSET), values(DURATION), values("original_offset"), strict=True)
        for row, (mapping, file, offset, duration, base) in enumerate(columns):
            start = float(offset or 0.0)
            end = start + float(duration) if duration is not None else float("inf")
            if not mapping:
                first = float(base or 0.0) + start
                yield row, file, first, first + (end - start if duration is not None else 0.0)
                continue
            for part in mapping:
                first, last = max(start, part["start"]), min(end, part["end"])
                if first < last:
                    shift = part["original_start"] - part["start"]
                    yield row, part["original_file"], first + shift, last + shift
