"""Open the file system of an address with time limits, so that a server that never answers is an error within a minute.

Without them S3 is asked 25 times, 15 s each, and a web server is waited for five minutes. `storage_options` override
the limits: `{config_kwargs: {read_timeout: 60}}` for S3, `{client_kwargs: {timeout: ...}}` for http. Other stores have
the limits of their libraries.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 8.0
"""How long a server may say nothing. A request is made `REQUESTS * ROUNDS` times before it fails."""

REQUESTS = 3
ROUNDS = 2
"""The S3 library repeats a request, and s3fs repeats that, as it does for answers that break off."""

_S3, _HTTP = frozenset({"s3", "s3a"}), frozenset({"http", "https"})


def open_file_system(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """The fsspec file system of a path or URL, and the path in it. Raises what fsspec raises."""
    import fsspec

    system, path = fsspec.core.url_to_fs(url, **_with_time_limits(url, options))
    if _S3 & set(_protocols(system)):
        system.retries = ROUNDS
    return system, str(path)


def _protocols(system: Any) -> tuple[str, ...]:
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


def _with_time_limits(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a user, and time limits where they say nothing of them."""
    found = dict(options)
    links = url.split("::")
    for link in links:  # of zip://a.txt::s3://bucket/a.zip, each has options of its own; those of the first may be bare
        protocol = link.partition("://")[0]
        limits = _limits(protocol)
        if not limits:
            continue
        bare = link is links[0] and protocol not in found
        mine = found if bare else dict(found.get(protocol) or {})
        for name, defaults in limits.items():
            mine[name] = {**defaults, **(mine.get(name) or {})}
        if not bare:
            found[protocol] = mine
    return found


def _limits(protocol: str) -> dict[str, dict[str, Any]]:
    if protocol in _S3:
        limits: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, "read_timeout": ANSWER_SECONDS}
        if "AWS_MAX_ATTEMPTS" not in os.environ:
            limits["retries"] = {"total_max_attempts": REQUESTS, "mode": "legacy"}
        return {"config_kwargs": limits}
    if protocol in _HTTP:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=2 * ANSWER_SECONDS)
        return {"client_kwargs": {"timeout": timeout}}
    return {}
