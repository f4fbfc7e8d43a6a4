"""What is wrong with a text that a model has made of another one, found without asking a model.

The rules look for what goes wrong most: no text, a refusal, a text that is much too short or too long, and one that
repeats itself. They are for texts that should say what their source says.
"""

from __future__ import annotations

import re
from collections import Counter

_REFUSAL = re.compile(
    r"^\W*(i'?m sorry|i am sorry|sorry,|i cannot|i can'?t|i'm unable|i am unable|as an ai\b|as a language model)", re.I
)
_OPENING = re.compile(
    r"^\s*(?:(?:sure|certainly|of course|okay|ok)\b[^\n]{0,80}[!:.]\s*)?"
    r"(?:here(?:'s| is| are)\b[^\n]{0,120}:|(?:rewritten|revised|paraphrased|improved)\b[^\n]{0,60}:)\s*",
    re.I,
)
_WORD = re.compile(r"\w+")
MIN_LOOP_WORDS = 40


def strip_opening(text: str) -> str:
    """The text without a phrase such as "Here is the rewritten text:", and without quotation marks around it."""
    stripped = text[found.end() :] if (found := _OPENING.match(text)) and found.end() < len(text) else text
    stripped = stripped.strip()
    if len(stripped) > 1 and stripped[0] == stripped[-1] == '"' and stripped.count('"') == 2:
        stripped = stripped[1:-1].strip()
    return stripped


def problem_with(
    text: str, source: str, min_length_ratio: float | None = None, max_length_ratio: float | None = None
) -> str | None:
    """What is wrong with a text; None if nothing is."""
    if not text.strip():
        return "it is empty"
    if _REFUSAL.match(text):
        return "the model refuses"
    ratio = len(text) / max(len(source), 1)
    if min_length_ratio is not None and ratio < min_length_ratio:
        return f"it has {ratio:.2f} of the source's length, less than {min_length_ratio:g}"
    if max_length_ratio is not None and ratio > max_length_ratio:
        return f"it has {ratio:.2f} of the source's length, more than {max_length_ratio:g}"
    return "it repeats itself" if repeats_itself(text) else None


def repeats_itself(text: str) -> bool:
    """Whether most of a text is the same few words again and again."""
    words = [word.lower() for word in _WORD.findall(text)]
    if len(words) < MIN_LOOP_WORDS:
        return False
    four = Counter(zip(words, words[1:], words[2:], words[3:], strict=False))
    return sum(count for count in four.values() if count > 2) > len(words) / 2
