"""UrlBlocklistFilter: drops documents by their URL.

Gives up: knowing under which names people can register domains. A blocked domain blocks all its subdomains, so a list
with `co.uk` blocks a country.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.deciding_stage import Measures, Rule
from gristmill.samples.argument_checks import check_count
from gristmill.text.filters.read_word_lists import EntriesOrFile, check_entries_file, read_entries
from gristmill.text.rule_filter import RuleFilter
from gristmill.text.text_columns import as_array

if TYPE_CHECKING:
    from gristmill.text.text_columns import Texts

MAX_HOST_CHARACTERS = 253
"""The limit of DNS. What is longer is no host, and would take quadratic time to compare."""

_HOSTS_FILE_PREFIX = re.compile(r"^(?:0\.0\.0\.0|127\.0\.0\.1|::1?)\s+")  # as in the hosts files of ad blockers
_WORD_BREAK = re.compile(r"[\W_]+")
_MOST_IN_PATTERN = 1000
"""Longer lists of words are compared by Python: the pattern would be too large for Arrow."""


class UrlBlocklistFilter(RuleFilter):
    """The first list that a URL is on, or "" if none; keeps "". Give `ScoreFilter` the column of URLs as `text_field`.

    In order: `domains` (the host or a domain that it is in), `urls` (with or without scheme, `www.` or slash at the
    end), `words` (one of them is a word of the URL, in any case), `soft_words` (`soft_word_threshold` of them are)
    and `subwords` (one is within the letters and digits of the URL, whatever stands between these). Each is a
    list, or a file with one entry per line; a list of domains may be a hosts file. An empty text, or one that is not a
    URL, is not blocked.
    """

    _not_pickled = ("_lists", "_subwords")

    def __init__(
        self,
        domains: EntriesOrFile = (),
        urls: EntriesOrFile = (),
        words: EntriesOrFile = (),
        subwords: EntriesOrFile = (),
        soft_words: EntriesOrFile = (),
        soft_word_threshold: int = 2,
    ) -> None:
        if not any((domains, urls, words, subwords, soft_words)):
            raise ValueError(
                "UrlBlocklistFilter: there is nothing to block: give domains, urls, words, soft_words or subwords"
            )
        check_count("UrlBlocklistFilter", "soft_word_threshold", soft_word_threshold, least=1)
        self.domains, self.urls, self.words, self.subwords = domains, urls, words, subwords
        self.soft_words, self.soft_word_threshold = soft_words, soft_word_threshold

    def check(self) -> None:
        for entries in (self.domains, self.urls, self.words, self.soft_words, self.subwords):
            check_entries_file("UrlBlocklistFilter", entries)

    def setup(self) -> None:
        self._lists  # noqa: B018  (reads the files)

    @cached_property
    def _lists(self) -> _UrlLists:
        def read(entries: EntriesOrFile) -> list[str]:
            return read_entries("UrlBlocklistFilter", entries)

        return _UrlLists(
            frozenset(_host(_HOSTS_FILE_PREFIX.sub("", entry)) for entry in read(self.domains)) - {""},
            frozenset(map(_normalise_url, read(self.urls))) - {""},
            frozenset(entry.lower() for entry in read(self.words)) - {""},
            frozenset(entry.lower() for entry in read(self.soft_words)) - {""},
            frozenset(map(_join, read(self.subwords))) - {""},
        )

    @cached_property
    def _subwords(self) -> re.Pattern[str] | None:
        return re.compile(_any_of(self._lists.subwords)) if self._lists.subwords else None

    def rules(self) -> Sequence[Rule]:
        def rule(name: str, entries: EntriesOrFile) -> Rule:
            listed = entries if isinstance(entries, str | os.PathLike) else sorted(entries)
            return Rule(name, high=0, measured_with={name: listed}, kind=pa.int64())

        soft = replace(rule("soft_words", self.soft_words), high=self.soft_word_threshold - 1)
        return (
            *(rule("domains", self.domains), rule("urls", self.urls), rule("words", self.words)),
            replace(soft, high_name=f"soft_word_threshold={self.soft_word_threshold}"),
            rule("subwords", self.subwords),
        )

    def measure(self, text: str) -> Mapping[str, int]:
        lists = self._lists
        url = text.strip().lower()
        words = _WORD_BREAK.split(url) if lists.words or lists.soft_words else ()
        return {
            "domains": int(_is_in_domain(url, lists.domains)),
            "urls": int(bool(lists.urls) and _normalise_url(url) in lists.urls),
            "words": len(lists.words.intersection(words)),
            "soft_words": len(lists.soft_words.intersection(words)),
            "subwords": int(self._subwords is not None and self._subwords.search(_join(url)) is not None),
        }

    def measure_batch(self, texts: Texts) -> Measures:
        """Looks closer only at URLs in which Arrow finds a listed word, and at those that are not ASCII, which patterns
        of Arrow and of Python read in two ways."""
        texts, lists = as_array(texts).fill_null(literal("", pa.string())), self._lists
        words = {one for one in lists.words | lists.soft_words if one.isascii()}
        subwords = {one for one in lists.subwords if one.isascii()}
        if lists.domains or lists.urls or len(words) + len(subwords) > _MOST_IN_PATTERN:
            return super().measure_batch(texts)
        urls = pc.ascii_lower(texts)
        closer = pc.invert(pc.string_is_ascii(texts))
        if words:
            closer = pc.or_(closer, pc.match_substring_regex(urls, _any_of(words)))
        if subwords:
            joined = pc.replace_substring_regex(urls, _WORD_BREAK.pattern, "")
            closer = pc.or_(closer, pc.match_substring_regex(joined, _any_of(subwords)))
        zeros = pa.repeat(literal(0, pa.int64()), len(texts))
        found = super().measure_batch(texts.filter(closer))
        return {name: pc.replace_with_mask(zeros, closer, column) for name, column in found.items()}


class _UrlLists(NamedTuple):
    domains: frozenset[str]
    urls: frozenset[str]
    words: frozenset[str]
    soft_words: frozenset[str]
    subwords: frozenset[str]


def _is_in_domain(url: str, domains: frozenset[str]) -> bool:
    if not domains:
        return False
    labels = _host(url).split(".")
    return any(".".join(labels[start:]) in domains for start in range(len(labels)))


def _any_of(entries: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(entries)))


def _join(url: str) -> str:
    """The letters and digits of a URL, without what stands between them."""
    return _WORD_BREAK.sub("", url.lower())


def _host(url: str) -> str:
    """The host of a URL, or a bare host name, in lower case and without port and `www.`."""
    url = url.strip().lower()
    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    except ValueError:  # such as brackets without an IPv6 address
        return ""
    host = host.removeprefix("*.").removeprefix("www.").strip(".")
    return host if len(host) <= MAX_HOST_CHARACTERS else ""


def _normalise_url(url: str) -> str:
    """A URL without scheme, `www.`, fragment and slash at the end."""
    url = re.sub(r"^[a-z][a-z0-9+.-]*://", "", url.strip().lower()).partition("#")[0]
    return url.removeprefix("www.").rstrip("/")
