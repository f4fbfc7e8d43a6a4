"""What the documents say was measured is what benchmarks/results holds; and the measuring itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"

IGNORES_ITS_CHILD = """
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
burn = "import time\\nwhile time.process_time() < 1: pass"
subprocess.Popen([sys.executable, "-c", burn]).wait()
"""
"""As Ray's raylet does: nobody waits for the child, and the kernel adds its time to nothing."""

MAKES_A_CORPUS = """
import json, sys
from pathlib import Path
from dedup_corpus import check, make
folder = Path(sys.argv[1])
make(folder, 400)
print(json.dumps(check(folder)))
"""

GOES_ON = """
import json
from run import is_measured
whole = {"code": "1234567", "rounds": 3}
few, earlier, failed = {**whole, "rounds": 2}, {**whole, "earlier": ["polars"]}, {**whole, "failed": ["polars: no"]}
found = [is_measured(one, 3, "1234567") for one in (whole, few, earlier, failed, {})]
print(json.dumps([*found, *(is_measured({**whole, "code": now}, 3, now) for now in ("1234567+", ""))]))
"""

PAGES = """
import json, plots, profile_shares, simulate_cluster
from figure_kinds import kinds
from workload_summary import MARK, summary
from result_tables import headline, table
blocks = [
    ("README.md", "ratios", headline(plots.all_bars())),
    ("docs/performance.md", MARK, summary()),
    ("docs/performance.md", profile_shares.MARK, profile_shares.table()),
    ("docs/performance.md", simulate_cluster.MARK, simulate_cluster.table()),
]
for name in kinds():
    path = plots.RESULTS / f"{name}.json"
    if path.exists():
        blocks.append(("docs/performance.md", name, table(json.loads(path.read_text()))))
print(json.dumps({"blocks": blocks, "pictures": plots.pictures(plots.RESULTS)}))
"""

FAILS = """
import json, run
from measuring_order import Entry, merge, run_all
values = iter((3.0, 1.0, 2.0))
def good():
    return {"value_s": {"median": next(values)}}
def bad():
    raise ValueError("it is out of order")
entries = [Entry("some", "bad", bad), Entry("some", "good", good)]
saved = []
run_all(entries, after=lambda entry: saved.append(entry.name))
found, failed = merge(entries[1].found), {"bad": entries[0].failed}
machine = {"cpu": "", "cores": 1, "memory_gb": 1, "python": "", "packages": {}}
lines = run.table({"figures": {"good": found}, "failed": failed, "machine": machine})
none = run.table({"figures": {}, "failed": {"bad": "it is out of order"}, "machine": machine})
print(json.dumps([found, failed, lines, saved, none]))
"""

HURRIES = """
import json, time
from measuring_order import Entry, run_all
def takes(seconds):
    return lambda: (time.sleep(seconds), {})[1]
times = {"long": (0.5, 3), "short": (0.01, 3), "once": (0.01, 1)}
entries = [Entry("some", name, takes(seconds), rounds) for name, (seconds, rounds) in times.items()]
run_all(entries, time.perf_counter() + 2.2)
print(json.dumps({entry.name: len(entry.found) for entry in entries}))
"""

HANGS = """
import json, os, sys, time
import process_measurement
process_measurement.LIMIT_S = 1.0
began = time.perf_counter()
starts = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).wait()"
try:
    process_measurement.measure([sys.executable, "-c", starts])
except RuntimeError as error:
    print(json.dumps([str(error)[-20:], time.perf_counter() - began, len(process_measurement._children())]))
"""

AGAIN = """
import json, sys
from pathlib import Path
import run
from dedup_tables import _counts
path = Path(sys.argv[1])
machine = {"cpu": "", "cores": 1, "memory_gb": 1, "python": "", "packages": {}}
quiet, loud = ({"rounds": 2, "others_cores": cores, "code": "abc1234"} for cores in (0.1, 1.5))
for figures in ({"old": {"rounds": 1}}, {"new": quiet, "loud": loud}):
    run._save({"figures": figures, "failed": {}, "machine": machine}, path)
saved = json.loads(path.read_text())
print(json.dumps([saved, run.table(saved), [_counts(4601), _counts([4603, 4601, 4602])]]))
"""

ALONE = """
from pathlib import Path
import dedup_systems
dedup_systems.dedup_corpus = Path
dedup_systems.megabytes = lambda corpus: 1
def run(system, kind, corpus):
    print(system.name, flush=True)
    raise OSError(f"{system.name} is out of order")
dedup_systems.run = run
dedup_systems._side_by_side("exact", 1, "none", dedup_systems.EXACT[:2])
"""

