"""Stages that make segments for training of rows with words and speakers. They read and write columns.

MergeAlignmentDiarizationStage   the words of a recording go to the turns of its speakers
PrepareModuleSegmentsStage       turns become segments of a good length, for speech synthesis or recognition
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gristmill.audio.audio_task import AudioTask
from gristmill.audio.batch import TEXT
from gristmill.core.stage import Columns, ProcessingStage

Words = Sequence[Mapping[str, Any]]


class MergeAlignmentDiarizationStage(ProcessingStage[AudioTask, AudioTask]):
    """Adds text and words to each of `segments`: those words of `alignment` whose middle lies in it, or which are
    nearest to it."""

    name = "merge_alignment_diarization"

    def __init__(self, text_key: str = TEXT, words_key: str = "words") -> None:
        super().__init__()
        self.text_key, self.words_key = text_key, words_key

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], ["alignment", "segments"]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], ["segments"]

    def process(self, task: AudioTask) -> AudioTask:
        segments = [dict(one) for one in task.data.get("segments") or ()]
        owned: list[list[Mapping[str, Any]]] = [[] for _ in segments]
        for word in task.data.get("alignment") or ():
            middle = (word["start"] + word["end"]) / 2
            if segments:
                nearest = min(range(len(segments)), key=lambda at: _distance(segments[at], middle))
                owned[nearest].append(word)
        for segment, words in zip(segments, owned, strict=True):
            segment[self.words_key] = [dict(word) for word in words]
            segment[self.text_key] = " ".join(word["word"] for word in words)
        task.data["segments"] = segments
        return task


def _distance(segment: Mapping[str, Any], moment: float) -> float:
    return float(max(segment["start"] - moment, moment - segment["end"], 0.0))


class PrepareModuleSegmentsStage(ProcessingStage[AudioTask, AudioTask]):
    """Makes new `segments` of the words of the old ones.

    For "tts" they are of one speaker and without a pause of more than `max_pause` seconds; for "asr" speakers may
    follow each other. A segment has at most `max_duration` seconds, and ends where a word ends with one of
    `terminal_punct_marks`, if there is one after `full_utterance_ratio` of the smallest duration; with
    `punctuation_split_only`, only there. Segments of less than `min_duration` seconds are left out.
    """

    name = "prepare_module_segments"

    def __init__(
        self,
        module: str = "tts",
        min_duration: float = 5.0,
        max_duration: float = 20.0,
        max_pause: float = 2.0,
        text_key: str = TEXT,
        words_key: str = "words",
        terminal_punct_marks: str = ".!?。？？！。",
        full_utterance_ratio: float = 1.0,
        punctuation_split_only: bool = False,
    ) -> None:
        super().__init__()
        if module not in ("tts", "asr"):
            raise ValueError(f"{self.name}: module is {module!r}, must be 'tts' or 'asr'")
        if not 0 <= min_duration < max_duration or max_pause < 0:
            raise ValueError(
                f"{self.name}: min_duration={min_duration} must be below max_duration={max_duration}, and "
                f"max_pause={max_pause} 0 or more"
            )
        self.module, self.min_duration, self.max_duration, self.max_pause = (
            module,
            min_duration,
            max_duration,
            max_pause,
        )
        self.text_key, self.words_key, self.terminal_punct_marks = text_key, words_key, terminal_punct_marks
        self.full_utterance_ratio, self.punctuation_split_only = full_utterance_ratio, punctuation_split_only

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], ["segments"]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], ["segments"]

    def process(self, task: AudioTask) -> AudioTask:
        words = [
            {**word, "speaker": segment.get("speaker")}
            for segment in task.data.get("segments") or ()
            for word in segment.get(self.words_key) or ()
        ]
        words.sort(key=lambda word: (word["start"], word["end"]))
        found = [self._segment(part) for run in self._runs(words) for part in self._parts(run)]
        task.data["segments"] = [one for one in found if one["end"] - one["start"] >= self.min_duration]
        return task

    def _runs(self, words: Words) -> Iterator[list[Mapping[str, Any]]]:
        """Words that may be in one segment."""
        run: list[Mapping[str, Any]] = []
        for word in words:
            if (
                run
                and self.module == "tts"
                and (word["speaker"] != run[-1]["speaker"] or word["start"] - run[-1]["end"] > self.max_pause)
            ):
                yield run
                run = []
            run.append(word)
        if run:
            yield run

    def _parts(self, words: Words) -> Iterator[Words]:
        """A run in parts that are not too long."""
        start = 0
        while start < len(words):
            first, last, sentence = words[start]["start"], start, None
            while last < len(words) and words[last]["end"] - first <= self.max_duration:
                ends = str(words[last]["word"]).endswith(tuple(self.terminal_punct_marks))
                if ends and words[last]["end"] - first >= self.min_duration * self.full_utterance_ratio:
                    sentence = last + 1
                last += 1
            end = sentence if sentence is not None and (self.punctuation_split_only or last < len(words)) else last
            if end > start and not (self.punctuation_split_only and sentence is None):
                yield words[start:end]
            start = max(end, start + 1)

    def _segment(self, words: Words) -> dict[str, Any]:
        speakers = list(dict.fromkeys(word["speaker"] for word in words if word["speaker"] is not None))
        made: dict[str, Any] = {"start": words[0]["start"], "end": words[-1]["end"]}
        if speakers:
            made["speaker"] = speakers[0] if self.module == "tts" else ",".join(map(str, speakers))
        made[self.text_key] = " ".join(str(word["word"]) for word in words)
        made[self.words_key] = [dict(word) for word in words]
        return made
