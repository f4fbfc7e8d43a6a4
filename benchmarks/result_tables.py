"""The figures of results/*.json next to their targets, as Markdown, for docs/performance.md and README.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import dedup_tables
import gpu_utilisation
from dedup_tables import number as _num
from figure_notes import judged, note
from plots import Bar
from process_measurement import HERE, numbers

README = HERE.parent / "README.md"
PAGE = HERE.parent / "docs" / "performance.md"
AGREEMENT = HERE / "results" / "agreement.json"

Row = tuple[str, str, str]


def table(report: dict[str, Any], targets: bool = True) -> str:
    """The figures next to their targets, as Markdown. Targets are for whole inputs: small ones go without."""
    rows = [
        judged(row, found["rounds"]) if targets else row
        for name, lines in LINES.items()
        if (found := report["figures"].get(name))
        for row in lines(found)
    ]
    if "filters" in report["figures"] and AGREEMENT.exists():
        rows.append(_agreement(json.loads(AGREEMENT.read_text())))
    rows += [(f"`{name}`", "", f"failed: {why}") for name, why in report.get("failed", {}).items()]
    cells = [(what, target, value) if targets else (what, value) for what, target, value in rows]
    head = ("Figure", "Target", "Measured") if targets else ("Figure", "Measured")
    lines = [f"| {' | '.join(row)} |" for row in [head, *cells]]
    lines.insert(1, "|---" * len(head) + "|")
    return "\n".join([*lines, *dedup_tables.systems(report["figures"]), "", note(report)])


def _startup(found: dict[str, Any]) -> list[Row]:
    loop = _num(found["plain_loop_cpu_s"], "s")
    return [
        (
            "5,000 documents, start to first output, CPU above that of a bare interpreter",
            "below 1 s",
            _num(found["first_output_cpu_s"], "s"),
        ),
        ("5,000 documents, start to end, CPU", "", f"{_num(found['end_cpu_s'], 's')}; in a plain loop {loop}"),
        ("`import gristmill`, CPU", "below 0.3 s", _num(found["import_cpu_s"], "s")),
    ]


def _overhead(found: dict[str, Any]) -> list[Row]:
    inline = found.get("inline_cpu_ms")
    pools = found.get("pools_cpu_ms")
    bare = f"; pools of `multiprocessing`, 50 tasks to a call, {_num(pools, 'ms', 3)}" if pools else ""
    alone = [("Overhead per task and stage, without workers", "", _num(inline, "ms", 3))] if inline else []
    return [
        *alone,
        ("Overhead per task and stage, 3 fused stages", "below 0.1 ms", _num(found["fused_cpu_ms"], "ms", 3)),
        ("Overhead per task and stage, 3 pools", "below 1 ms", _num(found["unfused_cpu_ms"], "ms", 3) + bare),
    ]


def _memory(found: dict[str, Any]) -> list[Row]:
    rows = []
    for kind, title in (("jsonl", "JSON lines"), ("gz", "gzip")):
        sizes = [name.split("_")[1] for name in found if name.startswith(f"{kind}_") and name.endswith("driver_rss_mb")]
        for role in ("driver", "worker"):
            if len(sizes) > 1:
                ends = [f"{found[f'{kind}_{size}_{role}_rss_mb']['median']:.0f}" for size in (sizes[0], sizes[-1])]
                growth = _num(found[f"{kind}_{role}_growth"], "x")
                what = f"Peak memory of a {role}, one file of {title}, {_size(sizes[-1])} over {_size(sizes[0])}"
                rows.append((what, "at most 1.2x", f"{growth}; {ends[0]} MB, {ends[1]} MB"))
    return rows


def _scaling(found: dict[str, Any]) -> list[Row]:
    return [("Time on 2 workers over time on 1, CPU-bound", "at most 0.6", _num(found["wall_ratio"]))]


def _one(what: str, percent: Any) -> list[Row]:
    return [(what, "", _num(percent, "%", 1))] if percent else []


def _durability(found: dict[str, Any]) -> list[Row]:
    return [
        ("CPU for ledger, manifest and counters, demo pipeline", "below 3 %", _num(found["books_percent"], "%", 1)),
        *_one("CPU for its report, which has much the same size for all runs", found.get("report_percent")),
        (
            f"Resume of a finished run over {found.get('files', 10_000):,} files, wall",
            "below 2 s",
            _num(found["resume_wall_s"], "s"),
        ),
    ]


def _throughput(found: dict[str, Any]) -> list[Row]:
    titles = {
        "no_stage": ("JSON lines to JSON lines", "orjson"),
        "six_stages": ("the same with 6 stages between", "orjson"),
        "parquet": ("Parquet to Parquet", "pyarrow"),
    }
    rows = []
    for key, (title, library) in titles.items():
        if speed := found.get(f"{key}_mb_per_cpu_s"):
            value = f"{_num(speed, 'MB/s', 0)}; {found[f'{key}_ratio']['median']:.2f}x the CPU"
            rows.append((f"{title}, per CPU second", "", f"{value} of a plain {library} copy"))
    return rows


def _text(found: dict[str, Any]) -> list[Row]:
    what = f"28 English filters, {found['megabytes']} MB of JSON lines to JSON lines"
    return [
        (f"{what}, per CPU second", "at least 50 MB/s", _num(found["chain_mb_per_cpu_s"], "MB/s", 0)),
        (f"{what}, CPU of a plain orjson copy", "at most 5x", _num(found["chain_ratio"], "x")),
        (f"{what}, memory of a worker", "below 300 MB", _num(found["worker_rss_mb"], "MB", 0)),
    ]


def _text_growth(found: dict[str, Any]) -> list[Row]:
    few, some, many = (times * found["megabytes"] for times in (1, 4, 16))
    what = f"28 English filters, CPU per further MB, {some} to {many} MB over {few} to {some} MB"
    both = f"{found['late_ms']['median']:.1f} ms over {found['early_ms']['median']:.1f} ms"
    return [(what, "at most 1.15x", f"{_num(found['growth'], 'x')}; {both}")]


def _filters(found: dict[str, Any]) -> list[Row]:
    what = f"28 English filters, {found['megabytes']} MB"
    wall = ("executor_wall_s", "own_wall_s", "own_ray_wall_s", "executor_running_wall_s", "own_ray_running_wall_s")
    peer, local, on_ray, peer_running, running = wall
    rows = (
        ("CPU, Curator on Ray Data", 30, "executor_cpu_ratio", "executor_cpu_s", "own_cpu_s"),
        ("CPU, Curator's filters in a plain loop", 15, "loop_cpu_ratio", "loop_cpu_s", "own_cpu_s"),
        ("wall, Curator on Ray Data, Gristmill on `LocalExecutor`", 20, "executor_wall_ratio", peer, local),
        ("wall, both on Ray, its start included", 5, "executor_wall_ratio_ray", peer, on_ray),
        ("wall, both on a running cluster", 15, "executor_wall_ratio_ray_running", peer_running, running),
    )
    return [_ratio(found, f"{what}, {title}", *rest) for title, *rest in rows]


def _modifiers(found: dict[str, Any]) -> list[Row]:
    return _cpu_ratios(found, "6 modifiers", "modifiers", 5)


def _language(found: dict[str, Any]) -> list[Row]:
    return _cpu_ratios(found, "Language by the same fastText model", "filter", 2)


def _tags(found: dict[str, Any]) -> list[Row]:
    what = f"Tags by the rules of Gopher and C4, {found['megabytes']} MB, CPU, dolma's taggers"
    return [(what, "", dedup_tables.times(found, "dolma_cpu_ratio", "dolma_cpu_s"))]


def _fineweb(found: dict[str, Any]) -> list[Row]:
    what = f"Four filters of FineWeb and redaction, {found['megabytes']} MB, CPU, datatrove"
    times = dedup_tables.times(found, "datatrove_cpu_ratio", "datatrove_cpu_s")
    kept = f"{found['rows_out']:,} documents left, {found['rows_that_differ']:,} by one of the two only"
    speed = f"{_num(found['whole_mb_per_cpu_s'], 'MB/s')}; {found['whole_memory_mb']['median']:.0f} MB of memory"
    return [
        (what, "at least 100x", f"{times}; {kept}"),
        (f"The whole recipe `fineweb`, {found['whole_megabytes']} MB, per CPU second", "at least 40 MB/s", speed),
    ]


def _start(found: dict[str, Any]) -> list[Row]:
    titles = {
        "own": "Gristmill",
        "own_ray": "Gristmill on Ray",
        "executor": "Curator on Ray Data",
        "loop": "Curator's filter in a plain loop",
    }
    return [("One filter over 100 kB: starting and ending, CPU", "", dedup_tables.each(found, titles))]


def _cpu_ratios(found: dict[str, Any], what: str, tools: str, target: float) -> list[Row]:
    titles = {"executor": "Curator on Ray Data", "loop": f"Curator's {tools} in a plain loop"}
    return [
        _ratio(found, f"{what}, {found['megabytes']} MB, CPU, {title}", target, f"{key}_cpu_ratio", f"{key}_cpu_s")
        for key, title in titles.items()
    ]


def _ratio(found: dict[str, Any], what: str, target: float, ratio: str, peer: str, own: str = "own_cpu_s") -> Row:
    """A peer's seconds over ours, and both."""
    labels = {"rows_that_differ": "other documents kept", "rows_tied": "other documents kept by a tie"}
    most = {words: found[key]["max"] for key, words in labels.items() if key in found}
    differ = "".join(f"; {number:.0f} {words}" for words, number in most.items() if number)
    return what, f"at least {target}x", dedup_tables.times(found, ratio, peer, own) + differ


