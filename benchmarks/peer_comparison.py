"""Figures: Gristmill and other curation systems over the same files, one after the other in each round.

Filters: the 28 English heuristics of the recipe `heuristic-english`, JSON lines to JSON lines, against NeMo Curator on
Ray Data, which is its fastest executor here, and against its filters in a plain loop over documents. Modifiers: six
of them chained. Language: the same fastText model. Tags: what Gopher and C4 would say of each document, none dropped,
against dolma's taggers of the same rules, whose numbers are its own and are not compared. Start: one filter over a few
documents. CPU seconds are those of all processes, Ray's included, from the start of the interpreter to its end; `ratio`
is the peer's over ours in the same round. What is written is compared: which documents, their text after modifiers, and
their language; documents that a tie decides are counted apart. Memory is that of all processes together.

    python benchmarks/peer_comparison.py filters | modifiers | language | tags [MEGABYTES] [ROUNDS]
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import pyarrow as pa
from corpus import corpus
from peers.install import interpreter
from process_measurement import HERE, WORK, Measured, measure, show, stable

from ray_cluster import started

FILES = 16  # the peer reads whole files: fewer would leave a core idle
OUT = WORK / "versus"
SAMPLE_S = 0.1

Tools = list[tuple[str, dict[str, Any]]]
Of = Callable[[dict[str, Any]], object]
"""What is compared of a document."""

SIX: Tools = [
    ("UnicodeReformatter", {}),
    ("NewlineNormalizer", {}),
    ("UrlRemover", {}),
    ("QuotationRemover", {}),
    ("MarkdownRemover", {}),
    ("LineRemover", {"patterns": ["Read more", "Share this page", "Advertisement"]}),
]


def heuristics() -> Tools:
    """The filters of the recipe, with their arguments."""
    from gristmill.recipes import load_recipe

    stages = load_recipe("heuristic-english", {"input": "unused"}).stages
    filters = [stage.to_yaml()["ScoreFilter"]["filter_obj"] for stage in stages if stage.target == "ScoreFilter"]
    return [next(iter(one.items())) for one in filters]


def language_tools() -> Tools:
    from gristmill.models.fasttext_model import FastTextModel

    return [("FastTextLangId", {"model_path": str(FastTextModel(None, "versus").file()), "min_langid_score": 0.0})]


@contextlib.contextmanager
def ray_of_our_own() -> Iterator[str]:
    """A directory where no cluster of others is found: Ray joins one that it finds, even of another environment."""
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as home,
        mock.patch.dict(os.environ, RAY_TMPDIR=home, RAY_raylet_start_wait_time_s="300"),
    ):
        yield home


def own(folder: Path, tools: Tools, executor: str = "LocalExecutor") -> Measured:
    """Gristmill over a folder."""
    command = [sys.executable, HERE / "peers" / "gristmill_jobs.py", "chain", folder, OUT / "own", note(tools)]
    with ray_of_our_own() if executor != "LocalExecutor" else contextlib.nullcontext():
        command = [*map(str, command), executor]
        return measure(command, unwaited=executor != "LocalExecutor", memory=True, sample_s=SAMPLE_S)


def curator(job: str, folder: Path, tools: Tools) -> Measured:
    """NeMo Curator over a folder: its executor or a loop. Once more if it fails: its Ray does not always start."""
    try:
        return _curator(job, folder, tools)
    except RuntimeError as error:
        print(f"once more, since {error}", flush=True)
        return _curator(job, folder, tools)


def _curator(job: str, folder: Path, tools: Tools) -> Measured:
    shutil.rmtree(OUT / job, ignore_errors=True)
    command = [interpreter("nemo-curator"), HERE / "peers" / "curator_jobs.py", job, folder, OUT / job]
    with ray_of_our_own():
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RAY_ADDRESS")}
        more = {"env": env, "log": OUT / f"{job}.log", "memory": True, "sample_s": SAMPLE_S}
        return measure([*map(str, command), str(note(tools))], unwaited=job != "loop", **more)


def note(tools: Tools, path: Path = OUT / "tools.json") -> Path:
    """A file with the tools, for both sides to read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tools))
    return path


Seen = Counter[bytes]
"""How often each document was written."""


def written(folder: Path, of: Of = lambda record: record) -> Seen:
    """Digests of what is to be compared of each document in a folder, in whatever order and files they are."""
    records = (orjson.loads(line) for path in folder.glob("**/*.jsonl") for line in path.open("rb"))
    return Counter(_digest(of(record)) for record in records)


def difference(one: Seen, other: Seen) -> Seen:
    """What only one of two has written, or has written more often."""
    return (one - other) + (other - one)


