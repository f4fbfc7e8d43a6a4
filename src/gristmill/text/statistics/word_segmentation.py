"""Word segmentation of any script.

Where people write spaces, words are what `str.split` returns. Chinese, Japanese, Thai, Lao, Khmer and Burmese are
written without spaces, and are split by their script:

    Chinese   each ideograph
    Japanese  runs of kanji, of hiragana and of katakana
    others    written syllables: a consonant with its vowels and tones, in Burmese also a closing consonant

Gives up: dictionaries. The parts are smaller than dictionary words, but the same everywhere, which is enough for
counts, ratios and n-grams. Only filters with `lang="zh"` count the words of jieba's dictionary, as in NeMo Curator, at
about 0.5 MB/s. Without jieba they raise, so that a machine that lacks it does not give other numbers.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from functools import cache

from gristmill.core.errors import MissingDependencyError, require

_HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HIRAGANA, _KATAKANA = "\u3041-\u309f", "\u30a1-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_THAI, _LAO, _KHMER, _BURMESE = (
    "\u0e01-\u0e3a\u0e40-\u0e4e",
    "\u0e81-\u0ece",
    "\u1780-\u17d3\u17dc\u17dd",
    "\u1000-\u109f",
)
_UNSPACED = _HAN + _HIRAGANA + _KATAKANA + _THAI + _LAO + _KHMER + _BURMESE

_ANY = re.compile(f"[{_UNSPACED}]")
_RUNS = re.compile(f"[{_UNSPACED}]+|[^{_UNSPACED}]+")
_OTHERS = (
    f"[{_KATAKANA}]+|[{_HIRAGANA}]+"
    "|[\u0e40-\u0e44]?[\u0e01-\u0e2e][\u0e30-\u0e3a\u0e45-\u0e4e]*"  # Thai
    "|[\u0ec0-\u0ec4]?[\u0e81-\u0eae][\u0eb0-\u0ebd\u0ec8-\u0ece]*"  # Lao
    "|[\u1780-\u17b3](?:\u17d2[\u1780-\u17b3]|[\u17b4-\u17d1\u17d3\u17dd])*"  # Khmer
    # Burmese: up to the next consonant that is neither stacked below this one nor silenced (asat)
    "|[\u1000-\u102a\u103f\u1050-\u1055](?:\u1039[\u1000-\u1021]|[\u1000-\u1021](?=\u103a|\u1037\u103a)"
    "|[\u102b-\u1038\u103a-\u103e\u1056-\u109d])*"
    f"|[{_UNSPACED}]"
)
_CHINESE = re.compile(f"[{_HAN}]|{_OTHERS}")
_JAPANESE = re.compile(f"[{_HAN}]+|{_OTHERS}")
_KANA = re.compile(f"[{_HIRAGANA}{_KATAKANA}]")


LANGUAGES_WITHOUT_SPACES = frozenset({"ja", "jpn", "km", "khm", "lao", "lo", "my", "mya", "th", "tha", "zh", "zho"})
"""Codes of the languages that are written without spaces between words."""


def is_written_without_spaces(lang: str) -> bool:
    """Whether a language is written without spaces. Its code may include a script or country, as in `zh_Hans`."""
    return re.split("[-_]", lang)[0] in LANGUAGES_WITHOUT_SPACES


def has_unspaced(text: str) -> bool:
    """Whether some of a text is in a script that is written without spaces."""
    return not text.isascii() and _ANY.search(text) is not None


def split_words(text: str, lang: str | None = None) -> list[str]:
    """The words of a text. `lang` ("ja", "zh") decides how ideographs are split; None: as Japanese if there is kana.

    Punctuation between words without spaces is left out. In scripts with spaces, words are what `str.split` returns.
    """
    if not has_unspaced(text):
        return text.split()
    japanese = lang in ("ja", "jpn") or (lang is None and _KANA.search(text) is not None)
    parts = _JAPANESE if japanese else _CHINESE
    words: list[str] = []
    for piece in text.split():
        if not _ANY.search(piece):
            words.append(piece)
            continue
        parts_of_piece = [
            word for run in _RUNS.findall(piece) for word in (parts.findall(run) if _ANY.match(run) else [run])
        ]
        words += [word for word in parts_of_piece if any(map(str.isalnum, word))]
    return words


DICTIONARY_LANGUAGE = "zh"


def dictionary_words(text: str) -> list[str]:
    """The Chinese words of a text, punctuation included, by jieba's dictionary. White space is no word."""
    return [word for word in _jieba()(text) if not word.isspace()]


@cache
def _jieba() -> Callable[[str], Iterable[str]]:
    try:
        with warnings.catch_warnings():  # of the escapes in its patterns, each time Python compiles it
            warnings.simplefilter("ignore")
            jieba = require("jieba", "zh", "lang='zh', Chinese words by dictionary as in NeMo Curator,")
    except MissingDependencyError as error:
        raise MissingDependencyError(f"{error}, or write lang='zho', which takes each ideograph for a word") from error
    tokenizer = jieba.Tokenizer()
    # What `initialize` does, without its cache: a file in the temporary directory that anyone might have put there.
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    cut: Callable[[str], Iterable[str]] = tokenizer.cut
    return cut


def check_dictionary(lang: str) -> None:
    """Raise if the words of a language need a dictionary that is not installed."""
    if lang == DICTIONARY_LANGUAGE:
        _jieba()