DIFFERS = """
import json
from measuring_order import merge
from workload_summary import as_of
one = lambda number: {"dict": {"median": number, "min": number, "max": number}, "count": number}
found = [{"f": merge([one(number) for number in numbers])} for numbers in ((0, 0, 0), (0, 0, 5))]
print(json.dumps([[as_of("theirs", "f", key)(figures) for key in ("dict", "count", "none")] for figures in found]))
"""

TWO_RUNS = """
import json, sys
from pathlib import Path
import run
from dedup_tables import beside, systems
def found(own, **others):
    result = {"documents": 9, "megabytes": 1, "rounds": 1}
    for name, cpu in {"own": own, **others}.items():
        times = {f"{name}_{what}": cpu for what in ("cpu_s", "wall_s", "memory_mb")}
        times |= {f"{name}_cpu_ratio": cpu / own, f"{name}_own_cpu_s": own} if name != "own" else {}
        result |= {key: {"median": one, "min": one, "max": one} for key, one in times.items()}
        result[f"{name}_left"] = 7
    return result
path = Path(sys.argv[1])
first, second = found(2, polars=4, polars_any=6, text_dedup=20), found(1, polars=3)
for one in (first, second | {"failed": ["polars_any: it fell over"]}):
    run._save({"figures": {"exact": one}, "failed": {}}, path)
exact = json.loads(path.read_text())["figures"]["exact"]
print(json.dumps([[row[2] for row in beside("exact", exact)], systems({"exact": exact})[-3:]]))
"""

JUDGES = """
import json
from figure_notes import judged
rows = [("at least 15x", "9.6x (8 to 16)", 3), ("at most 1.15x", "1.2x; 1", 1), ("below 2 s", "1,999.5 s", 3)]
rows += [("all", "8", 1), ("at least 99.5 %", "99.5 %", 3), ("at most 500 MB", "497 MB; worker 600 MB", 3)]
rows += [("at least 1x", "as it is", 1)]
print(json.dumps([judged(("", target, value), rounds)[2] for target, value, rounds in rows]))
"""

TIES = """
import json
from collections import Counter
from peer_comparison import difference, is_tied
top = ("RepeatingTopNGramsFilter", {"n": 2, "max_repeating_ngram_ratio": 0.3})
long_or_short = "a b a b " + "extraordinarily incomprehensible " * 2 + "some other words that are here but once and end"
words = ("WordCountFilter", {"min_words": 1000})
print(json.dumps([
    [is_tied(text, tools) for text, tools in (
        (long_or_short, [top]), (long_or_short, [top, words]), ("one two three four five", [top]), ("", [top]))],
    dict(difference(Counter("aab"), Counter("abc"))),
]))
"""

EXACTLY = """
import json, sys
from pathlib import Path
import dedup_systems
corpus = Path(sys.argv[1])
lines = [{"id": str(number), "text": text} for number, text in enumerate("aabbc")]
(corpus / "jsonl").mkdir()
(corpus / "jsonl" / "one.jsonl").write_text("".join(json.dumps(line) + chr(10) for line in lines))
judged = [dedup_systems.judge_exact(corpus, set(left)) for left in ("024", "01234", "01", "04")]
print(json.dumps([[one[what]["median"] for what in ("recall", "precision")] for one in judged]))
"""

COMPARES = """
import json
from image_models import joined
from peer_comparison import language_of
notes = [("a", "[0.9, 'en']"), ("a", {"score": 0.9, "language": "en"}), ("a", "[0.9, 'de']"), (" ", "[0.1, 'en']")]
found = [language_of({"id": 1, "text": text, "language": note}) for text, note in notes]
print(json.dumps([found, joined([[2, 3], [0, 1], [2.5, 4], [0, 1.5]])]))
"""

TELLS = """
import json
from process_measurement import short_message
said = ["/a/b/python /c/d/jobs.py text /w/in ended with 1: see /q/r/own.log", "no /home/me/x\\nmore", "https://a.org/b/c"]
print(json.dumps([short_message(RuntimeError(one)) for one in said]))
"""

COUNTS = """
import json
from measuring_order import merge
from workload_summary import f1, part, value
from result_tables import LINES
names = ("resiliparse", "justext", "trafilatura")
def pages(same):
    return {f"{name}_{what}": one for name in names for what, one in (("same", same), ("pages", 9))}
figures = {"warc_extract": merge([pages(same) for same in (9, 7, 8)]), "semantic": merge([{"f1": 0.75}, {"f1": 0.5}])}
figures["warc_extract"] |= {f"{name}_over_bare": {"median": 1, "min": 1, "max": 1} for name in names}
shown = part("warc_extract", "justext_same", "justext_pages", "pages")(figures)
row = LINES["warc_extract"](figures["warc_extract"])[-1][2]
print(json.dumps([value(figures, "warc_extract", "justext_same"), shown, row, f1(figures, "semantic")]))
"""