def _agreement(found: dict[str, Any]) -> Row:
    """In how far both give the same scores, over all sets of documents."""
    filters = [one for group in found["sets"].values() for one in group["filters"].values()]
    scores = sum(group["documents"] * len(group["filters"]) for group in found["sets"].values())
    equal = sum(one["equal"] for one in filters)
    unexplained = sum(one["differ"].get("unexplained", 0) for one in filters)
    value = f"{equal:,} of {scores:,}; {scores - equal - unexplained:,} differ as intended, {unexplained} otherwise"
    return "Scores equal to Curator's to 1e-9 ([more](agreement.md))", "all but the intended", value


def _tiny(found: dict[str, Any]) -> list[Row]:
    rows = []
    for key, target in (("single", "2.5 ms"), ("chunked", "0.1 ms")):
        how = "one per call" if key == "single" else "chunked automatically"
        value = f"{_num(found[f'{key}_ms'], 'ms', 3)}; bare actors {_num(found[f'bare_{key}_ms'], 'ms', 3)}"
        rows.append((f"A tiny task through 3 pools of Ray actors, {how}", f"at most {target}", value))
    for key, engine in (("ray_data_ms", "Ray Data"), ("xenna_ms", "Xenna")):
        if key in found:
            rows.append((f"A tiny task through 3 pools of {engine}", "", _num(found[key], "ms", 3)))
    rows += [("A tiny task on another engine", "", f"failed: {one}") for one in found.get("failed", ())]
    return rows


