"""Stages that write transcripts in one way: abbreviations, numbers, Chinese characters. They read and write columns.

AbbreviationConcatStage         "the U S A" becomes "the USA"
InverseTextNormalizationStage   "twenty three" becomes "23"
ChineseConversionStage          traditional characters become simplified ones
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from gristmill.audio.batch import TEXT, AudioBatch
from gristmill.audio.transcripts.transcript_flags import NOTES, SKIP_ME, nested, noted, text_values, values_of
from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import MissingDependencyError, require
from gristmill.core.stage import Columns, ProcessingStage

_LETTERS = re.compile(r"(?<![\w'])(?:[A-Z]\.? ){1,}[A-Z](?:\.(?= [A-Za-z]|$))?(?![\w'.])")


def concat_abbreviations(text: str) -> tuple[str, list[str]]:
    """The text with single capital letters that follow each other as one word, and these words. An I or A that may be
    a word of its own stays out of it at either end."""
    made: list[str] = []

    def joined(found: re.Match[str]) -> str:
        letters = re.findall("[A-Z]", found[0])
        before = after = ""
        if len(letters) > 1 and letters[0] in "IA" and (len(letters) == 2 or not found.start()):
            before, letters = f"{letters[0]} ", letters[1:]
        if len(letters) > 1 and letters[-1] == "I":
            after, letters = " I", letters[:-1]
        if len(letters) > 1:
            made.append("".join(letters))
        return f"{before}{''.join(letters)}{after}"

    return _LETTERS.sub(joined, text), made


class AbbreviationConcatStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Joins letters that were spelled, "N A S A", to one word, in `output_text_key`. Flagged rows stay as they are.

    What was joined is noted in `notes_key`. Only texts in languages of the Latin alphabet have such letters.
    """

    def __init__(
        self,
        text_key: str = TEXT,
        output_text_key: str = TEXT,
        skip_me_key: str = SKIP_ME,
        notes_key: str = NOTES,
    ) -> None:
        super().__init__()
        self.text_key, self.output_text_key = text_key, output_text_key
        self.skip_me_key, self.notes_key = skip_me_key, notes_key

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_key]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.output_text_key, self.notes_key]

    def process(self, task: AudioBatch) -> AudioBatch:
        texts, flags = text_values(self.name, task, self.text_key), values_of(task, self.skip_me_key)
        found = [
            (text, []) if flag or not text else concat_abbreviations(text)
            for text, flag in zip(texts, flags, strict=True)
        ]
        remarks = [" ".join(words) or "no abbreviations" for _, words in found]
        notes = noted(values_of(task, self.notes_key), self.name, remarks)
        task = task.with_column(self.output_text_key, make_array([text for text, _ in found], pa.string()))
        return task.with_column(self.notes_key, notes)


class _RewritingStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Base: another text of each row, or of each of its `segments`."""

    suffix: str
    """What the name of the new column, or key of segments, ends with."""

    def __init__(self, text_key: str) -> None:
        super().__init__()
        self.text_key = text_key

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def rewrite(self) -> Callable[[str], str]:
        """What makes the new text."""
        raise NotImplementedError

    def process(self, task: AudioBatch) -> AudioBatch:
        rewrite, key = self.rewrite(), f"{self.text_key}{self.suffix}"
        if "segments" not in task.get_columns():
            texts = text_values(self.name, task, self.text_key)
            return task.with_column(key, make_array([text and rewrite(text) for text in texts], pa.string()))

        def of_segment(segment: Any) -> Any:
            text = segment.get(self.text_key) if isinstance(segment, dict) else None
            return {**segment, key: rewrite(text)} if isinstance(text, str) else segment

        rows: Sequence[Any] = values_of(task, "segments")
        return task.with_column("segments", nested([row and [of_segment(one) for one in row] for row in rows]))


class ChineseConversionStage(_RewritingStage):
    """Adds texts in other Chinese characters, as `TEXT_KEY_simplified`: `convert_type` "t2s" makes simplified of
    traditional ones, "s2t" the reverse. Needs the package `opencc`. Rows with `segments` get it in each of them."""

    suffix = "_simplified"

    def __init__(self, text_key: str = TEXT, convert_type: str = "t2s") -> None:
        super().__init__(text_key)
        self.convert_type = convert_type

    def check(self) -> None:
        self.rewrite()

    def rewrite(self) -> Callable[[str], str]:
        try:
            opencc = require("opencc", "audio", "converting Chinese characters")
        except MissingDependencyError as error:
            raise MissingDependencyError(
                "converting Chinese characters needs opencc, which is not installed: pip install "
                "opencc-python-reimplemented"
            ) from error
        convert: Callable[[str], str] = opencc.OpenCC(self.convert_type).convert
        return convert


class InverseTextNormalizationStage(_RewritingStage):
    """Adds texts with numbers in digits, as `TEXT_KEY_ITN`: "twenty three" as "23", also in `segments`.

    English cardinal numbers of two words or more, or above ten, are written in digits, with "point" as a dot.
    For other languages, dates and currencies give a `normalizer`, which is called with each text.
    """

    suffix = "_ITN"

    def __init__(
        self, language: str = "en", text_key: str = TEXT, normalizer: Callable[[str], str] | None = None
    ) -> None:
        super().__init__(text_key)
        if language != "en" and normalizer is None:
            raise ValueError(f"InverseTextNormalizationStage: for language={language!r}, give a normalizer")
        self.language, self.normalizer = language, normalizer

    def rewrite(self) -> Callable[[str], str]:
        return self.normalizer or english_numbers


_UNITS = {
    word: number
    for number, word in enumerate(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        ]
    )
}
_TENS = {
    word: 10 * number
    for number, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2)
}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_NUMBER_WORD = "|".join([*_TENS, *sorted(_UNITS, key=len, reverse=True), "hundred", *_SCALES])
_NUMBER = re.compile(
    rf"\b(?:{_NUMBER_WORD})(?:(?:[ -]| and )(?:{_NUMBER_WORD}))*(?: point(?: (?:{'|'.join(_UNITS)}))+)?\b",
    re.IGNORECASE,
)
_LARGEST_WORD = 10


def english_numbers(text: str) -> str:
    """The text with numbers in digits, where they are of several words or above ten."""
    return _NUMBER.sub(lambda found: _digits(found[0]), text)


def _digits(phrase: str) -> str:
    """A phrase of number words in digits; unchanged where it is one small number, or no number at all."""
    whole, _, decimals = phrase.lower().partition(" point ")
    words = [word for word in re.split(r"[ -]", whole) if word != "and"]
    value = _value(words)
    if value is None or (len(words) == 1 and value <= _LARGEST_WORD and not decimals):
        return phrase
    return f"{value}.{''.join(str(_UNITS[word]) for word in decimals.split())}" if decimals else str(value)


def _value(words: Sequence[str]) -> int | None:
    """What number words stand for; None if they do not form one number, as in "one two three"."""
    total, group, last = 0, 0, 10**15
    room = 1000  # what may still be added to the group
    for word in words:
        if word in _SCALES:
            if not group or _SCALES[word] >= last:
                return None
            total, group, last, room = total + group * _SCALES[word], 0, _SCALES[word], 1000
        elif word == "hundred":
            if not 0 < group < 10 or (room <= 100 and group >= 10):
                return None
            group, room = group * 100, 100
        else:
            value = _TENS.get(word, _UNITS.get(word, 0))
            if value >= room or (group and not value):
                return None
            group, room = group + value, 10 if word in _TENS else 1
    return total + group
