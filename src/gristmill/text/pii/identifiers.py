"""Finding e-mail addresses, IP addresses, credit card numbers and IBANs.

Values with a checksum must pass it. The others are recognised by their form, and excluded if they may be a file name, a
version, a time of day or a namespace. Each function yields spans from left to right. Repetitions in patterns are
bounded, or cannot overlap, so that the time is linear in the length of any text.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TextSpan = tuple[int, int]

# -- e-mail ------------------------------------------------------------------------------------------------

_LATIN = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff"
_MARKS = "_.+%'-"


def _address(letter: str, other: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns of the part before the @, to be matched backwards, and of the part after it."""
    label = rf"{other}(?:(?:{other}|-){{0,61}}{other})?"
    top = rf"(?:{letter}{{2,24}}|xn--[a-z0-9-]{{2,59}})"
    return re.compile(rf"(?:{other}|[{_MARKS}])*"), re.compile(rf"(?:{label}\.){{1,8}}{top}(?!{other}|@|-{other})")


_ANY = _address(r"[^\W\d_]", r"[^\W_]")
_OF_LATIN = _address(f"[{_LATIN}]", f"[{_LATIN}0-9]")
_UNSPACED = frozenset({"CJK", "HANGUL", "HIRAGANA", "KATAKANA", "KHMER", "LAO", "MYANMAR", "THAI"})
_REMOTE = re.compile(r":[\w.~/-]+/[\w.-]+")  # git@host:owner/name
_LOGIN = re.compile(r"://[^\s/@]*:[^\s/@]*\Z")  # scheme://user:password@host
_FILES = frozenset({
    "avif", "bmp", "css", "gif", "html", "ico", "jpeg", "jpg", "js", "json", "map", "mjs", "mp3", "mp4", "pdf", "php",
    "png", "svg", "tgz", "tif", "tiff", "ts", "txt", "webm", "webp", "woff", "xml", "zip",
})  # fmt: skip


def find_emails(text: str) -> Iterator[TextSpan]:
    """Addresses in Latin letters within any text; in other scripts, only as separate words."""
    at, end = text.find("@"), 0
    while at >= 0:
        span = _around(text, at, end, _ANY)
        if span is None or not _is_of_one_script(text[span[0] : at], text[at : span[1]]):
            span = _around(text, at, end, _OF_LATIN)
        if span is not None and _is_address(text, at, *span):
            end = span[1]
            yield span
        at = text.find("@", max(at + 1, end))


def _around(text: str, at: int, first: int, patterns: tuple[re.Pattern[str], re.Pattern[str]]) -> TextSpan | None:
    """The span of the address around the @ at `at`, which does not begin before `first`."""
    after = patterns[1].match(text, at + 1)
    before = patterns[0].match(text[max(first, at - 65) : at][::-1]) if after else None
    if before is None or after is None or before.end() > 64:
        return None
    local = before[0][::-1].lstrip(_MARKS)
    return (at - len(local), after.end()) if local and local[-1] not in ".%'" else None


def _is_of_one_script(local: str, host: str) -> bool:
    """Whether each side has one script, and both the same if one of the scripts is written without spaces."""
    scripts = [{unicodedata.name(one, "").partition(" ")[0] for one in side if one.isalpha()} for side in (local, host)]
    return max(map(len, scripts)) <= 1 and (scripts[0] == scripts[1] or not _UNSPACED & scripts[0].union(scripts[1]))


def _is_address(text: str, at: int, start: int, end: int) -> bool:
    """Whether it is neither a file name, nor a Git remote, nor the password and host of a login URL."""
    local, host = text[start:at], text[at + 1 : end]
    remote = local == "git" and _REMOTE.match(text, end)
    login = _LOGIN.search(text, max(0, at - 200), at)
    return not (".." in local or host.rpartition(".")[2].lower() in _FILES or remote or login)


# -- IP addresses ------------------------------------------------------------------------------------------

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_QUAD = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_IPV4 = re.compile(rf"(?<![\w.+]){_QUAD}(?![\w+]|\.\w|-(?!{_QUAD})\w|,(?!{_QUAD})\d)", re.ASCII)
_IPV6 = re.compile(
    rf"(?<![\w:.])(?:[0-9a-fA-F]{{0,4}}:){{2,7}}(?:{_QUAD}|[0-9a-fA-F]{{1,4}})?(?![\w:])",
    re.ASCII,
)
# What a number that looks like an address belongs to, when it stands directly before it.
_NUMBERED = re.compile(
    r"(?:(?<![^\W_])(?:v|ver|vers|versions?|release|rev|revision|build|firmware|driver|kernel|sections?|sec|subsections?"
    r"|chapters?|clauses?|figures?|fig|tables?|paragraphs?|para|articles?|appendix|annex|oid|objectidentifier|rules?"
    r"|rfc ?\d{3,4}|firefox|chrome|chromium|safari|opera|edge|explorer|windows|android|ios|macos|linux|java|office"
    r"|acrobat|flash)\b\.?|[§^]|==|>=|<=|~=)[ \t:=/(`\['\"]*$",
    re.IGNORECASE,
)
_WORDS = (
    "ips?|ipv4|inet|addr(?:ess(?:es)?)?|hosts?|hostname|servers?|nameservers?|dns|gateway|proxy|router|netmask|subnet|cidr"
    "|networks?|firewall|iptables|src|dst|clients?|peers?|remote|connect(?:ed|ion|ions|ing)?|login|logged|visitors?"
    "|ping|traceroute|whois|nslookup|ssh|sshd|telnet|ftp|smtp|helo|listen(?:ing)?|blocked|banned|forwarded"
    "|resolves?|a record"
)
_NETWORK_BEFORE = re.compile(
    rf"(?:(?<![^\W_])(?:{_WORDS})(?![a-z])|(?-i:(?<=[a-z])(?:I[pP]|Addr(?:ess)?|Host|Cidr|Server)s?(?![a-z])))"
    r"(?:(?![.!?][ \t])[^\n])*\Z|(?://|@)\Z",
    re.IGNORECASE,
)
_NETWORK_AFTER = re.compile(
    r":\d{2,5}(?![\w.])|/(?:(?<=\.0/)[89]|[12]\d|3[0-2])(?!\w|\.\d)|[ \t]+port[ \t]+\d|[ \t]+-[ \t]+\S+[ \t]+\["
)
_WELL_KNOWN = re.compile(r"8\.8\.8\.8|8\.8\.4\.4|9\.9\.9\.9|10\.0\.\d+\.\d+|0\.0\.0\.0")
_LIST = re.compile(
    r"['\")\]]*(?:[ \t]*[,;|&][ \t]*(?:and |or )?|[ \t]*-[ \t]*|[ \t]+(?:(?:and|or|to|->)[ \t]+)?)['\"(\[]*"
)


