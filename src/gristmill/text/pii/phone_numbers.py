"""Finding telephone numbers by country.

With a country code, as in `+49 30 901820`, a number of any country in the table is recognised by its length. Without
one, it must belong to one of the given countries and be written the way people write it there, as `(212) 555-0123`:
bare digits may as well be an id, unless a word such as "tel." precedes them.

Gives up: formats that are not in the table, short numbers, and extensions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.text.pii.identifiers import TextSpan

_GAP = r"[ .\-\u00a0\u2011\u2013]"
_BEFORE = r"(?<![\w+#=$€£¥&/.,:-])(?<![\d)] )"
_AFTER = rf"(?!\w|{_GAP}\d|[/:%]\w|,\d)"


@dataclass(frozen=True)
class PhoneFormat:
    """The numbers of a country: its calling `code`, a pattern of the `digits`, and the `forms` of writing them."""

    code: str
    digits: str
    forms: tuple[str, ...]
    trunk: str = "0"


def _groups(*sizes: str) -> str:
    return _GAP.join(rf"\d{{{size}}}" for size in sizes)


_NORTH_AMERICA = PhoneFormat(
    "1",
    r"[2-9]\d\d[2-9]\d{6}",
    (rf"(?:1{_GAP})?(?:\([2-9]\d\d\) ?|[2-9]\d\d(?P<gap>{_GAP}))[2-9]\d\d(?(gap)(?P=gap)|{_GAP})\d{{4}}",),
    "1",
)

PHONE_FORMATS = {
    "AT": PhoneFormat("43", r"[1-9]\d{5,12}", (rf"0[1-9]\d{{0,3}}[ /]+(?:{_groups('3,4', '2,5')}|\d{{5,8}})",)),
    "AU": PhoneFormat(
        "61", r"[23478]\d{8}", (rf"(?:\(0[2378]\) ?|0[2378]{_GAP}){_groups('4', '4')}", rf"04{_groups('2', '3', '3')}")
    ),
    "BE": PhoneFormat(
        "32", r"[1-9]\d{7,8}", (rf"04\d\d[ /]{_groups('2', '2', '2')}", rf"0[1-9]\d?[ /]{_groups('2,3', '2', '2')}")
    ),
    "BR": PhoneFormat("55", r"[1-9]\d(?:9\d{8}|[2-5]\d{7})", (r"\([1-9]\d\) ?(?:9\d{4}|[2-5]\d{3})[ -]\d{4}",)),
    "CA": _NORTH_AMERICA,
    "CH": PhoneFormat("41", r"[2-9]\d{8}", (rf"0[2-9]\d{_GAP}{_groups('3', '2', '2')}",)),
    "CN": PhoneFormat(
        "86", r"1[3-9]\d{9}|[2-9]\d{8,10}", (rf"1[3-9]{_groups('1', '4', '4')}", r"\(?0[1-9]\d{1,2}\)?[ -]\d{7,8}")
    ),
    "CZ": PhoneFormat("420", r"[2-79]\d{8}", (rf"[67]{_groups('2', '3', '3')}",), ""),
    "DE": PhoneFormat(
        "49",
        r"[1-9]\d{5,11}",
        (rf"\(?0[1-9]\d{{1,4}}\)?(?: ?/ ?|[ -])(?:{_groups('2,4', '2,4')}(?:{_GAP}\d{{2,4}})?|\d{{5,9}})",),
    ),
    "DK": PhoneFormat("45", r"[2-9]\d{7}", (), ""),
    "ES": PhoneFormat(
        "34", r"[6-9]\d{8}", (rf"[6-9]{_groups('2', '3', '3')}", rf"[6-9]{_groups('2', '2', '2', '2')}"), ""
    ),
    "FI": PhoneFormat("358", r"[1-9]\d{5,10}", (rf"0(?:4\d|50){_GAP}{_groups('3,4', '3,4')}",)),
    "FR": PhoneFormat("33", r"[1-9]\d{8}", (rf"0[1-9](?P<pair>{_GAP})\d\d(?:(?P=pair)\d\d){{3}}",)),
    "GB": PhoneFormat(
        "44",
        r"[1-357-9]\d{8,9}",
        (
            rf"\(?0(?:2\d|1\d1|11\d|3\d\d|8\d\d)\)?{_GAP}{_groups('3,4', '4')}",
            rf"\(?0[17]\d{{3}}\)?{_GAP}(?:\d{{5,6}}|{_groups('3', '3')})",
        ),
    ),
    "IE": PhoneFormat("353", r"[1-9]\d{6,8}", (rf"\(?0(?:1|[2-9]\d)\)?{_GAP}{_groups('3', '4')}",)),
    "IN": PhoneFormat("91", r"[1-9]\d{9}", (rf"0?[6-9]\d{{4}}{_GAP}\d{{5}}", r"\(?0[1-9]\d{1,3}\)?[ -]\d{6,8}")),
    "IT": PhoneFormat(
        "39",
        r"3\d{8,9}|0\d{5,10}",
        (rf"3\d\d[ /.-](?:\d{{6,7}}|{_groups('3', '3,4')}|{_groups('2', '2', '3')})", r"0\d{1,3}[ /-]\d{5,8}"),
        "",
    ),
    "JP": PhoneFormat("81", r"[1-9]\d{8,9}", (r"\(?0\d{1,4}\)?-\d{1,4}-\d{4}",)),
    "KR": PhoneFormat("82", r"[1-9]\d{7,9}", (r"0(?:1[016-9]|2|[3-6]\d)-\d{3,4}-\d{4}",)),
    "MX": PhoneFormat("52", r"[1-9]\d{9}", (rf"\(?[2-9]\d\)?{_GAP}{_groups('4', '4')}",), ""),
    "NL": PhoneFormat(
        "31",
        r"[1-9]\d{8}",
        (
            rf"06{_GAP}(?:\d{{8}}|{_groups('4', '4')}|{_groups('2', '2', '2', '2')})",
            rf"0[1-9]\d{{1,2}}{_GAP}(?:\d{{6,7}}|{_groups('3', '2', '2')})",
        ),
    ),
    "NO": PhoneFormat("47", r"[2-9]\d{7}", (), ""),
    "PL": PhoneFormat("48", r"[1-9]\d{8}", (rf"[4-8]{_groups('2', '3', '3')}",), ""),
    "PT": PhoneFormat("351", r"[239]\d{8}", (rf"[29]{_groups('2', '3', '3')}",), ""),
    "RU": PhoneFormat(
        "7", r"[3-9]\d{9}", (rf"8 ?(?:\(\d{{3}}\) ?|{_GAP}?\d{{3}}{_GAP}){_groups('3', '2', '2')}",), "8"
    ),
    "SE": PhoneFormat("46", r"[1-9]\d{6,9}", (r"0[1-9]\d{0,2}(?:-| - )\d{2,3}(?: \d{2,3}){1,2}",)),
    "TR": PhoneFormat("90", r"[2-5]\d{9}", (rf"\(?0[2-5]\d\d\)? {_groups('3', '2', '2')}",)),
    "UA": PhoneFormat("380", r"[3-9]\d{8}", (rf"\(?0[3-9]\d\)?{_GAP}{_groups('3', '2', '2')}",)),
    "US": _NORTH_AMERICA,
    "ZA": PhoneFormat("27", r"[1-8]\d{8}", (rf"\(?0[1-8]\d\)?{_GAP}{_groups('3', '4')}",)),
}
"""By ISO 3166 country code."""

_ABROAD = re.compile(
    rf"(?<![\w+])(?:\+|(?<!\d )00(?=[1-9])) ?(\d{{1,3}}(?:(?:{_GAP}|[()/]){{0,2}}\d){{6,13}})(?!\w|{_GAP}\d)", re.ASCII
)
_CALLED = re.compile(
    r"\b(?:tel(?:efon[eo]?|[eé]phone)?|phone|mobile?|mob|cell(?:phone)?|fax|whatsapp|handy|call|text|тел(?:ефон)?|電話|电话)"
    r"\b\.?(?: ?(?:no|nr|number|us|me))?\.? ?[:=]? {0,2}(?P<number>\(?\d[\d()]{5,14}\d)(?!\w|[./-]\d)",
    re.IGNORECASE,
)


_RUN = re.compile(r"[+(]?\d[-\d .()/\u00a0\u2011\u2013]{5,}\d", re.ASCII)


def find_phones(text: str, countries: Sequence[str]) -> Iterator[TextSpan]:
    """Numbers of any country in the table with country code, and of `countries` without."""
    formats = [PHONE_FORMATS[name] for name in dict.fromkeys(countries)]
    forms = [_compiled(form) for form in dict.fromkeys(form for one in formats for form in one.forms)]
    end = 0
    for run in _RUN.finditer(text):  # every number lies within a run of digits and separators
        for span in sorted(_in_run(text, run, formats, forms), key=lambda span: (span[0], -span[1])):
            if span[0] >= end:
                end = span[1]
                yield span


def _in_run(
    text: str, run: re.Match[str], formats: Sequence[PhoneFormat], forms: Sequence[re.Pattern[str]]
) -> set[TextSpan]:
    start, end = run.start(), run.end() + 3  # three more characters, for the lookaheads
    spans = {found.span() for found in _ABROAD.finditer(text, start, end) if _is_number(found[1])}
    for found in _CALLED.finditer(text, max(0, start - 24), end):
        digits = re.sub(r"\D", "", found["number"])
        if any(re.fullmatch(rf"(?:{one.trunk})?(?:{one.digits})", digits) for one in formats):
            spans.add(found.span("number"))
    return spans.union(*({found.span() for found in form.finditer(text, start, end)} for form in forms))


@cache
def _compiled(form: str) -> re.Pattern[str]:
    return re.compile(_BEFORE + f"(?:{form})" + _AFTER, re.ASCII)


def _is_number(written: str) -> bool:
    """Whether digits after a plus sign are a country code and a number of that country, with `(0)` between or not."""
    digits = re.sub(r"\D", "", written.replace("(0)", ""))
    return any(re.fullmatch(one.code + f"(?:{one.digits})", digits) for one in PHONE_FORMATS.values())
