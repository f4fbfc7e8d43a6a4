"""Stages that tell who speaks.

SpeakerEmbeddingStage      a vector of the voice of each row
SpeakerDiarizationStage    who speaks when, and how many there are
SpeakerSeparationStage     a row for each turn of each speaker
InferenceSortformerStage, PyAnnoteDiarizationStage   the same under the names of NeMo Curator
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.audio.batch import AUDIO_FILEPATH, DURATION, OFFSET, AudioBatch
from gristmill.audio.sound_transforms import with_segments
from gristmill.audio.speakers.diarise import Turn, diarise, merged_turns
from gristmill.audio.speakers.speaker_model import SpeakerModel, check_speaker_model
from gristmill.audio.speech.package_weights import RATE
from gristmill.audio.speech.silero import SILERO
from gristmill.audio.split_at_silence import parts_at_silence
from gristmill.audio.transcripts.transcript_flags import nested, values_of
from gristmill.audio.waveforms import WaveformStage, recording_name
from gristmill.audio.write_recordings import ORIGINAL_FILE
from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import MissingDependencyError
from gristmill.core.stage import Columns, WorkerMetadata
from gristmill.samples.model_stages import embedding_column

if TYPE_CHECKING:
    from gristmill.audio.decode import Samples

_PART_SECONDS = 600.0
_SIMILARITY = 0.7


class _VoiceStage(WaveformStage):
    """Base: a stage with a model of voices."""

    streams: ClassVar[bool] = True

    def __init__(self, model_path: str) -> None:
        super().__init__()
        self.model_path = str(model_path)
        self._voices: SpeakerModel | None = None

    def check(self) -> None:
        check_speaker_model(self.model_path)

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        super().setup(worker_metadata)
        self._voices = SpeakerModel(self.model_path, max(int(self.resources.cpus), 1))

    def teardown(self) -> None:
        self._voices = None

    @property
    def voices(self) -> SpeakerModel:
        """The model, which `setup` has loaded."""
        assert self._voices is not None, "setup() has not run"
        return self._voices


class SpeakerEmbeddingStage(_VoiceStage):
    """Adds a vector of the voice of each recording, of length 1: those of one speaker are alike.

    `model_path` is an ONNX file of a speaker embedding model: GE2E (40 mel bands), or one that takes 80 fbank bands.
    """

    def __init__(self, model_path: str, embedding_field: str = "speaker_embedding") -> None:
        super().__init__(model_path)
        self.embedding_field = embedding_field

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.embedding_field]

    def process_waveforms(self, rows: AudioBatch, waveforms: Sequence[Samples]) -> AudioBatch:
        return self._with(rows, [self.voices.voice(samples) for samples in waveforms])

    def process_stream(self, rows: AudioBatch, blocks: Iterator[Samples]) -> AudioBatch:
        total: Any = 0.0
        for part in parts_at_silence(blocks, RATE, _PART_SECONDS):
            total = total + self.voices.voice(part) * len(part)
        return self._with(rows, [total / np.linalg.norm(total)])

    def _with(self, rows: AudioBatch, vectors: Sequence[Any]) -> AudioBatch:
        width = self.voices.width
        matrix = np.stack(vectors).astype(np.float32) if vectors else np.zeros((0, width), np.float32)
        return rows.with_column(self.embedding_field, embedding_column(matrix, [True] * len(vectors), width))


class SpeakerDiarizationStage(_VoiceStage):
    """Adds who speaks when: `segments_key` is a list of start, end and speaker, in seconds of the file, and
    `num_speakers_key` how many speakers there are.

    Speech is found with Silero; windows of it belong to one speaker if their voices are alike by `min_similarity` on
    average, and there are at most `max_speakers`. Turns of one speaker at most `gap_threshold` seconds apart are one,
    and shorter ones than `min_duration` are left out. `rttm_out_dir` gets a file in the RTTM format for each recording.
    `model_path` is as for `SpeakerEmbeddingStage`. Two who speak at once are one.
    """

    def __init__(
        self,
        model_path: str,
        min_similarity: float = _SIMILARITY,
        max_speakers: int | None = None,
        min_duration: float = 0.3,
        gap_threshold: float = 0.5,
        segments_key: str = "segments",
        num_speakers_key: str = "num_speakers",
        rttm_out_dir: str | None = None,
    ) -> None:
        super().__init__(model_path)
        name = type(self).__name__
        if not -1 <= min_similarity <= 1 or (max_speakers is not None and max_speakers < 1):
            raise ValueError(
                f"{name}: min_similarity={min_similarity} must be from -1 to 1, and max_speakers={max_speakers} above 0"
            )
        if min(min_duration, gap_threshold) < 0:
            raise ValueError(f"{name}: min_duration={min_duration} and gap_threshold={gap_threshold} must be 0 or more")
        self.min_similarity, self.max_speakers = min_similarity, max_speakers
        self.min_duration, self.gap_threshold = min_duration, gap_threshold
        self.segments_key, self.num_speakers_key, self.rttm_out_dir = segments_key, num_speakers_key, rttm_out_dir

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.segments_key, self.num_speakers_key]

    def check(self) -> None:
        super().check()
        SILERO.find()

    def process_waveforms(self, rows: AudioBatch, waveforms: Sequence[Samples]) -> AudioBatch:
        return self.with_turns(rows, [self.turns(iter([samples])) for samples in waveforms])

    def process_stream(self, rows: AudioBatch, blocks: Iterator[Samples]) -> AudioBatch:
        return self.with_turns(rows, [self.turns(parts_at_silence(blocks, RATE, _PART_SECONDS))])

    def turns(self, parts: Iterator[Samples]) -> list[Turn]:
        """The turns of one recording, in seconds from its beginning."""
        threads = max(int(self.resources.cpus), 1)
        found = diarise(parts, self.voices, self.min_similarity, self.max_speakers, threads)
        return merged_turns(found, self.gap_threshold, self.min_duration)

    def with_turns(self, rows: AudioBatch, turns: Sequence[Sequence[Turn]]) -> AudioBatch:
        """The rows with what was found."""
        begins = [float(begin or 0.0) for begin in values_of(rows, OFFSET)]
        lists = []
        for row, (own, begin) in enumerate(zip(turns, begins, strict=True)):
            lists.append([
                {"start": round(turn.start + begin, 3), "end": round(turn.end + begin, 3),
                 "speaker": f"speaker_{turn.speaker}"} for turn in own
            ])  # fmt: skip
            if self.rttm_out_dir is not None:
                _write_rttm(Path(self.rttm_out_dir), recording_name(rows, row), begin, lists[-1])
        rows = rows.with_column(self.segments_key, nested(lists))
        counts = [len({turn.speaker for turn in own}) for own in turns]
        return rows.with_column(self.num_speakers_key, make_array(counts, pa.int64()))


def _write_rttm(folder: Path, name: str, begin: float, segments: Sequence[Any]) -> None:
    stem = re.sub(r"[^\w.-]", "_", name.rpartition("/")[2].partition(".")[0]) or "recording"
    stem += f"_{round(1000 * begin)}" if begin else ""
    lines = (
        f"SPEAKER {stem} 1 {one['start']:.3f} {one['end'] - one['start']:.3f} <NA> <NA> {one['speaker']} <NA> <NA>\n"
        for one in segments
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.rttm").write_text("".join(lines), encoding="utf-8")


class InferenceSortformerStage(SpeakerDiarizationStage):
    """Adds who speaks when, as `diar_segments_key`: `SpeakerDiarizationStage` under the name of NeMo Curator.

    `model_path`, or `model_name`, is a speaker embedding model, as ONNX. Sortformer itself needs NeMo and a GPU, and is
    not run here, so the lengths of its chunks and caches change nothing.
    """

    def __init__(
        self,
        model_name: str = "nvidia/diar_streaming_sortformer_4spk-v2.1",
        model_path: str | None = None,
        filepath_key: str = AUDIO_FILEPATH,
        diar_segments_key: str = "diar_segments",
        rttm_out_dir: str | None = None,
        *,
        chunk_len: int = 340,
        chunk_left_context: int = 1,
        chunk_right_context: int = 40,
        fifo_len: int = 40,
        spkcache_update_period: int = 300,
        spkcache_len: int = 188,
        inference_batch_size: int = 1,
    ) -> None:
        if filepath_key != AUDIO_FILEPATH:
            raise ValueError(f"InferenceSortformerStage: filepath_key is {filepath_key!r}: rename that column first")
        super().__init__(model_path or model_name, segments_key=diar_segments_key, rttm_out_dir=rttm_out_dir)
        self.model_name, self.filepath_key, self.diar_segments_key = model_name, filepath_key, diar_segments_key
        self.chunks = (chunk_len, chunk_left_context, chunk_right_context, fifo_len)
        self.cache = (spkcache_update_period, spkcache_len, inference_batch_size)

    def check(self) -> None:
        _check_is_own(self.model_path)
        super().check()


class PyAnnoteDiarizationStage(SpeakerDiarizationStage):
    """Adds who speaks when, as `segments_key`: `SpeakerDiarizationStage` under the name of NeMo Curator.

    `model_name` is a speaker embedding model, as ONNX. Overlaps are not found: `overlap_segments_key` is a list without
    any. Turns have from `min_length` seconds on; those of more than `max_length` are cut into equal parts.
    """

    def __init__(
        self,
        model_name: str = "pyannote/speaker-diarization-3.1",
        min_length: float = 0.5,
        max_length: float = 40.0,
        segments_key: str = "segments",
        overlap_segments_key: str = "overlap_segments",
    ) -> None:
        super().__init__(model_name, min_duration=min_length, segments_key=segments_key)
        self.model_name, self.min_length, self.max_length = model_name, min_length, max_length
        self.overlap_segments_key = overlap_segments_key

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [*super().outputs()[1], self.overlap_segments_key]

    def check(self) -> None:
        _check_is_own(self.model_path)
        super().check()

    def turns(self, parts: Iterator[Samples]) -> list[Turn]:
        found = []
        for turn in super().turns(parts):
            count = int(np.ceil((turn.end - turn.start) / self.max_length)) or 1
            edges = np.linspace(turn.start, turn.end, count + 1).tolist()
            found += [Turn(start, end, turn.speaker) for start, end in pairwise(edges)]
        return found

    def with_turns(self, rows: AudioBatch, turns: Sequence[Sequence[Turn]]) -> AudioBatch:
        rows = super().with_turns(rows, turns)
        return rows.with_column(self.overlap_segments_key, nested([[] for _ in turns]))


def _check_is_own(path: str) -> None:
    if not path.endswith(".onnx"):
        raise MissingDependencyError(
            f"{path!r} runs in its own framework, on a GPU, which this stage does not use: give the path of a speaker "
            "embedding model as ONNX (docs/audio.md says which), and voices are told apart on the CPU"
        )


class SpeakerSeparationStage(SpeakerDiarizationStage):
    """Makes a row of each turn of a speaker, sorted by speaker, with `speaker_id` and `num_speakers`.

    Rows are segments of their file: no sound is copied. Turns have `min_duration` seconds or more; those of one speaker
    at most `gap_threshold` apart are one. Two who speak at once are one, so `exclude_overlaps` changes nothing;
    nor does `buffer_time`, as turns are not widened.
    """

    def __init__(
        self,
        model_path: str,
        exclude_overlaps: bool = True,
        min_duration: float = 0.8,
        gap_threshold: float = 0.1,
        buffer_time: float = 0.5,
        min_similarity: float = _SIMILARITY,
    ) -> None:
        super().__init__(model_path, min_similarity, None, min_duration, gap_threshold)
        self.exclude_overlaps, self.buffer_time = exclude_overlaps, buffer_time

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], ["speaker_id", "num_speakers", OFFSET, DURATION, ORIGINAL_FILE]

    def with_turns(self, rows: AudioBatch, turns: Sequence[Sequence[Turn]]) -> AudioBatch:
        begins = [float(begin or 0.0) for begin in values_of(rows, OFFSET)]
        ordered = [sorted(own, key=lambda turn: (turn.speaker, turn.start)) for own in turns]
        origin = [row for row, own in enumerate(ordered) for _ in own]
        flat = [turn for own in ordered for turn in own]
        starts = [turn.start + begins[row] for turn, row in zip(flat, origin, strict=True)]
        made = with_segments(rows.take(origin), starts, [turn.end - turn.start for turn in flat])
        counts = [len({turn.speaker for turn in own}) for own in turns]
        named = make_array([f"speaker_{turn.speaker}" for turn in flat], pa.string())
        made = made.with_column("speaker_id", named)
        made = made.with_column("num_speakers", make_array([counts[row] for row in origin], pa.int64()))
        names = made.get_columns()
        if AUDIO_FILEPATH in names and ORIGINAL_FILE not in names:
            made = made.with_column(ORIGINAL_FILE, made.data.column(AUDIO_FILEPATH).combine_chunks())
        return made
