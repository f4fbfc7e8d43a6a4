"""Models from a hub: a real server with the hub's addresses, asked by the hub's own library."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gristmill.core.errors import InputError
from gristmill.core.stage import NodeInfo, WorkerMetadata
from gristmill.image import ImageEmbeddingStage
from gristmill.models import Wanted
from tests.models.clip_fixtures import small_clip

REVISION = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Has one model, at one revision, and notes what it is asked for."""

    def __init__(self, files: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.files, self.asked = files, []

    files: Path
    asked: list[str]


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        names = sorted(file.name for file in self.server.files.iterdir())
        file = self.server.files / path.rpartition("/")[2]
        if path.startswith("/api/models/org/clip"):
            siblings = [{"rfilename": name} for name in names]
            found: Any = {"id": "org/clip", "modelId": "org/clip", "sha": REVISION, "siblings": siblings}
            if "/tree/" in path:
                found = [{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in names]
            self._send(200, json.dumps(found).encode(), body, {"Content-Type": "application/json"})
        elif path.startswith(f"/org/clip/resolve/{REVISION}/") and file.is_file():
            data = file.read_bytes()
            headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": REVISION}
            self._send(200, data, body, headers)
        else:
            self._send(404, b"", body, {"X-Error-Code": "RepoNotFound"})

    def _send(self, code: int, data: bytes, body: bool, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    small_clip(tmp_path / "served")
    (tmp_path / "served" / "pytorch_model.bin").write_bytes(b"a pickle, which must not be fetched")
    server = Hub(tmp_path / "served")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("GRISTMILL_MODELS", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", address)
    # The library reads its environment when it is imported, which another test may have done while it was offline.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield server
    server.shutdown()
    server.server_close()


def test_a_model_is_fetched_once_at_its_revision_and_without_pickles(hub: Hub, tmp_path: Path) -> None:
    stage = ImageEmbeddingStage(f"org/clip@{REVISION}")
    stage.check()
    stage.setup_on_node(NodeInfo(), WorkerMetadata())
    place = tmp_path / "cache" / "org" / f"clip@{REVISION}"
    assert {file.name for file in place.iterdir()} == {
        "config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json",
    }  # fmt: skip
    assert (place / "model.safetensors").read_bytes() == (tmp_path / "served" / "model.safetensors").read_bytes()
    assert all("resolve" not in line or REVISION in line for line in hub.asked)
    count = len(hub.asked)
    stage.setup(WorkerMetadata())
    assert len(hub.asked) == count
    assert list(place.parent.iterdir()) == [place]


def test_what_the_hub_does_not_have_leaves_nothing_behind(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"could not be downloaded .*hf download org/other --local-dir .*then copy"):
        Wanted("org/other", purpose="Embed").fetch()
    assert not list((tmp_path / "cache" / "org").iterdir())


def test_without_a_network_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # what HF_HUB_OFFLINE=1 sets
    with pytest.raises(
        InputError, match=f"Embed: openai/clip is not in .*hf download openai/clip --revision {REVISION}"
    ):
        Wanted(str(tmp_path), f"openai/clip@{REVISION}", "Embed").fetch()


def test_two_that_fetch_at_once_end_with_one_whole_copy(hub: Hub, tmp_path: Path) -> None:
    wanted = Wanted(str(tmp_path / "models"), f"org/clip@{REVISION}")
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(wanted.fetch())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    place = tmp_path / "models" / "org" / "clip"
    assert found == [place] * 3
    assert list(place.parent.iterdir()) == [place]