MEASURES = """
import json, subprocess, sys
from process_measurement import measure
child = subprocess.Popen(["sleep", "600"])
command = [sys.executable, "-c", sys.argv[1]]
print(json.dumps([measure(command).cpu, measure(command, unwaited=True).cpu, child.poll()]))
child.kill()
"""


def test_the_pages_say_what_the_results_say() -> None:
    """The tables of docs/performance.md, the ratios of README.md, and the pictures."""
    printed = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=True, cwd=BENCHMARKS)
    wanted = json.loads(printed.stdout)
    for page, mark, text in wanted["blocks"]:
        block = re.search(f"<!-- {mark}:begin -->\n(.*)\n<!-- {mark}:end -->", (ROOT / page).read_text(), re.S)
        assert block, f"{page} has no table {mark!r}"
        assert block[1] == text, f"{page}: {mark}"
    for name, picture in wanted["pictures"].items():
        assert (BENCHMARKS / "results" / name).read_text() == picture, name


def test_scores_agree_with_those_of_the_peer_but_for_reasons_that_are_told() -> None:
    found = json.loads((BENCHMARKS / "results" / "agreement.json").read_text())
    assert found["sets"]["web"]["documents"] >= 20_000
    assert found["sets"]["web"]["chain"]["kept_by_one"] == 0
    for name, one in found["sets"].items():
        for title, scores in one["filters"].items():
            assert scores["differ"].keys() <= found["reasons"].keys(), f"{title} over {name}"
            assert scores["equal"] + sum(scores["differ"].values()) == one["documents"], f"{title} over {name}"


def test_the_page_on_agreement_is_that_of_the_results() -> None:
    show = "import agreement_curator as a, json; print(a.page(json.loads(a.RESULT.read_text())), end='')"
    command = [sys.executable, "-c", show]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=BENCHMARKS).stdout
    assert (ROOT / "docs" / "agreement.md").read_text() == printed


def test_peers_are_pinned_and_bring_no_cuda() -> None:
    lists = list((BENCHMARKS / "peers").glob("*.txt"))
    assert lists
    for path in lists:
        for line in path.read_text().splitlines():
            assert re.fullmatch(r"[\w.-]+==[\w.!+]+", line), f"{path.name}: {line}"
            assert not re.match(r"torch|nvidia|cuda|cu(df|ml|py)|triton", line), f"{path.name}: {line}"


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    """Nothing is to be had without an index; an empty list needs nothing."""
    for name, wanted in (("missing", "no-such-thing-at-all==1.0\n"), ("plain", "# plain==1\n")):
        (tmp_path / f"{name}.txt").write_text(wanted)
    patch = "import sys; from pathlib import Path; from peers import install; install.version = lambda peer: '1.0'; "
    patch += "install.LISTS = Path(sys.argv.pop()); sys.exit(install.main())"
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PIP_NO_INDEX": "1"}
    command = [sys.executable, "-c", patch, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=BENCHMARKS, env=env)
    assert done.returncode == 1, done.stderr
    assert "missing 1.0 cannot be installed: ERROR: No matching distribution" in done.stdout
    assert [path.parent.name[:6] for path in (tmp_path / "cache/gristmill/peers").glob("*/complete")] == ["plain-"]


def test_a_figure_that_fails_is_told_and_the_others_go_on() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", FAILS], capture_output=True, text=True, check=True, cwd=BENCHMARKS
    ).stdout
    found, failed, lines, saved, none = json.loads(printed.splitlines()[-1])
    assert found == {"rounds": 3, "value_s": {"median": 2.0, "min": 1.0, "max": 3.0}}
    assert failed == {"bad": "ValueError: it is out of order"}
    assert saved == ["bad", "good", "good", "good"]
    assert "| `bad` |  | failed: ValueError: it is out of order |" in lines
    assert "| `bad` |  | failed: it is out of order |" in none


def test_what_takes_long_is_measured_once_if_there_is_no_time_for_more() -> None:
    command = [sys.executable, "-c", HURRIES]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=BENCHMARKS).stdout
    assert json.loads(printed.splitlines()[-1]) == {"long": 1, "short": 3, "once": 1}
    assert "once only, since there is no time for more rounds: long" in printed


def test_a_command_that_hangs_is_killed_with_all_that_it_started() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, check=True, cwd=BENCHMARKS, timeout=60
    )
    said, seconds, left = json.loads(done.stdout)
    assert said == "took longer than 1 s"
    assert seconds < 30
    assert left == 0


