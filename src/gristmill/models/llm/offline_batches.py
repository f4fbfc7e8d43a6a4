"""Requests as files for batch APIs, and their answers back into the store.

    requests-00001.jsonl     {"custom_id": KEY, "method": "POST", "url": "/v1/chat/completions", "body": {...}}

Batch APIs cost about half, and clusters without a network take files too. The key of a request is its `custom_id`, so
the answers, in any order and from any number of files, are found by a run as if it had asked itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import orjson

from gristmill.core.errors import InputError
from gristmill.models.llm.answer_store import AnswerStore
from gristmill.models.llm.llm_request import Answer, LLMRequest

MOST_REQUESTS, MOST_BYTES = 50_000, 190 * 10**6
"""In one file: what batch APIs take."""


class BatchRequestFiles:
    """Writes requests to files in a directory. Call it with each."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.requests = 0
        self.files: list[str] = []
        self._file: IO[bytes] | None = None
        self._left, self._bytes_left = 0, 0

    def __deepcopy__(self, memo: object) -> BatchRequestFiles:
        return self

    def __call__(self, stage: str, request: LLMRequest) -> None:
        line = b'{"custom_id":"%b","method":"POST","url":"/v1/chat/completions","body":%b}\n'
        written = line % (request.key.encode(), request.payload)
        if self._file is None or self._left < 1 or self._bytes_left < len(written):
            self._next_file()
        assert self._file is not None, "just opened"
        self._file.write(written)
        self.requests += 1
        self._left -= 1
        self._bytes_left -= len(written)

    def _next_file(self) -> None:
        self.close()
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"requests-{len(self.files) + 1:05}.jsonl"
        if path.exists():
            raise InputError(f"{path} is there already: choose another directory, or remove it")
        self.files.append(str(path))
        self._file = path.open("wb")
        self._left, self._bytes_left = MOST_REQUESTS, MOST_BYTES

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def take_in_answers(paths: Iterable[str | Path], store: AnswerStore) -> tuple[int, list[str]]:
    """Put the answers in result files of a batch API into a store. Returns their number, and what is wrong with the
    lines that have none."""
    taken, problems = 0, []
    for path in paths:
        try:
            with Path(path).open("rb") as file:
                for number, line in enumerate(file, 1):
                    found = _answer_in(line) if line.strip() else None
                    if isinstance(found, Answer):
                        store.add(found)
                        taken += 1
                    elif found is not None:
                        problems.append(f"{path}, line {number}: {found}")
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error}") from error
    store.flush()
    return taken, problems


def _answer_in(line: bytes) -> Answer | str:
    try:
        fields = orjson.loads(line)
        key, response = str(fields["custom_id"]), fields.get("response") or {}
        body: Mapping[str, Any] = response.get("body") or {}
        if fields.get("error") or response.get("status_code", 200) != 200:
            return f"{key}: {fields.get('error') or body.get('error') or response}"[:500]
        [choice, *_] = body["choices"]
        usage = body.get("usage") or {}
        bytes.fromhex(key)
        return Answer(
            key,
            str(body.get("model") or ""),
            str(choice["message"]["content"]),
            str(choice.get("finish_reason") or ""),
            usage.get("prompt_tokens"),
            usage.get("completion_tokens"),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"no answer of a batch API ({type(error).__name__}: {error})"