def _digest(value: object) -> bytes:
    return hashlib.sha256(orjson.dumps(value)).digest()


def language_of(record: dict[str, Any]) -> tuple[str, str | None]:
    """Id and language, however a system notes it. A blank document has none, which the peer's gets from the model."""
    found = record["language"]
    label = found["language"] if isinstance(found, dict) else ast.literal_eval(found)[1]
    return record["id"], label.lower() if record["text"].strip() else None


def filters(rounds: int = 3, size: int = 100) -> dict[str, Any]:
    """28 filters: on this machine's processes, on Ray, and on a cluster that runs already."""
    folder, tools = corpus(size * 10**6, FILES)[0].parent, heuristics()
    found: dict[str, list[Measured]] = {}
    seen: dict[str, Seen] = {}
    for _ in range(rounds):
        for name, run in _filter_runs(folder, tools).items():
            found.setdefault(name, []).append(run())
            _tell(name, found[name][-1])
            kind = name if name in ("loop", "executor") else "own"
            seen[name] = written(OUT / kind, itemgetter("id"))
    result = _compare(found, seen, folder)
    differ = set().union(*(difference(seen["own"], rows) for rows in seen.values()))
    tied = sum(is_tied(text, tools) for text in _texts(folder, differ))
    result["rows_tied"], result["rows_that_differ"] = stable([tied]), stable([len(differ) - tied])
    running = [run.answer["run_wall_s"] for run in found["executor"]]
    result["executor_running_wall_s"] = stable(running)
    pairs = zip(running, found["own_ray_running"], strict=True)
    result["executor_wall_ratio_ray_running"] = stable([wall / mine.wall for wall, mine in pairs])
    pairs = zip(found["executor"], found["own_ray"], strict=True)
    result["executor_wall_ratio_ray"] = stable([run.wall / mine.wall for run, mine in pairs])
    return result


def _texts(folder: Path, digests: set[bytes]) -> Iterator[str]:
    """The documents of a folder whose ids have these digests."""
    records = (orjson.loads(line) for path in folder.glob("*.jsonl") for line in path.open("rb") if digests)
    return (record["text"] for record in records if _digest(record["id"]) in digests)


def is_tied(text: str, tools: Tools) -> bool:
    """Whether a document is kept or not only by which of its most frequent n-grams is taken: Curator takes one by hash
    seed, Gristmill the first in the text."""
    open_ = [tool for tool in tools if tool[0] == "RepeatingTopNGramsFilter" and _is_open(text, **tool[1])]
    return bool(open_) and all(_keeps(text, tool) for tool in tools if tool not in open_)


def _is_open(text: str, n: int, max_repeating_ngram_ratio: float) -> bool:
    return len({score <= max_repeating_ngram_ratio for score in top_ngram_scores(text, n)}) == 2


def _keeps(text: str, tool: tuple[str, dict[str, Any]]) -> bool:
    import gristmill.text

    made = getattr(gristmill.text, tool[0])(**tool[1])
    return bool(made.keep_batch(made.score_batch(pa.array([text])))[0].as_py())


def top_ngram_scores(text: str, n: int) -> list[float]:
    """The scores that each of the most frequent n-grams would give."""
    words = text.split()
    counts = Counter(" ".join(words[at : at + n]) for at in range(len(words) - n + 1))
    most = max(counts.values(), default=0)
    tied = [ngram for ngram, count in counts.items() if count == most]
    return [(len(text) - len(text.replace(ngram, ""))) / len(text) for ngram in tied]


def start(rounds: int = 3) -> dict[str, Any]:
    """One filter over a few documents: what it costs to start and to end."""
    folder, tools = corpus(10**5, 2)[0].parent, [("WordCountFilter", {})]
    found: dict[str, list[Measured]] = {}
    for _ in range(rounds):
        for name, run in _filter_runs(folder, tools).items():
            if name != "own_ray_running":
                found.setdefault(name, []).append(run())
                _tell(name, found[name][-1])
    return {
        f"{name}_{what}_s": stable([getattr(run, what) for run in runs])
        for name, runs in found.items()
        for what in ("cpu", "wall")
    }


def _filter_runs(folder: Path, tools: Tools) -> dict[str, Callable[[], Measured]]:
    return {
        "own": lambda: own(folder, tools),
        "executor": lambda: curator("executor", folder, tools),
        "own_ray": lambda: own(folder, tools, "RayActorPoolExecutor"),
        "own_ray_running": lambda: _on_running_cluster(folder, tools),
        "loop": lambda: curator("loop", folder, tools),
    }


