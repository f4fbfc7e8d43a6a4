"""A server that accepts connections and never answers is an error that says so, in time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import GristmillError
from gristmill.core.records import remote_storage
from gristmill.core.records.remote_storage import ANSWER_SECONDS, REQUESTS, ROUNDS, open_file_system
from gristmill.text import JsonlReader, JsonlWriter

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nETag: x\r\n\r\n"


class SilentServer:
    """Accepts everything. It says nothing, or falls silent in the middle of a file."""

    def __init__(self, answers: bool = False) -> None:
        self._answers, self.asked = answers, 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._open = list[socket.socket]()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self._open.append(self._socket.accept()[0])
            except OSError:
                return
            self.asked += 1
            threading.Thread(target=self._talk, args=(self._open[-1],), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        while self._answers:
            request = connection.recv(65_536)
            if not request:
                return
            connection.sendall(HEAD if request.startswith(b"HEAD") else HEAD + b'{"id": 1}\n')

    def close(self) -> None:
        for one in [self._socket, *self._open]:
            one.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentServer]:
    monkeypatch.setattr(remote_storage, "ANSWER_SECONDS", 0.2)
    server = SilentServer()
    yield server
    server.close()


def options(server: SilentServer) -> dict[str, Any]:
    return {"key": "a", "secret": "b", "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{server.port}"}}


PLACES: dict[str, Callable[[dict[str, Any], Path], tuple[list[Any], dict[str, Any]]]] = {
    "input": lambda s3, path: (
        [JsonlReader("s3://mill/in", storage_options=s3), JsonlWriter(str(path / "out"))],
        {},
    ),
    "output": lambda s3, path: (
        [JsonlReader(str(path / "a.jsonl")), JsonlWriter("s3://mill/out", storage_options=s3)],
        {},
    ),
    "records": lambda s3, path: (
        [JsonlReader(str(path / "a.jsonl")), JsonlWriter(str(path / "out"))],
        {"run_dir": "s3://mill/run", "storage_options": s3},
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_silent_s3_server_is_told_in_time(server: SilentServer, tmp_path: Path, place: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n')
    stages, given = PLACES[place](options(server), tmp_path)
    began = time.monotonic()
    with pytest.raises((GristmillError, OSError), match=r"s3://mill/.*accepts connections but does not answer"):
        Pipeline("silent", stages=stages).run(LocalExecutor(num_workers=0), **given)
    assert server.asked <= REQUESTS * ROUNDS
    assert time.monotonic() - began < 20


def test_a_server_that_falls_silent_in_a_file_is_told_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_storage, "ANSWER_SECONDS", 0.2)
    server = SilentServer(answers=True)
    reader = JsonlReader("s3://mill/in.jsonl", storage_options=options(server))
    with pytest.raises((GristmillError, OSError), match=r"s3://mill/in.jsonl cannot be read: .*does not answer"):
        Pipeline("silent", stages=[reader, JsonlWriter(str(tmp_path / "out"))]).run(LocalExecutor(num_workers=0))
    server.close()


def test_a_silent_web_server_is_told_in_time(server: SilentServer, tmp_path: Path) -> None:
    reader = JsonlReader(f"http://127.0.0.1:{server.port}/a.jsonl")
    with pytest.raises((GristmillError, OSError), match="its server cannot be reached"):
        Pipeline("silent", stages=[reader, JsonlWriter(str(tmp_path / "out"))]).run(LocalExecutor(num_workers=0))


def test_silence_is_waited_for_less_than_a_minute() -> None:
    assert ANSWER_SECONDS * REQUESTS * ROUNDS < 60


def test_limits_of_users_count(monkeypatch: pytest.MonkeyPatch) -> None:
    system, _ = open_file_system("s3://b/x", {"config_kwargs": {"read_timeout": 99}})
    assert system.config_kwargs["read_timeout"] == 99
    assert system.config_kwargs["retries"]["total_max_attempts"] == REQUESTS
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "9")
    assert "retries" not in open_file_system("s3://b/y", {})[0].config_kwargs


def test_files_in_archives_have_the_limits_of_their_store(s3: dict[str, Any]) -> None:
    system, path = open_file_system("simplecache::s3://b/x", {"s3": s3})
    assert path == "b/x"
    assert system.fs.config_kwargs["read_timeout"] == ANSWER_SECONDS
    assert system.fs.key == "test"
