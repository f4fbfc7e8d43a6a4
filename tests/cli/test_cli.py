"""The command line: what it prints, on which stream, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gristmill import __version__
from gristmill.cli import console_output
from gristmill.cli.main import app
from gristmill.core.run.preview import Preview, PreviewRow

ROOT = Path(__file__).parents[2]
OWN = "tests.recipes.user_stages"


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a", "b"):
        rows = [{"id": f"{name}{number}", "text": "these are some words " * number} for number in range(1, 21)]
        lines = [json.dumps(row) for row in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)


@pytest.fixture
def own(tmp_path: Path) -> Any:
    """Writes a recipe of the user's own stages."""

    def write(*stages: str) -> str:
        path = tmp_path / "own.yaml"
        path.write_text("stages:\n" + "".join(f"  - {OWN}:{stage}\n" for stage in stages))
        return str(path)

    return write


def gristmill(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def events(stdout: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.splitlines()]


def shell(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gristmill.cli.main", *arguments]
    where = options.pop("cwd", ROOT)
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=where, **options)


# -- run -------------------------------------------------------------------------------------------------


def test_run_prints_what_it_did_and_where_the_output_is(corpus: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    settings = ("--set", f"input={corpus}", "--set", f"output={output}", "--set", "min_words=20")
    done = gristmill("run", "quickstart", *settings, "--executor", "local", "--workers", "1")
    assert done.exit_code == 0, done.output
    table = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    assert table["read_jsonl"][0] == "40"
    assert table["WordCountFilter"][:3] == ["40", "32", "8"]
    assert "40 rows in, 32 out (80.0% kept)" in done.stdout
    assert f"wrote 2 files to {output}: a-" in done.stdout
    written = [json.loads(line) for file in output.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(written) == 32
    assert "\x1b" not in done.stdout


def test_run_with_json_and_a_run_directory(corpus: str, tmp_path: Path) -> None:
    settings = ("--set", f"input={corpus}", "--set", f"output={tmp_path / 'out'}")
    run_dir = str(tmp_path / "run")
    done = gristmill("run", "quickstart", *settings, "--workers", "0", "--json", "--run-dir", run_dir)
    assert done.exit_code == 0, done.output
    output = events(done.stdout)[-1]
    assert output["rows_in"] == 40
    assert output["rows_out"] == sum(len(Path(file).read_text().splitlines()) for file in output["files"])
    assert output["run_dir"] == run_dir
    reader = next(stage for stage in output["stages"] if stage["name"] == "read_jsonl")
    assert reader["quarantined"] == 0
    assert (tmp_path / "run" / "metrics.json").exists()


def test_quiet_prints_nothing(corpus: str, tmp_path: Path) -> None:
    settings = ("--set", f"input={corpus}", "--set", f"output={tmp_path / 'out'}")
    done = gristmill("run", "quickstart", *settings, "--workers", "0", "--quiet")
    assert (done.exit_code, done.output) == (0, "")


def test_set_reaches_a_filter(corpus: str, tmp_path: Path) -> None:
    settings = ("--set", f"input={corpus}", "--set", f"output={tmp_path}/o", "--set", "WordCountFilter.min_words=80")
    done = gristmill("run", "quickstart", *settings, "--workers", "0", "--json")
    assert events(done.stdout)[-1]["rows_out"] == 2


def test_a_recipe_of_modules_in_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "mystages.py").write_text(
        "from gristmill import DocumentBatch, ProcessingStage\n"
        "class Make(ProcessingStage):\n"
        "    def process(self, task):\n"
        "        return DocumentBatch(data=[{'text': 'x'}] * 3)\n"
        "class Take(ProcessingStage[DocumentBatch, DocumentBatch]):\n"
        "    def process(self, task):\n"
        "        return task.slice(0, 2)\n"
    )
    (tmp_path / "mine.yaml").write_text("stages: ['mystages:Make', 'mystages:Take']\n")
    done = shell("run", "mine.yaml", "--workers", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert events(done.stdout)[-1]["rows_out"] == 2


# -- plan, preview, lists ----------------------------------------------------------------------------------


def test_plan(corpus: str) -> None:
    done = gristmill("plan", "quickstart", "--set", f"input={corpus}")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "quickstart: 7 stages"
    assert lines[1].split() == ["1", "JsonlReader", corpus]
    assert lines[-1] == "runs as 9 steps in 1 group (-v shows them)"
    done = gristmill("plan", "quickstart", "--set", f"input={corpus}", "-v")
    assert "quickstart: 9 steps in 1 group" in done.stdout
    assert "needs text; gives word_count" in done.stdout


def test_plan_shows_what_runs_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here that is one without GPUs, and a stage that can do without one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    recipe = tmp_path / "gpu.yaml"
    wish = "{gpus: 0.25, or_cpu: true}"
    recipe.write_text(
        f"stages:\n  - {OWN}:MakeDocuments\n  - {OWN}:TwoTags:\n    with: {{one: {{resources: {wish}}}}}\n"
    )
    for more in ([], ["--executor", "LocalExecutor"], ["--workers", "1"]):
        done = gristmill("plan", str(recipe), *more)
        assert done.exit_code == 0, done.output
        assert "3 steps in 2 groups" in done.stdout
    recipe.write_text(recipe.read_text().replace(", or_cpu: true", ""))
    done = gristmill("plan", str(recipe))
    assert done.exit_code == 2
    assert "needs" in done.output


def test_preview(corpus: str) -> None:
    done = gristmill("preview", "quickstart", "-n", "3", "--set", f"input={corpus}")
    assert done.exit_code == 0, done.output
    assert "1  dropped by WordCountFilter  WordCountFilter=4" in done.stdout
    assert "text: these are some words" in done.stdout
    assert done.stdout.endswith("3 rows, 0 kept\n")


def test_preview_shows_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    console_output.print_preview(
        Preview([PreviewRow({"text": "a\x1b[2Jb\n[red]c", "na\x1bme": 1, "_hidden": 1}, {"x": 0.25})])
    )
    shown = capsys.readouterr().out
    assert "text: a [2Jb [red]c\n" in shown
    assert "na me: 1\n" in shown
    assert "\x1b" not in shown


def test_stages() -> None:
    done = gristmill("stages")
    assert done.exit_code == 0
    assert "WordCountFilter" in done.stdout
    assert "JsonlReader" in done.stdout
    one = gristmill("stages", "WordCountFilter")
    assert "min_words" in one.stdout
    assert "50" in one.stdout
    listed = json.loads(gristmill("stages", "--json").stdout)
    assert {"reader", "stage", "filter", "modifier", "writer"} == {entry["kind"] for entry in listed}
    unknown = gristmill("stages", "WordCuntFilter")
    assert unknown.exit_code == 2
    assert "Did you mean 'WordCountFilter'" in unknown.stderr


def test_recipes() -> None:
    done = gristmill("recipes")
    assert done.exit_code == 0
    assert "quickstart" in done.stdout
    assert "input=..." in done.stdout


def test_version_and_help() -> None:
    assert gristmill("--version").stdout == f"gristmill {__version__}\n"
    help_text = gristmill("--help").stdout
    for command in ("run", "plan", "preview", "stages", "recipes"):
        assert command in help_text


# -- errors and exit codes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "quickstart"], "error: quickstart, stage 1 (JsonlReader): variable 'input' has no value"),
        (["run", "quickstrt"], "Did you mean 'quickstart'"),
        (["run", "quickstart", "--set", "input"], "write --set name=value"),
        (["run", "quickstart", "--set", "inptu=x"], "Did you mean 'input'"),
        (["run", "quickstart", "--set", "input=/no/such/place"], "/no/such/place"),
        (["plan", "quickstart", "--set", "input=/no/such/place"], "/no/such/place"),
        (["preview", "quickstart", "--set", "input=/no/such/place"], "/no/such/place"),
        (["run", "quickstart", "--set", "input=x", "--executor", "ry"], "there is no executor 'ry'"),
    ],
)
def test_what_cannot_work_as_written_exits_with_2(arguments: list[str], message: str) -> None:
    done = gristmill(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_stage_that_fails_exits_with_1(own: Any) -> None:
    path = own("MakeDocuments", "Fails")
    done = shell("run", path, "--workers", "1")
    assert done.returncode == 1
    assert done.stderr.startswith("error: stage 'Fails' failed on task")
    assert "RuntimeError: the mill has no wind" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    output = shell("run", path, "--workers", "1", "-v")
    assert output.returncode == 1
    assert "Traceback" in output.stderr


def test_exit_code_of_a_bad_recipe(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("stages: [Modfy]")
    done = shell("run", "bad.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: bad.yaml, stage 1: there is no stage 'Modfy'. Did you mean 'Modify'?")


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_that_is_stopped(own: Any, number: int, code: int, message: str, workers: str) -> None:
    command = [sys.executable, "-m", "gristmill.cli.main", "run", own("MakeDocuments", "Slow"), "--workers", workers]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            assert process.stdout.readline() == "printed by a stage, line 0\n"
            process.send_signal(number)
            began = time.monotonic()
            _, stderr = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == code
    assert stderr.strip() == f"{message}. Without --run-dir, the next run starts from the beginning"
    assert time.monotonic() - began < 10


def test_output_that_is_not_read_to_its_end() -> None:
    command = f"{sys.executable} -m gristmill.cli.main stages | true"
    done = subprocess.run(command, check=False, shell=True, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stderr == ""


# -- looks ---------------------------------------------------------------------------------------------------


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from gristmill.cli.main import app;"
        "CliRunner().invoke(app, ['--help']);"
        "print([name for name in ('pyarrow', 'pandas', 'ray', 'torch', 'yaml', 'fsspec') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


def test_no_color_is_respected(tmp_path: Path) -> None:
    code = (
        "import sys, pty, os; os.environ['TERM'] = 'xterm-256color';"
        "os.environ.update({'NO_COLOR': '1'} if sys.argv[1] else {});"
        "pty.spawn([sys.executable, '-m', 'gristmill.cli.main', 'run', 'nothing'])"
    )
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    shown = {}
    for mode in ("", "x"):
        command = [sys.executable, "-c", code, mode]
        shown[mode] = subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=environment).stdout
    assert b"\x1b[" in shown[""]
    assert b"\x1b[" not in shown["x"]
    assert b"error: nothing is not a file" in shown["x"]


def test_a_run_is_resumed_and_its_output_verified(corpus: str, tmp_path: Path) -> None:
    output, run_dir = tmp_path / "out", str(tmp_path / "run")
    settings = ("--set", f"input={corpus}", "--set", f"output={output}")
    assert gristmill("run", "quickstart", *settings, "--workers", "0", "-q", "--run-dir", run_dir).exit_code == 0
    assert "2 sources are done, 0 are to do" in gristmill("resume", run_dir, "--dry-run").stdout
    verified = gristmill("verify", str(output))
    assert (verified.exit_code, "2 files" in verified.stdout) == (0, True)

    next(output.glob("a-*")).unlink()
    broken = gristmill("verify", str(output))
    assert broken.exit_code == 1
    assert "is missing" in broken.stdout
    assert "a.jsonl: its output is gone" in gristmill("resume", run_dir, "--dry-run").stdout
    assert gristmill("resume", run_dir, "--workers", "0").exit_code == 0
    assert gristmill("verify", str(output)).exit_code == 0


def test_resume_and_verify_of_other_directories(tmp_path: Path) -> None:
    resumed = gristmill("resume", str(tmp_path))
    assert resumed.exit_code == 2
    assert "has no recipe.yaml" in resumed.stderr
    verified = gristmill("verify", str(tmp_path))
    assert verified.exit_code == 2
    assert f"{tmp_path}.run/manifest.json" in verified.stderr


# -- output that cannot be written ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("/proc/nothing", "cannot write: No such file or directory: /proc/nothing. .*choose another directory"),
        ("{corpus}/a.jsonl", r"cannot write to .*a\.jsonl: .* is a file, .*Choose another"),
        ("{corpus}/a.jsonl/out", r"cannot write to .*out: .*a\.jsonl is a file, .*Choose another"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_one_line(corpus: str, where: str, expected: str) -> None:
    done = gristmill("run", "quickstart", "--set", f"input={corpus}", "--set", f"output={where}".format(corpus=corpus))
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(f"error: {expected}.*", line)


def test_a_full_disk_is_told_with_the_file_and_the_way_out(corpus: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=8k none {disk}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    run = (
        f"{sys.executable} -m gristmill.cli.main run quickstart -q --workers 0 --set min_words=1 "
        f"--set input={corpus} --set output={disk}/out"
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{mount} && {run}"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 1
    assert f"cannot write: No space left on device: {disk}/out" in done.stderr
    assert "Make room, or choose another directory" in done.stderr
    assert "Traceback" not in done.stderr
