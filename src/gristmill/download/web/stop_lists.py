"""Stop lists: the most frequent words of a language, which distinguish running text from menus.

They are the lists that come with jusText, except Latin, and our own for Thai, Chinese and Japanese. Languages are
identified by code ("en"); the names that jusText and NeMo Curator use ("English", "ENGLISH") are accepted too.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.errors import did_you_mean, require

UNSPACED = frozenset(("th", "zh", "ja", "ko"))
"""Languages written without spaces between words, or whose stop words are not separate words (Korean)."""

# The names of jusText's lists. Languages that the language identification model (lid.176) does not know are omitted.
_NAMES = {
    "af": "Afrikaans", "sq": "Albanian", "ar": "Arabic", "an": "Aragonese", "hy": "Armenian", "ast": "Asturian",
    "az": "Azerbaijani", "eu": "Basque", "be": "Belarusian", "bn": "Bengali", "bpy": "Bishnupriya_Manipuri", "bs":
    "Bosnian", "br": "Breton", "bg": "Bulgarian", "ca": "Catalan", "ceb": "Cebuano", "cv": "Chuvash", "hr":
    "Croatian", "cs": "Czech", "da": "Danish", "nl": "Dutch", "en": "English", "eo": "Esperanto", "et": "Estonian",
    "fi": "Finnish", "fr": "French", "gl": "Galician", "ka": "Georgian", "de": "German", "el": "Greek", "gu":
    "Gujarati", "ht": "Haitian", "he": "Hebrew", "hi": "Hindi", "hu": "Hungarian", "is": "Icelandic", "io": "Ido",
    "id": "Indonesian", "ga": "Irish", "it": "Italian", "jv": "Javanese", "kn": "Kannada", "kk": "Kazakh", "ko":
    "Korean", "ku": "Kurdish", "ky": "Kyrgyz", "lv": "Latvian", "lt": "Lithuanian", "lmo": "Lombard", "nds":
    "Low_Saxon", "lb": "Luxembourgish", "mk": "Macedonian", "ms": "Malay", "ml": "Malayalam", "mt": "Maltese", "mr":
    "Marathi", "nap": "Neapolitan", "ne": "Nepali", "new": "Newar", "no": "Norwegian_Bokmal", "nn":
    "Norwegian_Nynorsk", "oc": "Occitan", "fa": "Persian", "pms": "Piedmontese", "pl": "Polish", "pt": "Portuguese",
    "qu": "Quechua", "ro": "Romanian", "ru": "Russian", "sr": "Serbian", "sh": "Serbo_Croatian", "scn": "Sicilian",
    "sk": "Slovak", "sl": "Slovenian", "es": "Spanish", "su": "Sundanese", "sw": "Swahili", "sv": "Swedish", "tl":
    "Tagalog", "ta": "Tamil", "te": "Telugu", "tr": "Turkish", "tk": "Turkmen", "uk": "Ukrainian", "ur": "Urdu",
    "uz": "Uzbek", "vi": "Vietnamese", "vo": "Volapuk", "wa": "Walloon", "war": "Waray_Waray", "cy": "Welsh", "fy":
    "West_Frisian", "pnb": "Western_Panjabi", "yo": "Yoruba", "th": "Thai", "zh": "Chinese", "ja": "Japanese",
}  # fmt: skip

_OTHER_NAMES = {
    "haitian_creole": "ht", "latin": "la", "norwegian": "no", "norwegian_n": "nn", "waray_philippines": "war"
}  # fmt: skip
"""The names that NeMo Curator, by way of CLD2, uses for languages that jusText calls otherwise."""

_OWN_LISTS = {
    "th": "ที่ และ ของ ใน การ เป็น มี ได้ ไม่ ว่า ให้ จะ กับ ก็ แต่ หรือ จาก โดย ความ นี้ นั้น ซึ่ง แล้ว "
    "คือ เมื่อ ถ้า เพราะ อยู่ ไป มา ต้อง ยัง กว่า ถึง ด้วย อีก ทั้ง เพื่อ ตาม คน เรา เขา ผม ฉัน อะไร "
    "ทำ",
    "zh": "的 了 是 在 不 和 有 我 他 她 它 这 那 也 就 都 而 及 与 着 或 一个 没有 我们 你们 他们 自己 之 "
    "于 以 为 从 到 对 被 把 让 因为 所以 如果 但是 虽然 可以 什么 怎么 這 們 個 來 為 與 對 說",
    "ja": "の に は を た が で て と し れ さ ある いる も する から な こと として い や など なっ ない "
    "この ため その あっ よう また もの という あり まで られ なる へ か だ これ によって により おり "
    "より による ず なり られる において です ます でした ました",
}  # fmt: skip


def language_code(language: str) -> str:
    """The code of a language given by code or by name."""
    lowered = language.strip().lower()
    if lowered in _NAMES:
        return lowered
    code_by_name = {**_OTHER_NAMES, **{name.lower(): code for code, name in _NAMES.items()}}
    name = lowered.replace(" ", "_").replace("-", "_")
    if name in code_by_name:
        return code_by_name[name]
    if 2 <= len(lowered) <= 3 and lowered.isascii() and lowered.isalpha():
        return lowered
    raise ValueError(
        f"stop_lists: {language!r} is not a language code or name.{did_you_mean(language, [*_NAMES.values()])} "
        "Use codes, as in {'en': {'the', 'and', ...}}"
    )


@cache
def stop_list(code: str) -> frozenset[str] | None:
    """The stop words of a language, or None if there is no list."""
    if code in _OWN_LISTS:
        return frozenset(_OWN_LISTS[code].split())
    if code not in _NAMES:
        return None
    return frozenset(_file(_NAMES[code]).read_text("utf-8").lower().split())


def _file(name: str) -> Path:
    """The file of jusText's list. jusText is located without importing it, because it imports lxml, which is slow."""
    spec = importlib.util.find_spec("justext")
    origin: str = (spec and spec.origin) or require("justext", "web", "stop lists").__file__
    return Path(origin).parent / "stoplists" / f"{name}.txt"


