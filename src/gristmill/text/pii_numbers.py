"""Finding e-mail addresses, IP addresses, credit card numbers and IBANs.

What has a checksum must pass it. What has none is found by its form, and by what it must not be: a file name, a
version, a time of day, a namespace. Each finder yields the places of what it has found, from left to right.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

Place = tuple[int, int]

# -- e-mail ------------------------------------------------------------------------------------------------

_LABEL = r"[^\W_](?:(?:[^\W_]|-){0,61}[^\W_])?"
_EMAIL = re.compile(
    rf"(?<![\w.+%-])[^\W_](?:[\w.+%'-]{{0,62}}[\w+-])?@(?:{_LABEL}\.){{1,8}}"
    r"(?:[^\W\d_]{2,24}|xn--[a-z0-9-]{2,59})(?![\w@]|-\w)"
)
_REMOTE = re.compile(r":[\w.~/-]+/[\w.-]+")  # git@host:owner/name
_FILES = frozenset({
    "avif", "bmp", "css", "gif", "html", "ico", "jpeg", "jpg", "js", "json", "map", "mjs", "mp3", "mp4", "pdf", "php",
    "png", "svg", "tgz", "tif", "tiff", "ts", "txt", "webm", "webp", "woff", "xml", "zip",
})  # fmt: skip


def find_emails(text: str) -> Iterator[Place]:
    at, end = text.find("@"), 0
    while at >= 0:  # most characters are far from one: only what is near is searched
        found = _EMAIL.search(text, max(end, at - 65), at + 600)
        at = text.find("@", at + 1)
        if found is None or found.start() < end:
            continue
        end = found.end()
        local, _, host = found[0].partition("@")
        remote = local == "git" and _REMOTE.match(text, found.end())
        if ".." in local or host.rpartition(".")[2].lower() in _FILES or remote:
            continue
        yield found.span()


# -- IP addresses ------------------------------------------------------------------------------------------

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = re.compile(rf"(?<![\w.+-])(?<!\d,)(?:{_OCTET}\.){{3}}{_OCTET}(?![\w+-]|\.\w|,\d)", re.ASCII)
_IPV6 = re.compile(
    rf"(?<![\w:.])(?:[0-9a-fA-F]{{0,4}}:){{2,7}}(?:(?:{_OCTET}\.){{3}}{_OCTET}|[0-9a-fA-F]{{1,4}})?(?![\w:])"
)
_VERSION = re.compile(
    r"(?:\b(?:v|ver|vers|versions?|release|rev|revision|build|firmware|driver|kernel|section|chapter|clause|figure|table"
    r"|oid|rule|paragraph)\b\.?|§|==|>=|<=|~=|\^)[ \t:=]*$",
    re.IGNORECASE,
)


def find_ipv4(text: str, private: bool = False) -> Iterator[Place]:
    """Addresses of the Internet; also those of private networks, loopback and documentation, if asked."""
    for found in _IPV4.finditer(text):
        start, end = found.span()
        if _VERSION.search(text[max(0, start - 16) : start]) or _is_heading(text, start, end):
            continue
        if private or ipaddress.IPv4Address(found[0]).is_global:
            yield start, end


def _is_heading(text: str, start: int, end: int) -> bool:
    """Whether it is a small number at the beginning of a line with text behind it, as in "2.1.3.4 Methods"."""
    line = text.rfind("\n", 0, start) + 1
    small = all(int(part) < 40 for part in text[start:end].split("."))
    return small and not text[line:start].strip("# \t") and bool(re.match(r"[ \t]+[^\W\d]", text[end : end + 8]))


def find_ipv6(text: str, private: bool = False) -> Iterator[Place]:
    for found in _IPV6.finditer(text):
        try:
            address = ipaddress.IPv6Address(found[0])
        except ValueError:  # a time of day, the address of a network card, a name in C++
            continue
        public = int(address) >> 125 == 1 and address.is_global  # 2000::/3 is what has been given out
        if public or (private and found[0].count(":") > 2):
            yield found.span()


# -- cards -------------------------------------------------------------------------------------------------

_CARD = re.compile(
    r"(?<![\w.,/+-])(?:\d{13,19}|(?:\d{4}(?P<gap>[ -])\d{4}(?P=gap)\d{4}(?P=gap)\d{1,4}(?:(?P=gap)\d{3})?"
    r"|\d{4}(?P<wide>[ -])\d{6}(?P=wide)\d{4,5})(?! \d))(?![\w/]|[.,-]\d)",
    re.ASCII,
)
_ISSUERS = (
    (re.compile(r"4"), (13, 16, 19)),  # Visa
    (re.compile(r"5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720"), (16,)),  # Mastercard
    (re.compile(r"3[47]"), (15,)),  # American Express
    (re.compile(r"6011|64[4-9]|65"), (16, 19)),  # Discover
    (re.compile(r"30[0-5]|36|3[89]"), (14, 16, 19)),  # Diners Club
    (re.compile(r"352[89]|35[3-8]"), (16, 19)),  # JCB
    (re.compile(r"62"), (16, 17, 18, 19)),  # UnionPay
)


def find_cards(text: str) -> Iterator[Place]:
    for found in _CARD.finditer(text):
        digits = re.sub(r"[ -]", "", found[0])
        issued = any(prefix.match(digits) and len(digits) in lengths for prefix, lengths in _ISSUERS)
        if issued and passes_luhn(digits) and len(set(digits[:-1])) > 1:
            yield found.span()


def passes_luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of the others (ISO/IEC 7812)."""
    values = [int(digit) for digit in reversed(digits)]
    doubled = (value * 2 - 9 * (value > 4) for value in values[1::2])
    return (sum(values[::2]) + sum(doubled)) % 10 == 0


# -- IBAN --------------------------------------------------------------------------------------------------

_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BR": 29, "BY": 28,
    "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18,
    "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22,
    "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20,
    "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MR": 27, "MT": 31, "MU": 30, "NL": 18,
    "NO": 15, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "SA": 24, "SC": 31, "SE": 24,
    "SI": 19, "SK": 24, "SM": 27, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20,
}  # fmt: skip
"""How many characters an IBAN has in each country."""

_IBAN = re.compile(r"(?<![A-Za-z0-9])([A-Z]{2})\d\d(?= ?[A-Z0-9])")


def find_ibans(text: str) -> Iterator[Place]:
    for found in _IBAN.finditer(text):
        length = _LENGTHS.get(found[1])
        if length is None:
            continue
        groups, rest = divmod(length - 4, 4)
        form = rf"[A-Z0-9]{{4}}(?: ?[A-Z0-9]{{4}}){{{groups}}}" + (rf" ?[A-Z0-9]{{{rest}}}" if rest else "")
        whole = re.compile(form + r"(?![A-Za-z0-9])").match(text, found.start())
        if whole and passes_mod97(whole[0].replace(" ", "")):
            yield whole.span()


def passes_mod97(iban: str) -> bool:
    """Whether the two check digits are right (ISO 7064)."""
    return int("".join(str(int(character, 36)) for character in iban[4:] + iban[:4])) % 97 == 1
