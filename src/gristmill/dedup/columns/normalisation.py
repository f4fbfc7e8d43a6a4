"""Normal forms of texts and URLs, to ignore differences that do not matter.

Most texts are normalised in C, character by character. A text with a character whose form depends on its neighbours, or
that becomes several characters, is normalised in Python.
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
from gristmill.dedup.columns import kernel_reference as reference
from gristmill.dedup.columns.arrow_numpy import Column, as_text, from_numbers, validity

FORMS = ("NFC", "NFD", "NFKC", "NFKD")


@fast_dataclass(frozen=True)
class Normalisation:
    """The differences between texts to remove: by default case, white space and Unicode composition."""

    unicode: str | None = "NFC"
    lower: bool = True
    space: bool = True
    punctuation: bool = False

    def __post_init__(self) -> None:
        if self.unicode is not None and self.unicode not in FORMS:
            raise ValueError(
                f"unicode={self.unicode!r} is not a normal form, must be None or one of {', '.join(FORMS)}"
            )

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
"""The differences that the parameter `normalize` of stages can list."""


def normalisation_without(stage: str, differences: Sequence[str]) -> Normalisation | None:
    """The normalisation that removes the listed differences; None if the list is empty. "unicode" is NFKC."""
    if isinstance(differences, str):
        raise TypeError(f'{stage}: normalize must be a list, as in normalize=["{differences}"]')
    for name in differences:
        if name not in DIFFERENCES:
            hint, known = did_you_mean(name, DIFFERENCES), ", ".join(DIFFERENCES)
            raise ValueError(f"{stage}: normalize has no {name!r}.{hint} Its values: {known}")
    if not differences:
        return None
    unicode, lower, punctuation, space = (name in differences for name in DIFFERENCES)
    return Normalisation("NFKC" if unicode else None, lower, space, punctuation)


_KNOWN, _GONE, _UNKNOWN = 0x3100, 0xFFFFFFFF, 0xFFFFFFFE
_JAMO = frozenset([*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)])
"""Vowels and finals of Hangul, which combine with the character before them; `decomposition` does not list them."""


@lru_cache(maxsize=8)
def _table(form: Normalisation) -> bytes:
    """The normal form of each character below `_KNOWN`, as a table for the kernel."""
    made_of = [unicodedata.decomposition(chr(code)).split() for code in range(_KNOWN)]
    pairs = (parts for parts in made_of if len(parts) == 2 and not parts[0].startswith("<"))
    composed = {*_JAMO, *(int(second, 16) for _, second in pairs)}
    return array("I", [_fate(chr(code), form, composed) for code in range(_KNOWN)]).tobytes()


def _fate(character: str, form: Normalisation, composed: set[int]) -> int:
    """The normal form of a character; or gone; or unknown, if it depends on neighbours, is several, or is longer."""
    if form.unicode and (unicodedata.combining(character) or ord(character) in composed):
        return _UNKNOWN
    if "Σ" in replace(form, lower=False).text(character):  # its lower case differs at the end of a word
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
"""Query parameters that only track visitors, besides all that start with `utm_`. Names that sites also use to select
a page, such as `sid`, are not among them."""

_URL = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.\-]*):)?//([^/?#]*)([^?#]*)(?:\?([^#]*))?")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def normalise_url(url: str) -> str:
    """The normal form of a URL: host, path and sorted query, so that two URLs of the same page are equal.

    Removes scheme, `www.`, user, default port, fragment, a slash at the end, and tracking parameters.
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
    """A column of URLs, normalised; null stays null, and a URL of which nothing is left becomes null."""
    return _map(lambda url: normalise_url(url) or None, as_text(column))


def _host(authority: str, scheme: str | None) -> str:
    host = authority.rpartition("@")[2].lower()
    default = {"http": ":80", "https": ":443", "ftp": ":21"}.get((scheme or "").lower(), ":80")
    return host.removesuffix(default).rstrip(".").removeprefix("www.")


def _tracks(part: str) -> bool:
    name = part.partition("=")[0].lower()
    return name in TRACKERS or name.startswith("utm_")


def _unescape(text: str) -> str:
    """Undo escapes of characters that need none; write the others in capitals."""

    def plain(match: re.Match[str]) -> str:
        character = chr(int(match[1], 16))
        return character if character in _PLAIN else match[0].upper()

    return _ESCAPE.sub(plain, text)