def find_ipv4(text: str, private: bool = False) -> Iterator[TextSpan]:
    """Public addresses; with `private`, also those of private networks, loopback and documentation.

    Four numbers after a word such as "version", "section" or "OID", or after § or ==, are not an address. Otherwise, if
    one of them has three digits, they are. If none has, they are more often the number of a section or a version: they
    are an address only if something on the same line says so: a word such as "host", "IP" or "ping" before it in the
    sentence, a URL or login around it, a port, a prefix length or the rest of a log line after it, an address before it
    in a list or range, or that it is the address of a well-known resolver.
    """
    last, last_found = 0, 0
    for found in _IPV4.finditer(text):
        start, end = found.span()
        # A hyphen or comma before it joins it to another address, as in a range, or to something that is none.
        is_joined = re.search(r"-\Z|\d,\Z", text[max(0, start - 2) : start]) is not None and start - 1 != last
        last = end
        if is_joined or _NUMBERED.search(text[max(0, start - 24) : start]):
            continue
        listed = last_found > 0 and start - last_found <= 8 and _LIST.fullmatch(text, last_found, start) is not None
        if len(max(found[0].split("."), key=len)) < 3 and not listed and not _is_in_network(text, start, end):
            continue
        last_found = end
        if private or ipaddress.IPv4Address(found[0]).is_global:
            yield start, end


def _is_in_network(text: str, start: int, end: int) -> bool:
    """Whether what is around four small numbers says that they are an address."""
    return (
        _WELL_KNOWN.fullmatch(text, start, end) is not None
        or _NETWORK_AFTER.match(text, end, end + 80) is not None
        or _NETWORK_BEFORE.search(text[max(0, start - 60) : start]) is not None
    )


def find_ipv6(text: str, private: bool = False) -> Iterator[TextSpan]:
    for found in _IPV6.finditer(text):
        try:
            address = ipaddress.IPv6Address(found[0])
        except ValueError:  # a time of day, a MAC address, a C++ name
            continue
        public = int(address) >> 125 == 1 and address.is_global  # only 2000::/3 is assigned
        if public or (private and found[0].count(":") > 2):
            yield found.span()


# -- cards -------------------------------------------------------------------------------------------------

_GROUPS = (
    r"\d{4}(?P<gap>[ -])\d{4}(?P=gap)\d{4}(?P=gap)\d{1,4}(?P<more>(?P=gap)\d{3})?"
    r"|\d{4}(?P<wide>[ -])\d{6}(?P=wide)\d{4,5}"
)
_CARD = re.compile(
    rf"(?<![\w.,/+-])(?:\d{{13,19}}(?![.,-]\d)|(?:{_GROUPS})"
    r"(?![.,]\d|[ -](?!\d?\d/\d\d)\d))(?![\w/])",  # an expiry date may follow
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


def find_cards(text: str) -> Iterator[TextSpan]:
    for found in _CARD.finditer(text):
        start, end = found.span()
        if (
            not is_card(found[0]) and found["more"]
        ):  # the last three digits are part of the number, or its security code
            end = found.start("more")
        if is_card(text[start:end]):
            yield start, end


def is_card(written: str) -> bool:
    digits = re.sub(r"[ -]", "", written)
    issued = any(prefix.match(digits) and len(digits) in lengths for prefix, lengths in _ISSUERS)
    return issued and passes_luhn(digits) and len(set(digits[:-1])) > 1


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
"""The length of an IBAN in each country."""

_IBAN = re.compile(r"(?<![A-Za-z0-9])([A-Z]{2})\d\d(?= ?[A-Z0-9])")


def find_ibans(text: str) -> Iterator[TextSpan]:
    for found in _IBAN.finditer(text):
        length = _LENGTHS.get(found[1])
        if length is None:
            continue
        groups, rest = divmod(length - 4, 4)
        pattern = rf"[A-Z0-9]{{4}}(?: ?[A-Z0-9]{{4}}){{{groups}}}" + (rf" ?[A-Z0-9]{{{rest}}}" if rest else "")
        match = re.compile(pattern + r"(?![A-Za-z0-9])").match(text, found.start())
        if match and passes_mod97(match[0].replace(" ", "")):
            yield match.span()


def passes_mod97(iban: str) -> bool:
    """Whether the two check digits are right (ISO 7064)."""
    return int("".join(str(int(character, 36)) for character in iban[4:] + iban[:4])) % 97 == 1
