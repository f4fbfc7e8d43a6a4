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
            "forked": "executors.local.zygote" not in parent,
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
        pytest.param("import warnings; warnings.simplefilter('error', UserWarning)", id="warnings"),
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


ODD = """
import multiprocessing, os, signal, sys, warnings
BEFORE
from gristmill import DocumentBatch, LocalExecutor, Pipeline, ProcessingStage
import pyarrow as pa


class Odd(ProcessingStage):
    name = "odd"

    def process(self, task):
        print("said by a worker")
        if DAEMON:
            child = multiprocessing.get_context("fork").Process(target=os.getpid)
            child.start()
            child.join()
        return DocumentBatch(pa.table({"x": [os.readlink("/proc/self/fd/1")]}))


class After(ProcessingStage):
    name = "after"
    num_workers = 1

    def process(self, task):
        return task


def run():
    result = Pipeline("p", stages=[Odd(), After()]).run(LocalExecutor(num_workers=1))
    os.write(2, next(iter(result)).data["x"][0].as_py().encode())


DAEMON = "daemon" in sys.argv
if DAEMON:
    child = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    child.start()
    child.join()
else:
    run()
"""


def odd(folder: Path, before: str, *arguments: str, closed: str = "") -> str:
    """What a program says that has one thing about it that others do not have. That of its workers is the last."""
    script = folder / "odd.py"
    script.write_text(ODD.replace("BEFORE", before))
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, str(script), *arguments],
        cwd=folder,
        env={**os.environ, "GRISTMILL_PROGRESS": "off"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode in (0, 120), done.stderr  # 120: Python could not flush its output at the end
    return done.stderr


MODULE = "sys.path.insert(0, '.'); open('mine.py', 'w').close(); import mine\n"


@pytest.mark.parametrize("more", ["", MODULE], ids=["forked", "started"])
@pytest.mark.parametrize(
    "before",
    [
        pytest.param("sys.stdout.close()", id="stdout closed"),
        pytest.param("os.close(1); other = open('other.txt', 'w')", id="another file in place of stdout"),
    ],
)
def test_a_program_may_have_closed_its_output(tmp_path: Path, before: str, more: str) -> None:
    said = odd(tmp_path, more + before)
    assert "Traceback" not in said
    assert "other.txt" not in said
    assert not (tmp_path / "other.txt").exists() or not (tmp_path / "other.txt").read_text()


@pytest.mark.parametrize("more", ["", MODULE], ids=["forked", "started"])
def test_a_worker_without_output_ends_and_touches_no_other(tmp_path: Path, more: str) -> None:
    assert "Traceback" not in odd(tmp_path, more, closed=">&-")


@pytest.mark.parametrize("more", ["", MODULE], ids=["forked", "started"])
def test_a_program_may_ignore_the_end_of_its_children(tmp_path: Path, more: str) -> None:
    assert odd(tmp_path, more + "signal.signal(signal.SIGCHLD, signal.SIG_IGN)").startswith("pipe:")


def test_output_need_not_be_a_file(tmp_path: Path) -> None:
    said = odd(tmp_path, "class Out:\n    def write(self, text):\n        return len(text)\n\nsys.stdout = Out()")
    assert said.startswith("pipe:")


def test_stages_of_a_daemon_may_have_processes(tmp_path: Path) -> None:
    assert odd(tmp_path, "", "daemon").startswith("pipe:")


def test_python_does_not_warn_of_threads_that_are_known(tmp_path: Path) -> None:
    assert "multi-threaded" not in odd(tmp_path, "warnings.simplefilter('always')")


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


SPEAKS = """
from gristmill import LocalExecutor, Pipeline, ProcessingStage, Task

class Speaks(ProcessingStage):
    def process(self, task):
        for _ in range(500):
            print(f"a line of {task.data}")
        return task

tasks = [Task(number) for number in range(8)]
Pipeline("p", stages=[Speaks().with_(num_workers=4)]).run(LocalExecutor(4), initial_tasks=tasks)
"""


def test_lines_of_several_workers_stay_whole() -> None:
    done = subprocess.run([sys.executable, "-c", SPEAKS], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.splitlines()) == sorted(f"a line of {task}" for task in range(8) for _ in range(500))