def _balance(found: dict[str, Any]) -> list[Row]:
    titles = {
        "steady": "CPU stage of 10 ms, GPU stage of 100 ms",
        "fast": "fast producer, slow GPU stage",
        "change": "rates that change in mid-run",
        "setup": "20 s of set-up",
        "shared": "three stages that share GPUs by memory",
    }
    rows = []
    for case, title in titles.items():
        if value := found.get(f"{case}_busy_percent"):
            moved = found.get(f"{case}_rebalancing_s")
            after = f", once workers have moved, which took {_num(moved, 's', 1)}" if moved else ""
            least = f"at least {100 * gpu_utilisation.CASES[case].target:.0f} %"
            rows.append((f"GPU workers busy, {title}", least, _num(value, "%", 1) + after))
    return rows


def _store(found: dict[str, Any]) -> list[Row]:
    what = f"Memory of the driver, {found['gigabytes']:g} GB through the object store, end over first tenth"
    value = f"{_num(found['growth'], 'x')}; {found['driver_rss_mb']['median']:.0f} MB"
    return [(what, "at most 1.1x", value)]


def _semantic(found: dict[str, Any]) -> list[Row]:
    what = f"Semantic duplicates, {found['rows']:,} embeddings of {found['dimensions']}, eps={found['eps']}"
    both = f"{found['brute_cpu_s']['median']:.0f} s over {found['cpu_s']['median']:.1f} s"
    times = f"{_num(found['brute_cpu_ratio'], 'x', 1)}: {both}"
    products = f"{_num(found['blas_cpu_ratio'], 'x', 1)}: {found['blas_cpu_s']['median']:.0f} s"
    return [
        (f"{what}: F1 against brute force", "at least 0.99", f"{min(numbers(found['f1'])):.4f}"),
        (f"{what}: CPU of a flat index (faiss) over Gristmill's", "at least 20x", times),
        (f"{what}: CPU of products of matrices over Gristmill's", "", products),
    ]


