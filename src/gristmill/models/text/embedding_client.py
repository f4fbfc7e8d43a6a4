"""Asks a server for embeddings over HTTP: `/v1/embeddings`, as OpenAI, vLLM, llama.cpp and others have it.

One request at a time and connection; several workers ask at once. Requests that fail for a moment are repeated, later
each time, or when the server says so (`Retry-After`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

from gristmill.core.errors import DownloadError, require

MOST_WAIT_S = 30.0
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class EmbeddingClient:
    """Embeds texts with one model of a server. The key is read from an environment variable."""

    def __init__(self, base_url: str, model: str, api_key_env: str, retries: int = 5, timeout: float = 60.0) -> None:
        urllib3 = require("urllib3", "download", "asking a server for embeddings")
        self.url, self.model, self.retries = f"{base_url.rstrip('/')}/embeddings", model, retries
        self._failures = urllib3.exceptions.HTTPError
        self._pool = urllib3.PoolManager(timeout=timeout, retries=False)
        key = os.environ.get(api_key_env, "")
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """The embedding of each text, in order."""
        body = json.dumps({"model": self.model, "input": list(texts), "encoding_format": "float"}).encode()
        answer = self._ask(body)
        try:
            rows = sorted(answer["data"], key=lambda row: row["index"])
            found = [row["embedding"] for row in rows]
        except (KeyError, TypeError) as error:
            raise DownloadError(self.url, f"answered without embeddings: {str(answer)[:200]}") from error
        if len(found) != len(texts):
            raise DownloadError(self.url, f"gave {len(found)} embeddings for {len(texts)} texts")
        return found

    def _ask(self, body: bytes) -> Any:
        problem = ""
        for attempt in range(self.retries + 1):
            wait = min(MOST_WAIT_S, 0.2 * 2**attempt)
            try:
                answer = self._pool.request("POST", self.url, body=body, headers=self._headers)
            except self._failures as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if answer.status == 200:
                    try:
                        return json.loads(answer.data)
                    except ValueError:
                        problem = "the answer is not JSON"
                elif answer.status not in _PASSING:
                    raise DownloadError(self.url, f"refused the request: {answer.status} {answer.data[:300]!r}")
                else:
                    problem, wait = f"status {answer.status}", _told(answer.headers.get("Retry-After"), wait)
            if attempt < self.retries:
                time.sleep(wait)
        raise DownloadError(self.url, f"did not answer {self.retries + 1} requests: {problem}")


def _told(given: str | None, otherwise: float) -> float:
    """How long the server says to wait."""
    try:
        return min(MOST_WAIT_S, max(0.0, float(given or "")))
    except ValueError:
        return otherwise