class StopLists(dict[str, frozenset[str]]):
    """Stop words by language code. A language is also found by its name: `lists["ENGLISH"]` is `lists["en"]`."""

    def __missing__(self, language: str) -> frozenset[str]:
        code = _code_or_none(language)
        if code is None or code == language:
            raise KeyError(language)
        return self[code]

    def __contains__(self, language: object) -> bool:
        return super().__contains__(language) or super().__contains__(_code_or_none(language))

    def get(self, language: str, default: Any = None) -> Any:
        try:
            return self[language]
        except KeyError:
            return default


def _code_or_none(language: object) -> str | None:
    try:
        return language_code(language) if isinstance(language, str) else None
    except ValueError:
        return None


def get_stop_list_dict(languages: Iterable[str] | None = None) -> StopLists:
    """Stop words by language: of the given languages, or of all that have a list."""
    codes = list(_NAMES) if languages is None else [language_code(language) for language in languages]
    return StopLists({code: words for code in codes if (words := stop_list(code))})


def parse_stop_lists(given: Mapping[str, Iterable[str]] | None) -> dict[str, frozenset[str]] | None:
    """The stop lists given by the user, by language code."""
    if given is None:
        return None
    return {language_code(language): frozenset(word.lower() for word in words) for language, words in given.items()}


def count_stop_words(words: frozenset[str], text: str) -> tuple[int, int]:
    """The number of stop words in a text, and of all words."""
    text_words = text.lower().split()
    return sum(map(words.__contains__, text_words)), len(text_words)


@lru_cache(256)
def stop_word_counter(words: frozenset[str]) -> Callable[[str], tuple[int, int]]:
    """`count_stop_words` for these words, in C if the kernels are built (`kernels/stop_words.c`)."""
    if kernels is None:
        return partial(count_stop_words, words)
    return partial(kernels.stop_words, kernels.stop_table(words), words)