def _limits(found: dict[str, Any]) -> list[Row]:
    titles = {
        "memory": "memory to memory",
        "copy": "copying bytes",
        "find_lines": "counting lines",
        "hash128": "hashing texts to 128 bits",
        "xxh128": "checksums (XXH3, 128 bits)",
        "gunzip": "gunzip",
        "unzstd": "decompressing zstd",
        "orjson_parse": "parsing JSON lines with orjson",
        "signatures": "signatures of 232 numbers by runs of 5 words",
        "modifiers": "six modifiers",
        "fasttext": "language by fastText's library",
        "language": "language by our kernel",
        "language_new": "the same over words that are all new",
        "own_parse": "parsing them into Arrow with our kernel",
        "orjson_write": "writing them with orjson",
        "parquet_read": "reading Parquet (zstd)",
        "parquet_write": "writing it",
    }
    known = {name: title for name, title in titles.items() if f"{name}_mb_per_cpu_s" in found}
    speeds = [f"{title} {_speed(found[f'{name}_mb_per_cpu_s'])}" for name, title in known.items()]
    rows = [("Limits of one core, MB per CPU second", "", "; ".join(speeds))]
    if write := found.get("disk_write_mb_per_s"):
        read = found["disk_read_mb_per_s"]
        rows.append(("Limits of the disk", "", f"writing {_num(write, 'MB/s', 0)}; reading {_num(read, 'MB/s', 0)}"))
    return rows


def _speed(value: dict[str, float]) -> str:
    digits = 1 if value["median"] < 10 else 0
    return f"{value['median']:,.{digits}f} ({value['min']:,.{digits}f} to {value['max']:,.{digits}f})"


def _warc(found: dict[str, Any]) -> list[Row]:
    rows = []
    for name in ("resiliparse", "justext", "trafilatura"):
        value = f"{_num(found[f'{name}_ratio'])}; ours {_num(found[f'{name}_own_cpu_s'], 's')}"
        if (pages := found.get(f"{name}_peer_rows")) and (held := found.get(f"{name}_peer_lines_held")):
            value += f"; all lines of Curator's text on {min(numbers(held)):,} of its {pages:,} pages"
        what = f"WARC to text, {name}, {found['pages_mb']} MB of pages: CPU of NeMo Curator's stage over ours"
        rows.append((what, "at least 2", value))
    return rows


def _warc_extract(found: dict[str, Any]) -> list[Row]:
    names = ("resiliparse", "justext", "trafilatura")
    return [
        ("Extraction over a call of the bare library, CPU: " + name, "at most 1.1", _num(found[f"{name}_over_bare"]))
        for name in names
    ] + [
        (
            "Pages whose text is that of the bare library",
            "all",
            ", ".join(f"{min(numbers(found[f'{name}_same'])):,} of {found[f'{name}_pages']:,}" for name in names),
        )
    ]