def test_figures_that_are_old_or_disturbed_are_told_and_counts_that_differ_are_shown(tmp_path: Path) -> None:
    command = [sys.executable, "-c", AGAIN, str(tmp_path / "kind.json")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=BENCHMARKS).stdout
    saved, note, counts = json.loads(printed)
    assert list(saved["figures"]) == ["old", "new", "loud"]
    assert note.endswith(
        "anew. Others used the machine just before these were measured: loud (1.5 cores). Whether others used it was "
        "not noted for old. Of the code of abc1234: new, loud. Of earlier code, maybe with other versions: old."
    )
    assert counts == ["4,601", "4,601 to 4,603"]


def test_a_round_whose_output_differs_is_not_left_out() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", DIFFERS], capture_output=True, text=True, check=True, cwd=BENCHMARKS
    )
    differs = "5 documents differ from theirs"
    assert json.loads(printed.stdout) == [["as theirs", "as theirs", "–"], [differs, differs, "–"]]


def test_counts_that_differ_are_shown_by_the_worst_of_them() -> None:
    assert _answer(COUNTS) == [8.0, "7 of 9 pages", "7 of 9, 7 of 9, 7 of 9", "F1 0.500"]


def test_a_system_of_an_earlier_run_keeps_the_seconds_that_it_is_given_over(tmp_path: Path) -> None:
    rows, (failed, _, earlier) = _answer(TWO_RUNS, str(tmp_path / "dedup.json"))
    assert rows == ["3.0x; 3.00 s over 1.00 s", "10.0x; 20.0 s over 2.00 s"]
    assert failed == "Not there, since it failed: polars_any: it fell over."
    assert earlier == "Of an earlier run, over what Gristmill took in that: text-dedup."


def test_what_was_stopped_goes_on_with_what_this_code_lacks() -> None:
    assert _answer(GOES_ON) == [True, *[False] * 6]


def test_a_missed_target_and_a_single_round_are_told() -> None:
    assert _answer(JUDGES) == [
        "**missed**: 9.6x (8 to 16)",
        "**missed**: 1.2x; 1; one round",
        "**missed**: 1,999.5 s",
        "8; one round",
        "99.5 %",
        "497 MB; worker 600 MB",
        "as it is",
    ]


def test_a_document_that_a_tie_decides_is_told_apart_and_one_that_is_written_twice_is_seen() -> None:
    tied, differ = _answer(TIES)
    assert tied == [True, False, False, False]
    assert differ == {"a": 1, "c": 1}


def test_exact_duplicates_are_judged_by_the_copy_of_each_text_that_is_left(tmp_path: Path) -> None:
    right, nothing, wrong, too_few = _answer(EXACTLY, str(tmp_path))
    assert right == [1.0, 1.0]
    assert nothing == [0.0, 0.0]
    assert wrong == [0.5, 0.3333]
    assert too_few == [1.0, 0.6667]


def test_languages_are_compared_however_they_are_noted_and_time_is_not_counted_twice() -> None:
    languages, spans = _answer(COMPARES)
    assert languages == [[1, "en"], [1, "en"], [1, "de"], [1, None]]
    assert spans == [[0, 1.5], [2, 4]]


def test_results_name_no_folders_of_the_machine() -> None:
    python, home, address = _answer(TELLS)
    assert python == "python jobs.py text in ended with 1: see own.log"
    assert home == "no x"
    assert address == "https://a.org/b/c"


def test_a_comparison_without_gristmill_is_none() -> None:
    """The others' figures are given over ours: none of them is measured."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False, cwd=BENCHMARKS)
    assert "OSError: own is out of order" in done.stderr
    assert done.stdout == "own\n"


def test_time_that_nobody_waited_for_is_measured_and_children_of_others_are_left_alone() -> None:
    command = [sys.executable, "-c", MEASURES, IGNORES_ITS_CHILD]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=BENCHMARKS).stdout
    missed, seen, other = json.loads(printed)
    assert missed < 0.7 < seen
    assert other is None


def test_the_corpus_with_known_duplicates_has_those_and_no_others(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKES_A_CORPUS, str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=BENCHMARKS).stdout
    assert json.loads(printed)["by_accident"] == 0
    lines = [line for path in (tmp_path / "jsonl").iterdir() for line in path.read_text().splitlines()]
    texts = {record["id"]: record["text"] for record in map(json.loads, lines)}
    truth = pq.read_table(tmp_path / "truth.parquet").to_pylist()
    assert len(texts) == 400
    assert {row["kind"] for row in truth} == {"exact", "pair", "star", "chain", "form"}
    for row in truth:
        one, other = (_runs_of_words(texts[row[name]]) for name in ("u", "v"))
        assert row["words"] == pytest.approx(len(one & other) / len(one | other))


def _answer(program: str, *arguments: str) -> Any:
    command = [sys.executable, "-c", program, *arguments]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=BENCHMARKS).stdout
    return json.loads(printed.splitlines()[-1])


def _runs_of_words(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}
