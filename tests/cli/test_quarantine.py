"""The command line and records that fail: how they are shown, looked at and done again."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gristmill.cli.main import app

ROOT = Path(__file__).parents[2]
CHOKES = "tests.recipes.user_stages:Chokes"
STEERS = "\x1b[2J\x9b31m\x1b]0;owned\x07"
"""What a terminal would obey: clear the screen, turn red, change the title."""


def gristmill(*arguments: str | Path, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.stderr
    return done


@dataclass(frozen=True)
class Mill:
    """Two files of 200 documents, of which nine each are poisoned, and a recipe that fails on them."""

    root: Path

    @property
    def run_dir(self) -> Path:
        return self.root / "run"

    @property
    def out(self) -> Path:
        return self.root / "out"

    def recipe(self, out: str = "out", writer: bool = True) -> Path:
        path = self.root / f"{out}.yaml"
        stages: list[Any] = [
            {"JsonlReader": {"file_paths": str(self.root / "data")}},
            {CHOKES: {"cure": str(self.root / "cure")}},
            {"JsonlWriter": {"path": str(self.root / out)}},
        ]
        path.write_text(json.dumps({"name": "mill", "stages": stages if writer else stages[:2]}))
        return path

    def run(self, *options: str | Path, code: int = 0) -> Any:
        return gristmill("run", self.recipe(), "--workers", "0", "--max-errors", "50", *options, code=code)

    def listed(self, where: Path, *options: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(gristmill("quarantine", "list", where, "--json", *options).stdout)
        return found

    def cure(self) -> None:
        (self.root / "cure").write_text("")

    def written(self, out: str = "out") -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (self.root / out).glob("*.jsonl")}


@pytest.fixture
def mill(tmp_path: Path) -> Mill:
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        rows: list[dict[str, Any]] = [{"id": f"{name}{number}", "text": "good grain"} for number in range(200)]
        for number in range(10, 19):
            rows[number]["text"] = f"poison {STEERS} {number}\n" + "chaff " * 200
        (tmp_path / "data" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Mill(tmp_path)


@pytest.fixture
def failed(mill: Mill) -> Mill:
    """After a run with failures."""
    mill.run("--run-dir", mill.run_dir, "--quiet")
    return mill


# -- run -------------------------------------------------------------------------------------------------


def test_a_run_says_what_could_not_be_processed_and_how_to_see_it(mill: Mill) -> None:
    done = mill.run("--run-dir", mill.run_dir)
    table = [line.split() for line in done.stdout.splitlines()]
    assert ["stage", "rows", "in", "kept", "dropped", "quarantined", "seconds", "MB/s"] in table
    assert next(line for line in table if line[:1] == ["Chokes"])[1:5] == ["400", "382", "0", "18"]
    assert "400 rows in, 382 out (95.5% kept)" in done.stdout
    line = f"18 records failed and are not included; see: gristmill quarantine list {mill.run_dir}\n"
    assert done.stdout.endswith(line)


def test_a_run_without_failures_says_nothing_of_quarantine(mill: Mill) -> None:
    mill.cure()
    assert "quarantine" not in mill.run("--run-dir", mill.run_dir).stdout
    assert "could not" not in mill.run().stdout


def test_the_json_summary_counts_what_is_in_quarantine(mill: Mill) -> None:
    events = [json.loads(line) for line in mill.run("--json").stdout.splitlines()]
    last_event = events[-1]
    assert [event["records"] for event in events if event["event"] == "quarantine"] == [18]
    assert last_event["quarantined"] == 18
    assert {stage["name"]: stage["quarantined"] for stage in last_event["stages"]}["Chokes"] == 18
    assert last_event["run_dir"] == str(mill.out.with_suffix(".run"))


def test_a_quiet_run_tells_of_failures_on_standard_error(mill: Mill) -> None:
    done = mill.run("--quiet")
    assert done.stdout == ""
    assert done.stderr == f"18 records failed and are not included; see: gristmill quarantine list {mill.out}.run\n"


def test_a_pipeline_that_writes_nothing_says_how_to_keep_them(mill: Mill) -> None:
    done = gristmill("run", mill.recipe(writer=False), "--workers", "0", "--max-errors", "50")
    assert "18 records failed and are not included; use --run-dir to keep them" in done.stdout


def test_a_resumed_run_still_tells_of_earlier_failures(failed: Mill) -> None:
    done = gristmill("resume", failed.run_dir, "--workers", "0", "--max-errors", "18")
    assert "0 rows in" in done.stdout
    assert "18 records failed and are not included" in done.stdout


# -- options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["--on-error", "raise"], ["--max-errors", "17"], ["--max-errors", "4%"]])
def test_a_run_stops(mill: Mill, options: list[str]) -> None:
    done = mill.run(*options, "--run-dir", mill.run_dir, code=1)
    assert done.stderr.startswith("error: stage 'Chokes' failed on task")
    assert "ValueError: cannot digest poison" in done.stderr
    assert not set(STEERS) & set(done.stderr) - set("[2J31m]0;owned")
    if options[0] == "--max-errors":
        assert f"gristmill quarantine list {mill.run_dir}" in done.stderr
        assert len(mill.listed(mill.run_dir)) == 18


def test_a_run_without_a_directory_is_not_said_to_go_on(mill: Mill) -> None:
    done = CliRunner().invoke(app, ["run", str(mill.recipe()), "--workers", "0", "--max-errors", "17"])
    assert done.exit_code == 1
    assert "without --run-dir it starts from the beginning; or allow more with --max-errors" in done.stderr
    assert "goes on where" not in done.stderr


def test_tracebacks_on_standard_error_do_not_steer_the_terminal(mill: Mill) -> None:
    done = CliRunner().invoke(app, ["run", str(mill.recipe()), "--workers", "0", "--on-error", "raise", "-v"])
    assert done.exit_code == 1
    assert "Traceback" in done.stderr
    assert not {"\x1b", "\x9b", "\x07"} & set(done.stderr)


def test_resume_takes_the_same_options(mill: Mill) -> None:
    mill.run("--run-dir", mill.run_dir, "--max-errors", "5", code=1)
    assert gristmill("resume", mill.run_dir, "--workers", "0", "--on-error", "raise", code=1).stdout == ""
    done = gristmill("resume", mill.run_dir, "--workers", "0", "--max-errors", "none")
    assert "18 records failed and are not included" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--on-error", "quarantin"], "--on-error quarantin: must be quarantine or raise. Did you mean 'quarantine'?"),
        (["--max-errors", "two"], "--max-errors two: write a number of records such as 50"),
    ],
)
def test_options_that_make_no_sense_exit_with_2(failed: Mill, options: list[str], message: str) -> None:
    for command in (["run", failed.recipe()], ["resume", failed.run_dir]):
        done = gristmill(*command, *options, code=2)
        assert f"error: {message}" in done.stderr
        assert done.stdout == ""


# -- list ----------------------------------------------------------------------------------------------------


def test_list_shows_each_record_and_counts_the_causes(failed: Mill) -> None:
    shown = gristmill("quarantine", "list", failed.run_dir).stdout
    lines = [line.split() for line in shown.splitlines() if re.match(r" [0-9a-f]{12} ", line)]
    assert len(lines) == 18
    ids = {entry["id"]: entry for entry in failed.listed(failed.run_dir)}
    for name, stage, kind, where, *error, attempts in lines:
        entry = ids[name]
        assert (stage, kind, attempts) == ("Chokes", "raised", "2")
        assert where == f"{entry['file']}:{entry['position']}"
        assert " ".join(error).startswith("ValueError: cannot digest poison [2J")
    assert "18 quarantined records:\n" in shown
    assert re.search(r"^ +18  Chokes: ValueError: cannot digest .*, and similar$", shown, re.MULTILINE)


def test_list_says_how_many_it_leaves_out(failed: Mill) -> None:
    shown = gristmill("quarantine", "list", failed.run_dir, "-n", "5").stdout
    assert len(re.findall(r"^ [0-9a-f]{12} ", shown, re.MULTILINE)) == 5
    assert "... and 13 more; -n 0 lists all" in shown
    assert "18 quarantined records" in shown
    assert "more" not in gristmill("quarantine", "list", failed.run_dir, "-n", "0").stdout


def test_list_of_one_stage(failed: Mill) -> None:
    assert len(failed.listed(failed.run_dir, "--stage", "Chokes")) == 18
    assert failed.listed(failed.run_dir, "--stage", "Other") == []
    other = gristmill("quarantine", "list", failed.run_dir, "--stage", "Other")
    assert other.stdout == "no quarantined records of stage 'Other'\n"


def test_list_as_json(failed: Mill) -> None:
    entries = failed.listed(failed.run_dir)
    for entry in entries:
        with (failed.root / "data" / entry["file"]).open("rb") as file:
            file.seek(entry["position"])
            row = json.loads(file.readline())
        assert entry["error"] == f"ValueError: cannot digest {row['text']}"
        assert entry["files"] == [str(failed.root / "data" / entry["file"])]
    assert len({entry["id"] for entry in entries}) == 18


def test_an_output_directory_stands_for_the_run_beside_it(mill: Mill) -> None:
    mill.run("--quiet")
    assert len(mill.listed(mill.out)) == len(mill.listed(mill.out.with_suffix(".run"))) == 18
    assert mill.listed(mill.out) == mill.listed(Path(f"{mill.out}/"))


def test_nothing_in_quarantine_is_no_error(mill: Mill) -> None:
    mill.cure()
    mill.run("--run-dir", mill.run_dir, "--quiet")
    for command in ("list", "show", "replay"):
        assert gristmill("quarantine", command, mill.run_dir).stdout == "no quarantined records\n"
        output = gristmill("quarantine", command, mill.out).stdout
        assert output == "no quarantined records\n"
    assert mill.listed(mill.run_dir) == []


@pytest.mark.parametrize("command", ["list", "show", "replay"])
@pytest.mark.parametrize("where", ["nowhere", "data", "data/a.jsonl", "nosuch://place"])
def test_a_wrong_path_exits_with_2(mill: Mill, command: str, where: str) -> None:
    place = where if "://" in where else mill.root / where
    done = gristmill("quarantine", command, place, code=2)
    assert done.stderr.startswith(f"error: {place}")
    assert done.stdout == ""


# -- show ----------------------------------------------------------------------------------------------------


def test_show_has_all_that_is_known(failed: Mill) -> None:
    entry = failed.listed(failed.run_dir)[0]
    shown = gristmill("quarantine", "show", failed.run_dir, entry["id"]).stdout
    assert shown.startswith(f"{entry['id']}  Chokes, raised, 2 attempts\n")
    assert f"   where: {entry['file']}:{entry['position']}\n" in shown
    assert f"   files: {entry['files'][0]}\n" in shown
    assert "   error: ValueError: cannot digest poison [2J" in shown
    assert re.search(r"^   row\.id: [ab]1\d$", shown, re.MULTILINE)
    assert re.search(r"^   row\.text: poison \[2J.*…$", shown, re.MULTILINE)
    assert "user_stages.py" in shown.partition("   traceback:\n")[2]


def test_show_shortens_unless_told_otherwise(failed: Mill) -> None:
    name = failed.listed(failed.run_dir)[0]["id"]
    brief = gristmill("quarantine", "show", failed.run_dir, name).stdout
    full = gristmill("quarantine", "show", failed.run_dir, name, "--full").stdout
    assert max(map(len, brief.splitlines())) < 400
    row_text = full.partition("   row.text:\n")[2].partition("   traceback:")[0].splitlines()
    assert len(row_text) == 2, "the lines of a text stay lines"
    assert row_text[1].strip() == ("chaff " * 200).strip()


def test_show_without_an_id_shows_all(failed: Mill) -> None:
    shown = gristmill("quarantine", "show", failed.run_dir).stdout
    assert len(re.findall(r"^[0-9a-f]{12}  Chokes, raised", shown, re.MULTILINE)) == 18


def test_show_as_json_gives_a_line_each(failed: Mill) -> None:
    entries = failed.listed(failed.run_dir)
    lines = gristmill("quarantine", "show", failed.run_dir, "--json").stdout.splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["id"] for record in records] == [entry["id"] for entry in entries]
    assert all(STEERS in record["row"]["text"] for record in records)
    assert all(record["traceback"] for record in records)
    one = gristmill("quarantine", "show", failed.run_dir, entries[3]["id"], "--json").stdout
    assert json.loads(one) == records[3]


def test_an_id_may_be_cut_short_as_long_as_it_is_the_only_one(failed: Mill) -> None:
    ids = sorted(entry["id"] for entry in failed.listed(failed.run_dir))
    length = next(n for n in range(1, 13) if sum(name.startswith(ids[0][:n]) for name in ids) == 1)
    assert gristmill("quarantine", "show", failed.run_dir, ids[0][:length]).stdout.startswith(ids[0])

    first = next(name[0] for name in ids if sum(other[0] == name[0] for other in ids) > 1)  # 18 ids, 16 digits
    among = [name for name in ids if name[0] == first]
    ambiguous = gristmill("quarantine", "show", failed.run_dir, first, code=2)
    assert f"{len(among)} records have an id that begins with {first}: {among[0]}, {among[1]}" in ambiguous.stderr

    missing = gristmill("quarantine", "show", failed.run_dir, "no-such-id", code=2)
    assert "no quarantined record has the id no-such-id; list them: gristmill quarantine list" in missing.stderr


@pytest.mark.parametrize("arguments", [["list"], ["show"], ["show", "--full"]])
def test_what_is_shown_does_not_steer_a_terminal(failed: Mill, arguments: list[str]) -> None:
    command, *options = arguments
    if "--full" in options:
        options.append(failed.listed(failed.run_dir)[0]["id"])
    shown = gristmill("quarantine", command, failed.run_dir, *options).stdout
    assert not {"\x1b", "\x9b", "\x07"} & set(shown)
    code = (
        "import sys, pty, os; os.environ['TERM'] = 'xterm-256color';"
        "pty.spawn([sys.executable, '-m', 'gristmill.cli.main', 'quarantine', *sys.argv[1:]])"
    )
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    command_line = [sys.executable, "-c", code, command, str(failed.run_dir), *options]
    drawn = subprocess.run(command_line, check=True, capture_output=True, cwd=ROOT, env=environment).stdout.decode()
    assert "\x1b[1m" in drawn, "it is in colour"
    assert set(re.findall(r"\x1b\[?[0-9;]*.", drawn)) <= set(re.findall(r"\x1b\[[0-9;]*m", drawn))
    assert not {"\x9b", "\x07"} & set(drawn)


# -- replay --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [False, True], ids=["run_dir", "output"])
def test_a_replay_after_a_fix_gives_what_a_run_without_failures_gives(mill: Mill, beside: bool) -> None:
    mill.run("--quiet", *([] if beside else ["--run-dir", mill.run_dir]))
    where = mill.out if beside else mill.run_dir
    before = mill.written()

    output = gristmill("quarantine", "replay", where, "--dry-run").stdout
    assert output.count("records of it are in quarantine") == 2
    assert "0 sources are done, 2 are to do" in output
    assert mill.written() == before

    mill.cure()
    done = gristmill("quarantine", "replay", where, "--workers", "1")
    assert "replayed 18 records of " in done.stdout
    assert done.stdout.endswith(": 18 no longer quarantined\n")
    assert gristmill("quarantine", "list", where).stdout == "no quarantined records\n"
    assert gristmill("quarantine", "replay", where).stdout == "no quarantined records\n"

    gristmill("run", mill.recipe("clean"), "--workers", "0", "--quiet")
    assert mill.written() == mill.written("clean")
    assert mill.written() != before
    gristmill("verify", mill.out)


def test_only_files_with_failures_are_done_again(mill: Mill) -> None:
    (mill.root / "data" / "c.jsonl").write_text(json.dumps({"id": "c", "text": "good"}) + "\n")
    mill.run("--run-dir", mill.run_dir, "--quiet")
    untouched = next(mill.out.glob("c-*")).stat()
    mill.cure()
    done = gristmill("quarantine", "replay", mill.run_dir, "--workers", "0")
    assert "401 rows in, 401 out" in done.stdout  # of the whole run: one row was done before
    assert next(mill.out.glob("c-*")).stat() == untouched


def test_a_replay_without_a_fix_changes_nothing(failed: Mill) -> None:
    before, listed = failed.written(), failed.listed(failed.run_dir)
    done = gristmill("quarantine", "replay", failed.run_dir, "--workers", "0")
    assert ": 0 no longer quarantined, 18 still quarantined" in done.stdout
    assert failed.written() == before
    again = failed.listed(failed.run_dir)
    assert sorted(entry["id"] for entry in again) == sorted(entry["id"] for entry in listed)


def test_a_quiet_replay(failed: Mill) -> None:
    failed.cure()
    assert gristmill("quarantine", "replay", failed.run_dir, "--workers", "0", "--quiet").output == ""


def test_a_replay_may_not_make_things_worse(failed: Mill) -> None:
    path = failed.root / "data" / "a.jsonl"
    path.write_text(path.read_text() + json.dumps({"id": "new", "text": "poison too"}) + "\n")
    done = gristmill("quarantine", "replay", failed.run_dir, "--workers", "0", code=1)
    assert "more than --max-errors 18 allows" in done.stderr
    assert "with the same --run-dir it goes on where this run stopped; or allow more with --max-errors" in done.stderr
    assert "run_dir=" not in done.stderr
    allowed = gristmill("quarantine", "replay", failed.run_dir, "--workers", "0", "--max-errors", "10%")
    assert "19 records failed and are not included" in allowed.stdout
    wrong = gristmill("quarantine", "replay", failed.run_dir, "--max-errors", "x", code=2)
    assert "--max-errors x: write a number" in wrong.stderr


def test_a_run_from_python_is_replayed_from_python(failed: Mill) -> None:
    (failed.run_dir / "recipe.yaml").unlink()
    done = gristmill("quarantine", "replay", failed.run_dir, code=2)
    assert f"call pipeline.run(run_dir='{failed.run_dir}', replay=True)" in done.stderr
    assert "was started from Python" in done.stderr


def test_a_failed_run_without_a_directory_can_be_replayed(mill: Mill) -> None:
    mill.run("--max-errors", "3", code=1)
    mill.cure()
    gristmill("quarantine", "replay", mill.out, "--workers", "0")
    gristmill("run", mill.recipe("clean"), "--workers", "0", "--quiet")
    assert mill.written() == mill.written("clean")