def _warc_memory(found: dict[str, Any]) -> list[Row]:
    sizes = [key.removesuffix("_worker_rss_mb") for key in found if key.endswith("_worker_rss_mb")]
    peaks = " and ".join(f"{_num(found[f'{size}_worker_rss_mb'], 'MB')} at {size}" for size in sizes)
    return [("Memory of a worker, pages of two sizes: growth", "at most 1.2", f"{_num(found['growth'])} ({peaks})")]


def _image(found: dict[str, Any]) -> list[Row]:
    over, times = _num(found["over_turbo"], "", 2), _num(found["times_webdataset"], "", 2)
    bare, own = _num(found["turbo_ms"], "ms", 2), _num(found["read_decode_ms"], "ms", 2)
    return [
        (
            "Reading and decoding JPEG, CPU, times that of libjpeg-turbo alone",
            "at most 1.2",
            f"{over}: {own} to {bare}",
        ),
        ("Reading, decoding and resizing, times the speed of webdataset with Pillow, per CPU", "at least 1", times),
    ]


def _image_models(found: dict[str, Any]) -> list[Row]:
    above, overlap = _num(found["overhead_percent"], "%", 1), _num(found["overlap_percent"], "%", 1)
    value = f"{_num(found['pipeline_cpu_ms'], 'ms')}; in a loop {_num(found['loop_cpu_ms'], 'ms')}"
    return [
        ("An image model in a pipeline, above a loop of it, CPU", "at most 5 %", above),
        ("An image model, CPU for each picture", "", value),
        ("Time of making pictures ready in which the model works", "it overlaps", overlap),
    ]


def _sources(found: dict[str, Any]) -> list[Row]:
    times = found["wikitext_mb_per_cpu_s"]["median"] / found["mwparserfromhell_mb_per_cpu_s"]["median"]
    wiki = f"{_num(found['wikitext_mb_per_cpu_s'])} ({times:.1f} times)"
    return [
        ("Wikitext to text, MB per CPU second", "5 times mwparserfromhell", wiki),
        ("LaTeX to text, MB per CPU second", "", _num(found["latex_mb_per_cpu_s"])),
    ]


LINES: dict[str, Callable[[dict[str, Any]], list[Row]]] = {
    "startup": _startup,
    "overhead": _overhead,
    "memory": _memory,
    "scaling": _scaling,
    "durability": _durability,
    "throughput": _throughput,
    "text": _text,
    "text_growth": _text_growth,
    "limits": _limits,
    "filters": _filters,
    "modifiers": _modifiers,
    "language": _language,
    "tags": _tags,
    "fineweb": _fineweb,
    "start": _start,
    "tiny": _tiny,
    "balance": _balance,
    "store": _store,
    "sources": _sources,
    "warc": _warc,
    "warc_extract": _warc_extract,
    "warc_memory": _warc_memory,
    "image": _image,
    "image_models": _image_models,
    **dedup_tables.LINES,
    "semantic": _semantic,
}


def _size(name: str) -> str:
    number = int(name.removesuffix("mb"))
    return f"{number} MB" if number < 1000 else f"{number / 1000:g} GB"


def headline(bars: Iterable[Bar]) -> str:
    """The ratios of all results, a line for each workload, for README.md."""
    lines = ["| The same work | CPU seconds of others, for each of Gristmill's |", "|---|---|"]
    for workload, some in groupby(bars, key=lambda bar: bar.workload):
        systems = list(some)
        once = " (one round)" if systems[0].rounds == 1 else ""
        lines.append(f"| {workload}{once} | {', '.join(f'{bar.system} **{_times(bar.ratio)}**' for bar in systems)} |")
    return "\n".join(lines)


def _times(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.{0 if ratio['median'] >= 20 else 1}f}x"


def put_into(page: Path, text: str, mark: str) -> None:
    """Put lines between two marks of a page."""
    begin, end = (f"<!-- {mark}:{edge} -->" for edge in ("begin", "end"))
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{page.name} has no {begin} ... {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")
