"""Snippets for pretraining, cut out of long recordings whose rows list who says what when (`segments`).

    ReadLongFormManifestStage      reads the manifest
    OverlapFilterStage             leaves out segments without text, and those that overlap others
    SnippetCutPlannerStage         packs segments into snippets, in `snippet_plan`
    SnippetRepetitionFilterStage   leaves out snippets that say the same again and again
    SnippetExtractionStage         a row of each snippet: its part of the recording, times from its beginning
    build_audio_pretrain_pipeline  all of them, with a writer of WebDataset archives

Snippets are rows with `offset` and `duration`: no sound is decoded before they are written, and counts are those of the
run (`result.summary()`, the report), so there is nothing to merge afterwards.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from gristmill.audio.audio_task import AudioTask
from gristmill.audio.batch import AUDIO_FILEPATH, DURATION, OFFSET, TEXT, AudioBatch
from gristmill.audio.read import MANIFEST_EXTENSIONS, ManifestReaderStage
from gristmill.audio.sound_transforms import ResampledSound
from gristmill.audio.transcripts.transcript_flags import nested, values_of
from gristmill.audio.write_manifest import ManifestWriterStage
from gristmill.audio.write_recordings import AudioWebDatasetWriter
from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import InputError, require
from gristmill.core.pipeline import Pipeline
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage
from gristmill.io.read.file_partitions import BY_LINES, FilePartitioningStage

SEGMENTS, PLAN, SNIPPET_ID = "segments", "snippet_plan", "snippet_id"
_RESOLUTIONS = ("basename", "relative", "as_is")

_UNFIT = re.compile(r"[./\\]")

Segment = Mapping[str, Any]


@dataclass(eq=False, repr=False)
class ReadLongFormManifestStage(CompositeStage[Any, AudioBatch]):
    """Reads a manifest of long recordings that are in `audio_dir`: by the last part of their paths ("basename"), by
    their paths below it ("relative"), or where their paths say ("as_is")."""

    _catalogue_kind = "reader"

    input_manifest: str
    audio_dir: str
    audio_filepath_key: str = AUDIO_FILEPATH
    audio_path_resolution: str = "basename"

    def __post_init__(self) -> None:
        if self.audio_path_resolution not in _RESOLUTIONS:
            raise ValueError(
                f"ReadLongFormManifestStage: audio_path_resolution is {self.audio_path_resolution!r}, must be one of "
                f"{', '.join(_RESOLUTIONS)}"
            )
        if self.audio_filepath_key != AUDIO_FILEPATH:
            raise ValueError(f"ReadLongFormManifestStage: audio_filepath_key must be {AUDIO_FILEPATH!r}")

    def decompose(self) -> Sequence[ProcessingStage[Any, Any]]:
        listing = FilePartitioningStage(
            str(self.input_manifest), 1, None, MANIFEST_EXTENSIONS, None, None, split_by=BY_LINES
        )
        return [listing, _LongFormManifestReader(str(self.audio_dir), self.audio_path_resolution)]


class _LongFormManifestReader(ManifestReaderStage):
    """Reads the manifest, with paths below a directory."""

    name = "read_long_form_manifest"

    def __init__(self, audio_dir: str, resolution: str) -> None:
        super().__init__()
        self.audio_dir, self.resolution = audio_dir, resolution

    def _with_paths(self, source: Any, table: pa.Table) -> pa.Table:
        at = table.column_names.index(AUDIO_FILEPATH) if AUDIO_FILEPATH in table.column_names else -1
        if self.resolution != "as_is" and at >= 0:
            paths = [self._placed(path) for path in table.column(AUDIO_FILEPATH).to_pylist()]
            table = table.set_column(at, AUDIO_FILEPATH, make_array(paths, pa.string()))
        return super()._with_paths(source, table)

    def _placed(self, path: Any) -> str | None:
        if not isinstance(path, str):
            return None
        name = path.rpartition("/")[2] if self.resolution == "basename" else path
        return str(Path(self.audio_dir).absolute() / name)


class OverlapFilterStage(ProcessingStage[AudioTask, AudioTask]):
    """Leaves out `segments` that have neither text nor words, and then both of two that overlap by `min_overlap_sec`
    seconds or more, or of which one is within the other. `segments_dropped` says how many."""

    name = "overlap_filter"

    def __init__(self, min_overlap_sec: float = 0.5) -> None:
        super().__init__()
        if min_overlap_sec <= 0:
            raise ValueError(f"OverlapFilterStage: min_overlap_sec is {min_overlap_sec}, must be above 0")
        self.min_overlap_sec = min_overlap_sec

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [SEGMENTS]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [SEGMENTS, "segments_dropped"]

    def process(self, task: AudioTask) -> AudioTask:
        given = task.data.get(SEGMENTS) or []
        said = sorted(
            (one for one in given if _text_of(one) or one.get("words")), key=lambda one: (one["start"], one["end"])
        )
        dropped = overlapping_segments(said, self.min_overlap_sec)
        task.data[SEGMENTS] = [one for at, one in enumerate(said) if at not in dropped]
        task.data["segments_dropped"] = len(given) - len(task.data[SEGMENTS])
        return task


def overlapping_segments(segments: Sequence[Segment], least: float) -> set[int]:
    """The numbers of segments, in the order of their beginnings, that overlap another one."""
    found: set[int] = set()
    open_ones: list[int] = []
    for at, segment in enumerate(segments):
        open_ones = [one for one in open_ones if segments[one]["end"] > segment["start"]]
        for one in open_ones:
            other = segments[one]
            shared = min(other["end"], segment["end"]) - segment["start"]
            within = segment["end"] <= other["end"] or (
                other["start"] == segment["start"] and other["end"] <= segment["end"]
            )
            if shared >= least or within:
                found |= {at, one}
        open_ones.append(at)
    return found


class SnippetCutPlannerStage(ProcessingStage[AudioTask, AudioTask]):
    """Adds `snippet_plan`: start, end and segments of each snippet. A snippet takes the segments that follow each
    other, as long as it has at most `max_duration_sec` seconds and no pause of more than `max_segment_gap_in_snippet`.
    Snippets of less than `min_duration_sec`, and single segments that are too long, are left out."""

    name = "snippet_cut_planner"

    def __init__(
        self,
        max_duration_sec: float = 600.0,
        min_duration_sec: float = 0.5,
        max_segment_gap_in_snippet: float = 30.0,
    ) -> None:
        super().__init__()
        if not 0 <= min_duration_sec < max_duration_sec or max_segment_gap_in_snippet < 0:
            raise ValueError(
                f"SnippetCutPlannerStage: min_duration_sec={min_duration_sec} must be below "
                f"max_duration_sec={max_duration_sec}, and the gap 0 or more"
            )
        self.max_duration_sec, self.min_duration_sec = max_duration_sec, min_duration_sec
        self.max_segment_gap_in_snippet = max_segment_gap_in_snippet

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [SEGMENTS]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [PLAN]

    def process(self, task: AudioTask) -> AudioTask:
        packed = self._packed(task.data.get(SEGMENTS) or ())
        plan = [{"start": one[0]["start"], "end": max(each["end"] for each in one), SEGMENTS: one} for one in packed]
        low, high = self.min_duration_sec, self.max_duration_sec
        task.data[PLAN] = [one for one in plan if low <= one["end"] - one["start"] <= high and _said_in(one)]
        return task

    def _packed(self, segments: Sequence[Segment]) -> Iterator[list[Segment]]:
        run: list[Segment] = []
        for segment in sorted(segments, key=lambda one: (one["start"], one["end"])):
            far = run and segment["start"] - run[-1]["end"] > self.max_segment_gap_in_snippet
            if run and (far or segment["end"] - run[0]["start"] > self.max_duration_sec):
                yield run
                run = []
            run.append(segment)
        if run:
            yield run


class SnippetRepetitionFilterStage(ProcessingStage[AudioTask, AudioTask]):
    """Leaves out planned snippets in whose text a run of `ngram_n` tokens is more than `ngram_max_count` times: signs
    of a recogniser that went in circles.

    `tokenizer_path` is a `tokenizer.json`, or a directory with one; without it tokens are words. Nothing is downloaded.
    """

    name = "snippet_repetition_filter"

    def __init__(self, tokenizer_path: str | None = None, ngram_n: int = 10, ngram_max_count: int = 3) -> None:
        super().__init__()
        if ngram_n < 1 or ngram_max_count < 1:
            raise ValueError(
                f"SnippetRepetitionFilterStage: ngram_n={ngram_n} and ngram_max_count={ngram_max_count}: 1 is the least"
            )
        self.tokenizer_path, self.ngram_n, self.ngram_max_count = tokenizer_path, ngram_n, ngram_max_count
        self._tokenizer: Any = None

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [PLAN]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [PLAN]

    def check(self) -> None:
        self._load()

    def _load(self) -> Any:
        if self.tokenizer_path is None or self._tokenizer is not None:
            return self._tokenizer
        path = Path(self.tokenizer_path)
        path = path / "tokenizer.json" if path.is_dir() else path
        if not path.is_file():
            raise InputError(f"{path}: there is no such file: give a tokenizer.json, or a directory with one")
        self._tokenizer = require("tokenizers", "tokenizers", "counting tokens").Tokenizer.from_file(str(path))
        return self._tokenizer

    def process(self, task: AudioTask) -> AudioTask:
        plan = task.data.get(PLAN) or []
        task.data[PLAN] = [one for one in plan if not self._repeats(_said_in(one))]
        return task

    def _repeats(self, text: str) -> bool:
        tokenizer = self._load()
        tokens = text.split() if tokenizer is None else tokenizer.encode(text, add_special_tokens=False).ids
        runs = Counter(tuple(tokens[at : at + self.ngram_n]) for at in range(len(tokens) - self.ngram_n + 1))
        return max(runs.values(), default=0) > self.ngram_max_count


class SnippetExtractionStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Makes a row of each planned snippet: the part of its recording, with `snippet_id`, and `segments` with times from
    its beginning. Other columns are those of the recording, but for `alignment` and the plan.

    No sound is decoded: a writer after this stage cuts and encodes the snippets.
    """

    name = "snippet_extraction"
    takes_empty = True

    def __init__(self, id_key: str = "id") -> None:
        super().__init__()
        self.id_key = id_key

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [PLAN]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [OFFSET, DURATION, SNIPPET_ID, SEGMENTS, TEXT]

    def process(self, task: AudioBatch) -> AudioBatch:
        plans, begins = values_of(task, PLAN), values_of(task, OFFSET)
        pairs = [(row, snippet) for row, plan in enumerate(plans) for snippet in plan or ()]
        names = [name for name in task.get_columns() if name not in (PLAN, "alignment", "words", "segments_dropped")]
        made = task.with_data(task.data.select(names)).take([row for row, _ in pairs])
        stems = self._stems(task)
        spans = [(one["start"] + (begins[row] or 0.0), one["end"] - one["start"]) for row, one in pairs]
        ids = [snippet_id(stems[row], one["start"], one["end"]) for row, one in pairs]
        columns = {
            OFFSET: make_array([float(start) for start, _ in spans], pa.float64()),
            DURATION: make_array([float(length) for _, length in spans], pa.float64()),
            SNIPPET_ID: make_array(ids, pa.string()),
            SEGMENTS: nested([relative_segments(one[SEGMENTS], one["start"], one["end"]) for _, one in pairs]),
            TEXT: make_array([_said_in(one) for _, one in pairs], pa.string()),
        }
        for name, column in columns.items():
            made = made.with_column(name, column)
        return made

    def _stems(self, task: AudioBatch) -> list[str]:
        paths = values_of(task, AUDIO_FILEPATH)
        return [
            str(given or str(path or "recording").rpartition("/")[2].rpartition(".")[0])
            for given, path in zip(values_of(task, self.id_key), paths, strict=True)
        ]


