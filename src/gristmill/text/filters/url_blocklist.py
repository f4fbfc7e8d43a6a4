"""UrlBlocklistFilter: drops documents by their URL.

Gives up: knowing under which names people can register domains. A blocked domain blocks all its subdomains, so a list
with `co.uk` blocks a country.
"""

from __future__ import annotations

import re
from functools import cached_property
from urllib.parse import urlsplit

import pyarrow as pa

from gristmill.text.document_filter import BoundedFilter
from gristmill.text.filters.user_lists import EntriesOrFile, check_entries_file, read_entries

_HOSTS_FILE_PREFIX = re.compile(r"^(?:0\.0\.0\.0|127\.0\.0\.1|::1?)\s+")  # as in the hosts files of ad blockers


class UrlBlocklistFilter(BoundedFilter):
    """1 if a URL is on a list, else 0; keeps 0. Give the column of URLs to `ScoreFilter` as `text_field`.

    A URL is blocked when its host is one of `domains` or a subdomain of one, when it is one of `urls` (with or without
    scheme, `www.` or slash at the end), when it contains one of `words` as a word, in any case, or when it contains one
    of `subwords` anywhere. Each is a list, or a file with one entry per line; a list of domains may be a hosts file. An
    empty text, or one that is not a URL, is not blocked.
    """

    score_type = pa.int64()
    _not_pickled = ("_lists",)

    def __init__(
        self,
        domains: EntriesOrFile = (),
        urls: EntriesOrFile = (),
        words: EntriesOrFile = (),
        subwords: EntriesOrFile = (),
    ) -> None:
        if not any((domains, urls, words, subwords)):
            raise ValueError("UrlBlocklistFilter: there is nothing to block: give domains, urls, words or subwords")
        self.domains, self.urls, self.words, self.subwords = domains, urls, words, subwords

    def check(self) -> None:
        for entries in (self.domains, self.urls, self.words, self.subwords):
            check_entries_file("UrlBlocklistFilter", entries)

    def setup(self) -> None:
        self._lists  # noqa: B018  (reads the files)

    @cached_property
    def _lists(self) -> tuple[frozenset[str], frozenset[str], frozenset[str], tuple[str, ...]]:
        read = [read_entries("UrlBlocklistFilter", one) for one in (self.domains, self.urls, self.words, self.subwords)]
        domains = frozenset(_host(_HOSTS_FILE_PREFIX.sub("", entry)) for entry in read[0])
        words, subwords = ([entry.lower() for entry in entries if entry] for entries in read[2:])
        return domains - {""}, frozenset(map(_normalise_url, read[1])) - {""}, frozenset(words), tuple(subwords)

    def score_document(self, text: str) -> int:
        domains, urls, words, subwords = self._lists
        url = text.strip().lower()
        if not url:
            return 0
        labels = _host(url).split(".")
        if domains and any(".".join(labels[start:]) in domains for start in range(len(labels))):
            return 1
        if urls and _normalise_url(url) in urls:
            return 1
        if words and not words.isdisjoint(re.split(r"[\W_]+", url)):
            return 1
        return int(any(part in url for part in subwords))

    def bounds(self) -> tuple[float, float]:
        return 0, 0


def _host(url: str) -> str:
    """The host of a URL, or a bare host name, in lower case and without port and `www.`."""
    url = url.strip().lower()
    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    except ValueError:  # such as brackets without an IPv6 address
        return ""
    return host.removeprefix("*.").removeprefix("www.").strip(".")


def _normalise_url(url: str) -> str:
    """A URL without scheme, `www.`, fragment and slash at the end."""
    url = re.sub(r"^[a-z][a-z0-9+.-]*://", "", url.strip().lower()).partition("#")[0]
    return url.removeprefix("www.").rstrip("/")
