"""AlignTranscriptStage: when each word of a transcript is said, by the times of the words that a recogniser heard.

What is given up: an acoustic model of its own. Words that were recognised have their times; the others share the time
between their neighbours, by their length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gristmill.audio.batch import DURATION, OFFSET, TEXT, AudioBatch
from gristmill.audio.transcripts.error_rates import plain_words, words_of
from gristmill.audio.transcripts.transcript_flags import nested, text_values, values_of
from gristmill.core.errors import require
from gristmill.core.stage import Columns, ProcessingStage


class HeardWord(NamedTuple):
    """A word that was recognised, and when: seconds of the file."""

    word: str
    start: float
    end: float


class AlignTranscriptStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Adds `alignment_key`: a list of word, start and end, in seconds of the file, for the words of `text_key`.

    `words_key` is a column with the words that were heard and their times, or one with a list `words`, as `ASRStage`
    writes with `extras_key` and an adapter that has `word_timestamps=True`. Each word says in `heard` whether it was
    recognised. `match_key` is the share of them. Rows in which nothing was heard have an empty list.
    """

    def __init__(
        self,
        text_key: str = TEXT,
        words_key: str = "asr",
        alignment_key: str = "alignment",
        match_key: str = "alignment_match",
    ) -> None:
        super().__init__()
        self.text_key, self.words_key = text_key, words_key
        self.alignment_key, self.match_key = alignment_key, match_key

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_key, self.words_key]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.alignment_key, self.match_key]

    def process(self, task: AudioBatch) -> AudioBatch:
        texts = text_values(self.name, task, self.text_key)
        begins, lengths = values_of(task, OFFSET), values_of(task, DURATION)
        made = []
        for text, heard, begin, length in zip(texts, values_of(task, self.words_key), begins, lengths, strict=True):
            start = float(begin or 0.0)
            words = [HeardWord(one["word"], one["start"], one["end"]) for one in _list_of(heard)]
            end = start + float(length) if length is not None else max((word.end for word in words), default=start)
            made.append(align_words(words_of(text), words, start, end))
        shares = [sum(word["heard"] for word in one) / len(one) if one else None for one in made]
        task = task.with_column(self.alignment_key, nested(made))
        return task.with_column(self.match_key, _numbers(shares))


def _list_of(heard: Any) -> Sequence[Mapping[str, Any]]:
    return (heard.get("words") or ()) if isinstance(heard, Mapping) else heard or ()


def _numbers(values: Sequence[float | None]) -> Any:
    import pyarrow as pa

    return pa.array(values, pa.float64())


def align_words(expected: Sequence[str], heard: Sequence[HeardWord], start: float, end: float) -> list[dict[str, Any]]:
    """The words of a transcript that is said between `start` and `end`, with their times."""
    if not expected or not heard:
        return []
    matching = require("rapidfuzz.distance.Levenshtein", "audio", "aligning transcripts")
    plain = [plain_words(word) or word for word in expected]
    blocks = matching.opcodes(plain, [plain_words(one.word) or one.word for one in heard])
    times: list[tuple[float, float] | None] = [None] * len(expected)
    for block in blocks:
        if block.tag == "equal":
            for at in range(block.src_end - block.src_start):
                one = heard[block.dest_start + at]
                times[block.src_start + at] = one.start, one.end
    known = [time is not None for time in times]
    _fill(times, expected, start, end)
    return [
        {"word": word, "start": round(time[0], 3), "end": round(time[1], 3), "heard": was_heard}
        for word, time, was_heard in zip(expected, times, known, strict=True)
        if time is not None
    ]


def _fill(times: list[tuple[float, float] | None], words: Sequence[str], start: float, end: float) -> None:
    """Gives words without times what is left between those that have one, by their number of characters."""
    at = 0
    while at < len(times):
        if times[at] is not None:
            at += 1
            continue
        last = at
        while last < len(times) and times[last] is None:
            last += 1
        before = times[at - 1] if at else None
        after = times[last] if last < len(times) else None
        first, until = before[1] if before else start, after[0] if after else end
        sizes = [len(word) for word in words[at:last]]
        step = max(until - first, 0.0) / sum(sizes)
        for number, size in enumerate(sizes):
            times[at + number] = first, first + size * step
            first += size * step
        at = last