def snippet_id(stem: str, start: float, end: float) -> str:
    """A name for a snippet that is a good name of a file too: without dots and slashes, exact to a millisecond."""
    first, last = (f"{round(1000 * at) // 1000}_{round(1000 * at) % 1000:03}" for at in (start, end))
    return f"{_UNFIT.sub('_', stem)}-{first}-{last}"


def relative_segments(segments: Sequence[Segment], start: float, end: float) -> list[dict[str, Any]]:
    """Segments and their words with times from the beginning of a snippet, and none beyond it."""

    def moved(one: Segment) -> dict[str, Any]:
        places = {side: round(min(max(one[side] - start, 0.0), end - start), 6) for side in ("start", "end")}
        words = {"words": [moved(word) for word in one["words"]]} if one.get("words") else {}
        return {**one, **places, **words}

    return [moved(one) for one in segments]


def _text_of(segment: Segment) -> str:
    return str(segment.get(TEXT) or "").strip()


def _said_in(snippet: Mapping[str, Any]) -> str:
    return " ".join(text for text in map(_text_of, snippet[SEGMENTS]) if text)


def build_audio_pretrain_pipeline(
    *,
    input_manifest: str,
    audio_dir: str,
    output_dir: str,
    max_duration_sec: float,
    output_manifest_path: str | None = None,
    tokenizer_path: str | None = None,
    min_duration_sec: float = 0.5,
    min_overlap_sec: float = 0.5,
    max_segment_gap_in_snippet: float = 30.0,
    ngram_n: int = 10,
    ngram_max_count: int = 3,
    target_sample_rate: int = 16_000,
    output_format: str = "flac",
    audio_path_resolution: str = "basename",
    dry_run: bool = False,
) -> Pipeline:
    """A pipeline from a manifest of long recordings to snippets: WebDataset archives in `output_dir`, of one channel at
    `target_sample_rate`; with `dry_run` only the manifest `output_manifest_path`, and nothing is decoded."""
    if dry_run and output_manifest_path is None:
        raise ValueError("build_audio_pretrain_pipeline: dry_run needs output_manifest_path")
    stages: list[ProcessingStage[Any, Any]] = [
        ReadLongFormManifestStage(input_manifest, audio_dir, audio_path_resolution=audio_path_resolution),
        OverlapFilterStage(min_overlap_sec),
        SnippetCutPlannerStage(max_duration_sec, min_duration_sec, max_segment_gap_in_snippet),
        SnippetRepetitionFilterStage(tokenizer_path, ngram_n, ngram_max_count),
        SnippetExtractionStage(),
    ]
    if dry_run:
        stages.append(ManifestWriterStage(str(output_manifest_path)))
    else:
        stages += [
            ResampledSound(target_sample_rate, 1),
            AudioWebDatasetWriter(output_dir, audio_format=output_format),
        ]
    return Pipeline("audio_pretrain", stages=stages)