def _on_running_cluster(folder: Path, tools: Tools) -> Measured:
    with ray_of_our_own() as home, started(len(os.sched_getaffinity(0)), ray_temp_dir=home):
        return own(folder, tools, "RayActorPoolExecutor")


def modifiers(rounds: int = 3, size: int = 50) -> dict[str, Any]:
    return _side_by_side(rounds, size, SIX, itemgetter("id", "text"))


def language(rounds: int = 3, size: int = 50) -> dict[str, Any]:
    return _side_by_side(rounds, size, language_tools(), language_of)


GOPHER_AND_C4: Tools = [("GopherQualityFilter", {}), ("GopherRepetitionFilter", {}), ("C4QualityFilter", {})]


def tags(rounds: int = 3, size: int = 13) -> dict[str, Any]:
    """What the rules of Gopher and C4 say of each document: ours beside dolma's."""
    folder = corpus(size * 10**6, FILES)[0].parent
    found: dict[str, list[Measured]] = {"own": [], "dolma": []}
    jobs = HERE / "peers"
    for _ in range(rounds):
        mine = [sys.executable, jobs / "gristmill_jobs.py", "tags", folder, OUT / "own", note(GOPHER_AND_C4)]
        found["own"].append(measure([*map(str, mine)], memory=True, sample_s=SAMPLE_S, log=OUT / "own.log"))
        shutil.rmtree(OUT / "dolma", ignore_errors=True)
        theirs = [interpreter("dolma"), jobs / "dedup_jobs.py", "dolma_tags", folder, OUT / "dolma"]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        found["dolma"].append(
            measure([*map(str, theirs)], memory=True, sample_s=SAMPLE_S, env=env, log=OUT / "dolma.log")
        )
        for name, runs in found.items():
            _tell(name, runs[-1])
        assert found["own"][-1].answer == found["dolma"][-1].answer, "not all documents have tags"
    result: dict[str, Any] = {"megabytes": size}
    for name, runs in found.items():
        result[f"{name}_cpu_s"] = stable([run.cpu for run in runs])
        result[f"{name}_wall_s"] = stable([run.wall for run in runs])
        result[f"{name}_memory_mb"] = stable([run.together for run in runs], 0)
    pairs = zip(found["dolma"], found["own"], strict=True)
    return result | {"dolma_cpu_ratio": stable([run.cpu / mine.cpu for run, mine in pairs])}


def _side_by_side(rounds: int, size: int, tools: Tools, of: Of) -> dict[str, Any]:
    folder = corpus(size * 10**6, FILES)[0].parent
    found: dict[str, list[Measured]] = {}
    seen: dict[str, Seen] = {}
    for _ in range(rounds):
        for name in ("own", "executor", "loop"):
            found.setdefault(name, []).append(own(folder, tools) if name == "own" else curator(name, folder, tools))
            _tell(name, found[name][-1])
            seen[name] = written(OUT / name, of)
    return _compare(found, seen, folder)


def _tell(name: str, run: Measured) -> None:
    print(f"  {name}: {run.cpu:.2f} s of CPU, {run.wall:.2f} s", flush=True)


def _compare(found: dict[str, list[Measured]], seen: dict[str, Seen], folder: Path) -> dict[str, Any]:
    megabytes = sum(path.stat().st_size for path in folder.glob("*.jsonl")) / 1e6
    result: dict[str, Any] = {"megabytes": round(megabytes), "rows_out": seen["own"].total()}
    result["rows_that_differ"] = stable([max(difference(seen["own"], rows).total() for rows in seen.values())])
    for name, runs in found.items():
        if name != "own_ray_running":  # most of it is time of the cluster, which was there before
            result[f"{name}_cpu_s"] = stable([run.cpu for run in runs])
        result[f"{name}_wall_s"] = stable([run.wall for run in runs])
        result[f"{name}_memory_mb"] = stable([run.together for run in runs], 0)
    for name in ("executor", "loop"):
        pairs = list(zip(found[name], found["own"], strict=True))
        result[f"{name}_cpu_ratio"] = stable([run.cpu / mine.cpu for run, mine in pairs])
        result[f"{name}_wall_ratio"] = stable([run.wall / mine.wall for run, mine in pairs])
    return result


def main(arguments: list[str]) -> None:
    figure = {"filters": filters, "modifiers": modifiers, "language": language, "tags": tags}[arguments[0]]
    size, rounds = [*map(int, arguments[1:]), *(13, 1)[len(arguments) - 1 :]]
    show(figure(rounds, size))


if __name__ == "__main__":
    main(sys.argv[1:])
