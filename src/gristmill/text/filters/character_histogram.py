"""HistogramFilter: the share of a document's characters that belong to its language.

It finds text in another script, mojibake and rows of symbols. Gives up: telling languages of one alphabet apart.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import InputError
from gristmill.core.run.row_progress import in_turn
from gristmill.samples.argument_checks import check_ratio
from gristmill.text.document_filter import DocumentFilter
from gristmill.text.text_columns import Texts, as_array

_MARKS = " \t\n\r.,;:!?'\"()-–—‘’“”…0123456789%/&"
_LATIN = "abcdefghijklmnopqrstuvwxyz"
_RUSSIAN = "абвгдеёжзийклмнопрстуфхцчшщъыьэюя"
_KANA = "".join(map(chr, [*range(0x3041, 0x3097), *range(0x30A1, 0x30FB)])) + "ー々"
_HAN = "".join(map(chr, range(0x4E00, 0xA000)))
_CJK = "、。，．！？：；「」『』（）《》【】・～　"

ALPHABETS = {
    "af": _LATIN + "áéèêëíîïóôúû",
    "ar": "ءآأؤإئابةتثجحخدذرزسشصضطظعغفقكلمنهوىي" + "ًٌٍَُِّْ" + "،؛؟٠١٢٣٤٥٦٧٨٩",
    "bg": "абвгдежзийклмнопрстуфхцчшщъьюя",
    "ca": _LATIN + "àçèéíïòóúü·",
    "cs": _LATIN + "áčďéěíňóřšťúůýž",
    "da": _LATIN + "æøåé",
    "de": _LATIN + "äöüß„",
    "el": "αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώϊϋΐΰ·",
    "en": _LATIN,
    "es": _LATIN + "áéíñóúü¡¿«»",
    "et": _LATIN + "äõöüšž",
    "fa": "ءآأؤئابپتثجچحخدذرزژسشصضطظعغفقکگلمنهوی" + "\u200c،؛؟۰۱۲۳۴۵۶۷۸۹",
    "fi": _LATIN + "äöåšž",
    "fr": _LATIN + "àâæçèéêëîïôœùûüÿ«»\u00a0\u202f",
    "he": "אבגדהוזחטיךכלםמןנסעףפץצקרשת״׳",
    "hi": "".join(map(chr, range(0x0900, 0x0980))),
    "hr": _LATIN + "čćđšž",
    "hu": _LATIN + "áéíóöőúüű„",
    "id": _LATIN,
    "it": _LATIN + "àèéìíòóùú«»",
    "ja": _KANA + _HAN + _CJK + _LATIN,
    "ko": "".join(map(chr, [*range(0xAC00, 0xD7A4), *range(0x3131, 0x3164)])) + _CJK,
    "lt": _LATIN + "ąčęėįšųūž„",
    "lv": _LATIN + "āčēģīķļņšūž",
    "nl": _LATIN + "áéèëíïóöúü",
    "no": _LATIN + "æøåéèêóòâôü«»",
    "pl": _LATIN + "ąćęłńóśźż„",
    "pt": _LATIN + "àáâãçéêíóôõúü",
    "ro": _LATIN + "ăâîșțşţ„",
    "ru": _RUSSIAN + "«»№",
    "sk": _LATIN + "áäčďéíĺľňóôŕšťúýž",
    "sl": _LATIN + "čšž",
    "sv": _LATIN + "åäöé",
    "th": "".join(map(chr, [*range(0x0E01, 0x0E3B), *range(0x0E3F, 0x0E5C)])),
    "tr": _LATIN + "çğıöşüâîûİ",
    "uk": "абвгґдеєжзиіїйклмнопрстуфхцчшщьюя«»’",
    "vi": _LATIN + "àáâãèéêìíòóôõùúýăđĩũơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ",
    "zh": _HAN + _CJK + "％“”‘’—…",
}
"""The lower-case letters and special punctuation of each language; capitals, digits and `_MARKS` are added."""


class HistogramFilter(DocumentFilter):
    """The share of characters that belong to a language; keeps documents with more than `threshold`.

    White space at the ends does not count; a blank document has 0.0. The characters of 38 languages come with
    Gristmill. To use others, such as the histograms of NLLB, give their directory as `cache_dir`: it holds a file named
    after the language, with one character per line, the most frequent first. Characters after the line of
    `threshold_char` are too rare to count. Nothing is downloaded.
    """

    score_type = pa.float64()
    _not_pickled = ("_characters",)
    threshold: float  # type: ignore[assignment]  # a public parameter, which hides the method of the same name

    def __init__(
        self, lang: str = "en", threshold: float = 0.8, cache_dir: str = "", threshold_char: str = "]"
    ) -> None:
        check_ratio("HistogramFilter", "threshold", threshold)
        if not cache_dir and lang not in ALPHABETS:
            raise ValueError(
                f"HistogramFilter: there is no alphabet for lang={lang!r}. Give cache_dir=..., a directory with a "
                f"file {lang!r} of one character per line, or one of: {', '.join(ALPHABETS)}"
            )
        self.lang, self.cache_dir, self.threshold_char = lang, cache_dir, threshold_char
        self.threshold = threshold

    def check(self) -> None:
        if self.cache_dir and not self._file().is_file():
            raise InputError(
                f"HistogramFilter: the file {self._file()} with the characters of {self.lang!r} does not exist"
            )

    def _file(self) -> Path:
        return Path(self.cache_dir).expanduser() / self.lang

    @cached_property
    def _characters(self) -> dict[int, None]:
        if self.cache_dir:
            self.check()
            lines = self._file().read_text(encoding="utf-8").split("\n")
            firsts = [line[0] for line in lines if line]
            end = firsts.index(self.threshold_char) if self.threshold_char in firsts else len(firsts)
            return {ord(character): None for character in firsts[:end]}
        letters = ALPHABETS[self.lang]
        return {ord(character): None for character in letters + letters.upper() + _MARKS if len(character) == 1}

    def score_document(self, text: str) -> float:
        text = text.strip()
        return 1 - len(text.translate(self._characters)) / len(text) if text else 0.0

    def score_batch(self, texts: Texts) -> pa.Array:
        return make_array(
            [self.score_document(text or "") for text in in_turn(as_array(texts).to_pylist())], pa.float64()
        )

    def keep_document(self, score: float) -> bool:
        return score > self.threshold
