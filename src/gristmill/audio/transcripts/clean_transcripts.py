"""Stages that clean transcripts.

RegexSubstitutionStage     replaces what matches regular expressions
NormaliseTranscriptStage   lower case, without punctuation
WhisperHallucinationStage  flags texts that show signs of having been made up
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import yaml

from gristmill.audio.batch import DURATION, TEXT, AudioBatch
from gristmill.audio.transcripts.error_rates import plain_words
from gristmill.audio.transcripts.hallucination_signs import PHRASES, HallucinationSigns
from gristmill.audio.transcripts.transcript_filters import PRED_TEXT
from gristmill.audio.transcripts.transcript_flags import HALLUCINATION, NOTES, SKIP_ME, noted, text_values, values_of
from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import InputError
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.io.storage.file_input import file_system


def _read_text(path: str) -> str:
    system, inner = file_system(path, {})
    with system.open(inner, "rb") as file:
        return str(file.read().decode("utf-8"))


class RegexSubstitutionStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Replaces what matches regular expressions, in order, and makes runs of white space one space.

    `rules` is a list of {"pattern": ..., "repl": ..., "count": ...}, and `regex_params_yaml` the path of a YAML file
    with such a list. Texts are given with a space at either end. Null stays null. A text of which nothing is left is
    flagged in `skip_me_key`; rows that are flagged already are left alone.
    """

    def __init__(
        self,
        regex_params_yaml: str | None = None,
        text_key: str = PRED_TEXT,
        output_text_key: str = TEXT,
        skip_me_key: str = SKIP_ME,
        rules: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        if (regex_params_yaml is None) == (rules is None):
            raise ValueError("RegexSubstitutionStage: give either rules or regex_params_yaml, a file of them")
        self.regex_params_yaml, self.rules = regex_params_yaml, rules
        self.text_key, self.output_text_key, self.skip_me_key = text_key, output_text_key, skip_me_key
        self._compiled = [] if rules is None else _compiled(rules, "rules")

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_key]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.output_text_key, self.skip_me_key]

    def setup(self, worker_metadata: Any = None) -> None:
        if self.regex_params_yaml is not None:
            place = self.regex_params_yaml
            try:
                self._compiled = _compiled(yaml.safe_load(_read_text(place)), place)
            except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
                raise InputError(f"{place}: rules cannot be read: {error}") from error

    def process(self, task: AudioBatch) -> AudioBatch:
        texts = text_values(self.name, task, self.text_key)
        flags = [flag or "" for flag in values_of(task, self.skip_me_key)]
        cleaned: list[str | None] = []
        for row, text in enumerate(texts):
            if flags[row] or text is None:
                cleaned.append(text)
                continue
            found = self._cleaned(text)
            cleaned.append(found)
            if not found and text.strip():
                flags[row] = "Empty after regex cleaning"
        task = task.with_column(self.output_text_key, make_array(cleaned, pa.string()))
        return task.with_column(self.skip_me_key, make_array(flags, pa.string()))

    def _cleaned(self, text: str) -> str:
        text = f" {text} "
        for pattern, replacement, count in self._compiled:
            text = pattern.sub(replacement, text, count=count)
        return " ".join(text.split())


def _compiled(rules: Any, place: str) -> list[tuple[re.Pattern[str], str, int]]:
    """Rules ready for use. Raises InputError with the place of one that is wrong."""
    if not isinstance(rules, list | tuple):
        raise InputError(f"{place}: {type(rules).__name__}, must be a list of rules with pattern and repl")
    found = []
    for number, rule in enumerate(rules, 1):
        where = f"{place}: rule {number}"
        if not isinstance(rule, Mapping) or not all(isinstance(rule.get(key), str) for key in ("pattern", "repl")):
            raise InputError(f"{where} is {rule!r}, must have pattern and repl, both text")
        count = rule.get("count", 0)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InputError(f"{where}: count is {count!r}, must be 0 (all) or more")
        try:
            pattern = re.compile(rule["pattern"])
            pattern.sub(rule["repl"], "")
        except (re.error, IndexError) as error:
            raise InputError(f"{where}: pattern {rule['pattern']!r}: {error}") from error
        found.append((pattern, rule["repl"], count))
    return found


class NormaliseTranscriptStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Makes texts lower case, and removes punctuation and symbols but apostrophes in words. Null stays null."""

    def __init__(self, text_key: str = TEXT, output_text_key: str | None = None) -> None:
        super().__init__()
        self.text_key, self.output_text_key = text_key, output_text_key

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_key]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.output_text_key or self.text_key]

    def process(self, task: AudioBatch) -> AudioBatch:
        texts = text_values(self.name, task, self.text_key)
        plain = [None if text is None else plain_words(text) for text in texts]
        return task.with_column(self.output_text_key or self.text_key, make_array(plain, pa.string()))


class WhisperHallucinationStage(ProcessingStage[AudioBatch, AudioBatch]):
    """Flags texts that show signs of having been made up.

    The flag in `skip_me_key` is `Hallucination:NAME`, and the signs are in the notes. `common_hall_file` is a text file
    with one phrase on each line; without it a few that are heard in every silence. Rows that are flagged already are
    left alone. With `overwrite` they are looked at again, and a flag of this kind is taken away from those that show
    no sign any more, with `recovery_value` as note.
    """

    def __init__(
        self,
        common_hall_file: str | None = None,
        unique_words_threshold: float = 0.4,
        long_word_threshold: int = 25,
        agglutinative_long_word_threshold: int = 35,
        long_word_rel_threshold: float = 3.0,
        max_char_rate: float = 40.0,
        *,
        language_key: str = "language",
        duration_key: str = DURATION,
        text_key: str = PRED_TEXT,
        skip_me_key: str = SKIP_ME,
        notes_key: str = NOTES,
        overwrite: bool = False,
        recovery_value: str = "",
    ) -> None:
        super().__init__()
        self.common_hall_file, self.unique_words_threshold = common_hall_file, unique_words_threshold
        self.long_word_threshold = long_word_threshold
        self.agglutinative_long_word_threshold = agglutinative_long_word_threshold
        self.long_word_rel_threshold, self.max_char_rate = long_word_rel_threshold, max_char_rate
        self.language_key, self.duration_key, self.text_key = language_key, duration_key, text_key
        self.skip_me_key, self.notes_key = skip_me_key, notes_key
        self.overwrite, self.recovery_value = overwrite, recovery_value
        self._signs = self._with_phrases(PHRASES)

    def _with_phrases(self, phrases: Sequence[str]) -> HallucinationSigns:
        return HallucinationSigns(
            self.unique_words_threshold,
            self.long_word_threshold,
            self.agglutinative_long_word_threshold,
            self.long_word_rel_threshold,
            self.max_char_rate,
            phrases,
        )

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_key]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.skip_me_key, self.notes_key]

    def setup(self, worker_metadata: Any = None) -> None:
        if self.common_hall_file is not None:
            try:
                lines = _read_text(self.common_hall_file).splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{self.common_hall_file}: phrases cannot be read: {error}") from error
            self._signs = self._with_phrases([line for line in lines if line.strip()])

    def process(self, task: AudioBatch) -> AudioBatch:
        texts = text_values(self.name, task, self.text_key)
        flags = [flag or "" for flag in values_of(task, self.skip_me_key)]
        seconds, languages = values_of(task, self.duration_key), values_of(task, self.language_key)
        remarks = []
        for row, text in enumerate(texts):
            flags[row], remark = self._judged(text, flags[row], seconds[row], languages[row])
            remarks.append(remark)
        notes = noted(values_of(task, self.notes_key), self.name, remarks)
        return task.with_column(self.skip_me_key, make_array(flags, pa.string())).with_column(self.notes_key, notes)

    def _judged(self, text: str | None, flag: str, seconds: float | None, language: str | None) -> tuple[str, str]:
        """The flag of a row, and the note."""
        if flag and not self.overwrite:
            return flag, "skipped (flagged)"
        if not text or not text.strip():
            return flag, "skipped (empty text)"
        of_this_kind = flag.startswith(HALLUCINATION)
        signs = self._signs.of(text, seconds, language)
        if signs:
            flag = f"{HALLUCINATION}:{self.name}" if of_this_kind or not flag else flag
            return flag, f"hallucination ({', '.join(signs)})"
        if of_this_kind:
            return "", self.recovery_value.lower() or "recovered"
        return flag, "passed"
