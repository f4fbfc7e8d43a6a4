"""Texts and URLs in a form in which differences that do not matter are gone.

Most rows are done in C, character by character. Those with a character that changes with its neighbours, or becomes
several, go one by one through Python, which knows Unicode.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.errors import did_you_mean
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.dedup.columns import reference
from gristmill.dedup.columns.arrow_numpy import Column, as_text, from_numbers, validity

FORMS = ("NFC", "NFD", "NFKC", "NFKD")


@fast_dataclass(frozen=True)
class Normalisation:
    """What is made equal before texts are compared: by default case, white space and Unicode's compositions."""

    unicode: str | None = "NFC"
    lower: bool = True
    space: bool = True
    punctuation: bool = False

    def __post_init__(self) -> None:
        if self.unicode is not None and self.unicode not in FORMS:
            raise ValueError(f"unicode={self.unicode!r} is no normal form; it may be None or one of {', '.join(FORMS)}")

    def text(self, text: str) -> str:
        return reference.normalise(text, self.unicode, self.lower, self.punctuation, self.space)

    def apply(self, column: Column) -> pa.LargeStringArray:
        """A column of strings, normalised; null stays null."""
        texts = as_text(column)
        if kernels is None:
            return _map(self.text, texts)
        beyond = self.unicode in (None, "NFC", "NFKC")
        offsets, data, left_out = kernels.normalise(texts, _table(self), self.space, beyond)
        buffers = [validity(texts), pa.py_buffer(offsets), pa.py_buffer(data)]
        done = pa.Array.from_buffers(pa.large_string(), len(texts), buffers)
        mask = np.frombuffer(left_out, np.uint8).astype(np.bool_)
        if not mask.any():
            return done
        rest = from_numbers(mask)
        return pc.replace_with_mask(done, rest, _map(self.text, texts.filter(rest)))


DIFFERENCES = ("unicode", "case", "punctuation", "whitespace")
"""What stages can be told to overlook."""


def normalisation_without(stage: str, differences: Sequence[str]) -> Normalisation | None:
    """The form of texts in which these differences are gone; None if they are none. Unicode's is NFKC."""
    if isinstance(differences, str):
        raise TypeError(f'{stage}: normalize must be a list, as in normalize=["{differences}"]')
    for name in differences:
        if name not in DIFFERENCES:
            hint, known = did_you_mean(name, DIFFERENCES), ", ".join(DIFFERENCES)
            raise ValueError(f"{stage}: normalize has no {name!r}.{hint} There are: {known}")
    if not differences:
        return None
    unicode, lower, punctuation, space = (name in differences for name in DIFFERENCES)
    return Normalisation("NFKC" if unicode else None, lower, space, punctuation)


_KNOWN, _GONE, _UNKNOWN = 0x3100, 0xFFFFFFFF, 0xFFFFFFFE
_JAMO = frozenset([*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)])
"""Vowels and finals of Hangul, which make a syllable with what is before them. No decomposition lists that."""


@lru_cache(maxsize=8)
def _table(form: Normalisation) -> bytes:
    """What becomes of each of the first characters, for the kernel."""
    made_of = [unicodedata.decomposition(chr(code)).split() for code in range(_KNOWN)]
    pairs = (parts for parts in made_of if len(parts) == 2 and not parts[0].startswith("<"))
    composed = {*_JAMO, *(int(second, 16) for _, second in pairs)}
    return array("I", [_fate(chr(code), form, composed) for code in range(_KNOWN)]).tobytes()


def _fate(character: str, form: Normalisation, composed: set[int]) -> int:
    """The character that this one becomes, nothing, or unknown: it depends on others, is several, or longer."""
    if form.unicode and (unicodedata.combining(character) or ord(character) in composed):
        return _UNKNOWN
    if "Σ" in replace(form, lower=False).text(character):  # in lower case it has another form at the end of a word
        return _UNKNOWN
    new = replace(form, space=False).text(character)
    if not new and form.punctuation:
        return _GONE
    if len(new) != 1 or len(new.encode()) > len(character.encode()):
        return _UNKNOWN
    return ord(" ") if form.space and new.isspace() else ord(new)


def _map(function: Callable[[str], str | None], texts: pa.Array) -> pa.LargeStringArray:
    found = [None if text is None else function(text) for text in texts.to_pylist()]
    return make_array(found, pa.string()).cast(pa.large_string())


# fmt: off
TRACKERS = frozenset([
    "fbclid", "gclid", "dclid", "gbraid", "wbraid", "msclkid", "yclid", "twclid", "ttclid", "igshid", "mc_cid",
    "_ga", "_gl", "_hsenc", "_hsmi", "mkt_tok", "oly_anon_id", "oly_enc_id", "vero_id", "ref_src", "mc_eid",
    "phpsessid", "jsessionid",
])
# fmt: on
"""Parameters of a query that say who came, and not where to; all that begin with `utm_` too. Names that sites also use
for what a page is about, such as `sid`, are none of them."""

_URL = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.\-]*):)?//([^/?#]*)([^?#]*)(?:\?([^#]*))?")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def normalise_url(url: str) -> str:
    """A URL such that two of the same page are equal: host and path, and the query in order.

    Gone are scheme, `www.`, user, default port, fragment, a slash at the end, and parameters that only track.
    """
    found = _URL.match(url.strip())
    if not found:
        return url.strip()
    scheme, host, path, query = found.groups()
    host = _host(host, scheme)
    path = re.sub("//+", "/", _unescape(path)).rstrip("/")
    kept = sorted(part for part in map(_unescape, (query or "").split("&")) if part and not _tracks(part))
    return host + path + ("?" + "&".join(kept) if kept else "")


def normalise_urls(column: Column) -> pa.LargeStringArray:
    """A column of URLs, normalised; null stays null, and a URL of which nothing is left is none: it is null."""
    return _map(lambda url: normalise_url(url) or None, as_text(column))


def _host(place: str, scheme: str | None) -> str:
    host = place.rpartition("@")[2].lower()
    default = {"http": ":80", "https": ":443", "ftp": ":21"}.get((scheme or "").lower(), ":80")
    return host.removesuffix(default).rstrip(".").removeprefix("www.")


def _tracks(part: str) -> bool:
    name = part.partition("=")[0].lower()
    return name in TRACKERS or name.startswith("utm_")


def _unescape(text: str) -> str:
    """Escapes of characters that need none are undone; the others are in capitals."""

    def plain(match: re.Match[str]) -> str:
        character = chr(int(match[1], 16))
        return character if character in _PLAIN else match[0].upper()

    return _ESCAPE.sub(plain, text)
