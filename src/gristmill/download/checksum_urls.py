"""Downloads whose checksum was published beside them: it goes along as the fragment of the address.

    https://host/file.bz2#sha1=0123...

So a file that is published anew is another source, and what a worker needs to know of a file is in its address.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

from gristmill.download.interfaces import HttpDownloader, file_name
from gristmill.io.fetch.http_client import Manners

_KINDS = ("md5", "sha1", "sha256", "sha512")


def with_checksum(url: str, kind: str | None, value: str | None) -> str:
    return f"{url}#{kind}={value}" if kind and value else url


def checksum_from_url(url: str) -> str | None:
    """As `HttpClient.save` wants it."""
    kind, equals, value = urlsplit(url).fragment.partition("=")
    return f"{kind}:{value}" if equals and kind in _KINDS else None


def without_fragment(url: str) -> str:
    return url.partition("#")[0]


def manners_for_host(base: str, usual: str, manners: Manners | None) -> Manners:
    """How to behave towards a host. Who names another than the usual one may mean one of their own network."""
    if manners is not None:
        return manners
    return Manners() if base.rstrip("/") == usual.rstrip("/") else replace(Manners(), allow_private=True)


class ChecksumDownloader(HttpDownloader):
    """Fetches files, and verifies them by the checksum in their address."""

    def checksum(self, url: str) -> str | None:
        return checksum_from_url(url)

    def download(self, url: str) -> str:
        return self.client.save(without_fragment(url), self.path_of(url), checksum=self.checksum(url)).path

    def _get_output_filename(self, url: str) -> str:
        return file_name(f"file:///{urlsplit(url).path.rstrip('/').rsplit('/', 1)[-1]}")
