"""Stages that put segments together again, with times that map back to the original.

    JoinSplitAudioMetadataStage  the rows of one recording as one row again
    SegmentConcatenationStage    the segments of one recording as one sound, with silence between them
    TimestampMapperStage         times in joined sound as times in the original file

Rows that belong together are neighbours, and may come in several batches. So both joins first gather the rows of a
source (a file of the input), without their sound unless it is in `audio`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.audio.batch import AUDIO, AUDIO_FILEPATH, DURATION, OFFSET, TEXT, AudioBatch, BadAudio
from gristmill.audio.decode import MAX_DECODED_BYTES, LongAudio, Sound
from gristmill.audio.sound_transforms import with_segments, with_sounds
from gristmill.audio.split_at_silence import SPLIT_ID, SPLIT_INDEX, recordings_of
from gristmill.audio.waveforms import PIECE_SECONDS, set_aside_row, sounds
from gristmill.audio.write_recordings import ORIGINAL_FILE, original_offsets
from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import column_values
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.errors import ColumnError
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage
from gristmill.core.stage_roles import MergingStage
from gristmill.samples.decode import without_decoded

MAPPING = "segment_mapping"
_MAPPING_TYPE = pa.list_(
    pa.struct(
        [("original_file", pa.string())]
        + [(name, pa.float64()) for name in ("original_start", "original_end", "start", "end")]
    )
)


class _GatheringStage(MergingStage[AudioBatch, AudioBatch]):
    """Base: rows in batches that never part neighbours with one key. Which batches came in makes no difference."""

    takes_empty = True

    def keys(self, table: pa.Table) -> Sequence[Any]:
        """What neighbours that belong together have in common; None for a row that belongs to no other."""
        raise NotImplementedError

    def gathered(self, batch: AudioBatch) -> AudioBatch:
        """What becomes of such a batch."""
        return batch

    def merge(self, tasks: Sequence[AudioBatch]) -> Iterator[AudioBatch]:
        open_rows: list[AudioBatch] = []  # of the last key, which may go on in the next batch
        last: Any = None
        for task in [one for one in tasks if one.num_items] or tasks[:1]:
            batch = replace(task, objects=without_decoded(task))
            keys = [None if key is None else (batch.metadata.get(SOURCE_FILE), key) for key in self.keys(batch.data)]
            same = 0
            while open_rows and same < len(keys) and keys[same] == last is not None:
                same += 1
            if same:
                open_rows.append(batch.slice(0, same))
            if same < len(keys) or not keys:
                if open_rows:
                    yield self.gathered(AudioBatch.concat(open_rows))
                start = len(keys) - 1
                while start > same and keys[start - 1] == keys[-1] is not None:
                    start -= 1
                if start > same:
                    yield self.gathered(batch.slice(same, start - same))
                open_rows, last = [batch.slice(max(start, 0))], keys[-1] if keys else None
        if open_rows:
            yield self.gathered(AudioBatch.concat(open_rows))


class JoinSplitAudioMetadataStage(_GatheringStage):
    """Makes one row again of the segments that `SplitLongAudioStage` made of a recording: their texts are joined with
    spaces, offset and duration cover all of them, and other columns are those of the first."""

    def __init__(self, text_keys: Sequence[str] = (TEXT, "pred_text")) -> None:
        super().__init__()
        self.text_keys = list(text_keys)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [SPLIT_ID]

    def keys(self, table: pa.Table) -> Sequence[Any]:
        if SPLIT_ID not in table.column_names:
            raise ColumnError(f"stage {self.name!r}: there is no column {SPLIT_ID!r}: use SplitLongAudioStage before")
        keys: list[Any] = table.column(SPLIT_ID).to_pylist()
        return keys

    def gathered(self, batch: AudioBatch) -> AudioBatch:
        table = batch.data
        groups = groups_of(self.keys(table))
        joined = batch.take([rows[0] for rows in groups])
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
    """The numbers of neighbouring rows with one key; None is a key of no other row."""
    unlike = [object() if key is None else key for key in keys]
    return [[row for row, _ in group] for _, group in groupby(enumerate(unlike), key=lambda pair: pair[1])]


class SegmentConcatenationStage(CompositeStage[AudioBatch, AudioBatch]):
    """Joins neighbouring segments of one recording into one sound, with `silence_duration_sec` of silence between them.

    `segment_mapping` says which part of the new sound was where in the original file: a list of original_file,
    original_start, original_end, start and end, in seconds. Segments with other sample rates or channels than the one
    before begin a new sound.
    """

    def __init__(self, silence_duration_sec: float = 0.5) -> None:
        if silence_duration_sec < 0:
            raise ValueError(
                f"SegmentConcatenationStage: silence_duration_sec is {silence_duration_sec}, must be 0 or more"
            )
        self.silence_duration_sec = silence_duration_sec

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        return [GatherSegments(), ConcatenateSegments(self.silence_duration_sec)]


class GatherSegments(_GatheringStage):
    """Brings neighbouring rows of one recording into one batch. A stage of its own, so that one worker looks at rows
    and all others at sound."""

    name = "gather_segments"
    num_workers = 1

    def keys(self, table: pa.Table) -> Sequence[Any]:
        return recordings_of(table)


class ConcatenateSegments(ProcessingStage[AudioBatch, AudioBatch]):
    """Joins the segments of recordings that are complete in their batch."""

    name = "concatenate_segments"
    takes_empty = True

    def __init__(self, silence_duration_sec: float) -> None:
        super().__init__()
        self.silence_duration_sec = silence_duration_sec

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [AUDIO, DURATION, MAPPING]

    def process(self, task: AudioBatch) -> Iterator[AudioBatch]:
        files, starts = recordings_of(task.data), original_offsets(task.data).to_pylist()
        made: list[tuple[int, Sound, list[dict[str, Any]]]] = []
        for rows, parts in self._groups(task, files):
            if not parts:
                too_long = LongAudio(
                    f"the segments of this recording, joined, take more than {MAX_DECODED_BYTES >> 20} MiB"
                )
                for row in rows:
                    set_aside_row(task, row, too_long, self)
                continue
            places = [(part, files[row], float(starts[row] or 0.0)) for row, part in zip(rows, parts, strict=True)]
            made.append((rows[0], *self._joined(places)))
            if sum(sound.seconds for _, sound, _ in made) >= PIECE_SECONDS:
                yield self._rows(task, made)
                made = []
        yield self._rows(task, made)

    def _groups(self, task: AudioBatch, files: Sequence[Any]) -> Iterator[tuple[list[int], list[Sound]]]:
        """The rows of each sound to be made, and their sounds; none if they do not fit into memory."""
        rows: list[int] = []
        parts: list[Sound] = []
        size = 0
        last: tuple[Any, ...] = ()
        for row, sound in enumerate(sounds(task)):
            form = last[1:] if isinstance(sound, BadAudio) else (sound.rate, sound.samples.shape[1])
            if rows and (files[row] is None or (files[row], *form) != last):
                yield rows, parts
                rows, parts, size = [], [], 0
            if isinstance(sound, BadAudio):
                set_aside_row(task, row, sound, self)
                continue
            rows.append(row)
            size, last = size + sound.samples.nbytes, (files[row], *form)
            if size <= MAX_DECODED_BYTES:
                parts.append(sound)
            else:
                parts.clear()
        if rows:
            yield rows, parts

    def _rows(self, task: AudioBatch, made: Sequence[tuple[int, Sound, list[dict[str, Any]]]]) -> AudioBatch:
        rows = with_sounds(task.take([row for row, _, _ in made]), [sound for _, sound, _ in made])
        return rows.with_column(MAPPING, make_array([mapping for _, _, mapping in made], _MAPPING_TYPE))

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


class TimestampMapperStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Maps rows of joined sound back to their original files: a row for each part of an original that a row covers,
    with `original_file`, `original_start`, `original_end` in seconds and `original_start_ms`, `original_end_ms`.

    A row with `offset` and `duration` covers that part of the joined sound, otherwise all of it. `passthrough_keys` are
    the columns that are kept, by default all but the sound.
    """

    takes_empty = True

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
