"""The zygote as a fork of the driver: only where that changes nothing, and nothing of the driver is touched there."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the zygote is only forked on Linux")

SCRIPT = """
import json, logging, os, signal, sys
BEFORE
from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage
import pyarrow as pa

half = open("half.txt", "w")
half.write("once\\n")  # waits in the buffer
os.set_inheritable(half.fileno(), True)
logging.basicConfig(filename="log.txt", level=logging.DEBUG)
signal.signal(signal.SIGTERM, lambda *_: None)
STATE = "set"


class Look(ProcessingStage):
    name = "look"

    def process(self, task):
        half_name = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
                     and os.path.exists(f"/proc/self/fd/{fd}")]
        logging.getLogger("mine").debug("nobody reads this")
        parent = open(f"/proc/{os.getppid()}/cmdline").read()
        print("said by a worker")
        found = {
            "forked": "executors.zygote" not in parent,
            "files": sorted(name for name in half_name if name.startswith(os.getcwd())),
            "main": hasattr(sys.modules["__main__"], "STATE"),
            "handlers": len(logging.root.handlers),
            "stdin": os.readlink("/proc/self/fd/0"),
            "blas": os.environ["OPENBLAS_NUM_THREADS"],
            "pool": pa.default_memory_pool().backend_name,
            "session": os.getsid(0) != os.getsid(DRIVER),
        }
        return DocumentBatch(pa.table({"found": [json.dumps(found)]}))


DRIVER = os.getpid()
for _ in range(2):
    result = Pipeline("p", stages=[Look()]).run(LocalExecutor(num_workers=1))
    print("FOUND", next(iter(result)).data["found"][0].as_py())
half.write("twice\\n")
half.close()
"""


def look(folder: Path, before: str = "", **env: str) -> list[dict[str, Any]]:
    script = folder / "script.py"
    script.write_text(SCRIPT.replace("BEFORE", before))
    names = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env={**names, "GRISTMILL_PROGRESS": "off", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("said by a worker\n") == 2
    assert (folder / "half.txt").read_text() == "once\ntwice\n"
    assert "nobody reads this" not in (folder / "log.txt").read_text()
    return [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("FOUND ")]


def test_a_plain_program_is_forked_and_nothing_of_it_reaches_its_workers(tmp_path: Path) -> None:
    clean = {"files": [], "main": False, "handlers": 0, "stdin": "/dev/null", "pool": "system", "session": True}
    assert look(tmp_path) == [{**clean, "forked": True, "blas": "1"}] * 2


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(
            "import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()", id="thread"
        ),
        pytest.param("sys.path.insert(0, '.'); open('mine.py', 'w').close(); import mine", id="module"),
        pytest.param("large = b'x' * 2**28", id="large"),
    ],
)
def test_a_program_with_more_gets_a_process_of_its_own(tmp_path: Path, before: str) -> None:
    assert [found["forked"] for found in look(tmp_path, before)] == [False, False]


def test_what_the_environment_says_holds(tmp_path: Path) -> None:
    assert {found["blas"] for found in look(tmp_path, OPENBLAS_NUM_THREADS="2")} == {"2"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_a_driver_that_was_forked(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "script.py"
    script.write_text(SLEEPS)
    env = {**os.environ, "GRISTMILL_PROGRESS": "off", "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
    ) as driver:
        assert driver.stdout is not None
        zygote, worker = map(int, driver.stdout.readline().split())
        assert Path(f"/proc/{zygote}/cmdline").read_text() == Path(f"/proc/{driver.pid}/cmdline").read_text()
        driver.send_signal(number)
        driver.stdout.read()  # which ends when nobody is left that could write
    deadline = time.monotonic() + 30  # a process closes its files some time before it is gone
    while any(_lives(pid) for pid in (zygote, worker)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(_lives(pid) for pid in (zygote, worker))
    assert not list(tmp_path.glob("gristmill-*"))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


SLEEPS = """
import os, time
from gristmill import LocalExecutor, Pipeline, ProcessingStage


class Sleeps(ProcessingStage):
    name = "sleeps"

    def process(self, task):
        print(os.getppid(), os.getpid(), flush=True)
        time.sleep(60)


Pipeline("p", stages=[Sleeps()]).run(LocalExecutor(num_workers=1))
"""
