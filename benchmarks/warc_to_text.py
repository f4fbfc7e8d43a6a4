"""Figures: WARC files to text, beside NeMo Curator's stages and beside the bare libraries.

Pages are made of the documents of the benchmark corpus, with menus, scripts and side columns around them, and lie in a
file as Common Crawl writes them: request, response and metadata of each page. NeMo Curator runs its own iterator,
extractor and stage in a plain loop, without an executor, and writes JSON lines; Gristmill runs a pipeline. CPU seconds
are those of all processes from start to end. `extract` compares our extraction of each page with a call of the library,
in one process, in turns, and counts the pages whose text is the same. `memory` is a file ten times as large as another.

    python benchmarks/warc_to_text.py [versus | extract | memory] [MEGABYTES]
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corpus import documents
from peers.install import additions, interpreter
from process_measurement import HERE, WORK, Measured, job, measure, show, stable

EXTRACTORS = ("resiliparse", "justext", "trafilatura")
OUT = WORK / "warc"
SAMPLE_S = 0.05
_SCRIPT = (
    "!function(e,t){var n=t.createElement('s');n.q=[];for(var i=0;i<e.length;i++){n.q.push(e[i]*2)}}([1,2],document);"
)


def archive(size: int) -> Path:
    """A .warc.gz whose pages have about `size` bytes, made if it is not there yet."""
    path = WORK / f"pages-{size // 10**6}mb.warc.gz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        written, lot = 0, random.Random(7)
        with draft.open("wb") as file:
            for number, line in enumerate(documents()):
                if written >= size:
                    break
                page = _page(json.loads(line)["text"], lot).encode()
                written += len(page)
                for record in _records(f"http://example.org/{number}", page, lot):
                    file.write(gzip.compress(record, 6, mtime=0))
        draft.replace(path)
    return path


def _page(text: str, lot: random.Random) -> str:
    """A document as the web would have it: about three times as much markup as text."""
    links = "".join(f'<li class="nav__item"><a href="/s/{n}" data-id="{n}">Section {n}</a></li>' for n in range(40))
    side = "".join(
        f'<div class="card"><a href="/p/{n}"><img src="/i/{n}.jpg" alt=""><span>More {n}</span></a></div>'
        for n in range(25)
    )
    scripts = "".join(f"<script>/*{n}*/{_SCRIPT * lot.randrange(4, 12)}</script>" for n in range(4))
    body = "".join(
        f'<p class="text">{one}</p>\n' for one in text.replace("&", "&amp;").replace("<", "&lt;").split("\n") if one
    )
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>A page</title>{scripts}'
        f"<style>p{{margin:0}}</style></head><body><header><nav><ul>{links}</ul></nav></header><main><article>"
        f"<h1>A page</h1>{body}</article><aside>{side}</aside></main><!-- end --><footer>"
        f"<p>Copyright, terms, privacy</p></footer>{scripts}"
        "</body></html>"
    )


def _records(url: str, page: bytes, lot: random.Random) -> Iterator[bytes]:
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nServer: nginx\r\n\r\n" + page
    blocks = (
        ("request", "application/http; msgtype=request", b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\n"),
        ("response", "application/http; msgtype=response", answer),
        ("metadata", "application/warc-fields", b"fetchTimeMs: 120\r\n"),
    )
    for kind, content_type, block in blocks:
        name = uuid.UUID(int=lot.getrandbits(128), version=4)
        head = (
            f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Date: 2024-03-01T00:00:00Z\r\nWARC-Record-ID: <urn:uuid:{name}>\r\n"
            f"WARC-Target-URI: {url}\r\nContent-Type: {content_type}\r\nContent-Length: {len(block)}\r\n\r\n"
        )
        yield head.encode() + block + b"\r\n\r\n"


def curator(path: Path, extractor: str) -> Measured:
    job = (HERE / "peers" / "curator_jobs.py", "warc", path, OUT / "peer.jsonl", extractor)
    env = {**os.environ, "PYTHONPATH": str(additions("nemo-curator", "web"))}
    command = [str(interpreter("nemo-curator")), *map(str, job)]
    return measure(command, env=env, log=OUT / "peer.log", memory=True, sample_s=SAMPLE_S)  # as ours


def versus(rounds: int = 1, size: int = 50, extractors: tuple[str, ...] = EXTRACTORS) -> dict[str, Any]:
    path = archive(size * 10**6)
    OUT.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"pages_mb": size}
    for extractor in extractors:
        ours, theirs = [], []
        for _ in range(rounds):
            shutil.rmtree(OUT / "own", ignore_errors=True)
            ours.append(measure(job("warc", path, OUT / "own", extractor), memory=True, sample_s=SAMPLE_S))
            theirs.append(curator(path, extractor))
        result[f"{extractor}_own_cpu_s"] = stable([one.cpu for one in ours])
        result[f"{extractor}_own_wall_s"] = stable([one.wall for one in ours])
        result[f"{extractor}_own_memory_mb"] = stable([one.together for one in ours], 0)
        result[f"{extractor}_peer_cpu_s"] = stable([one.cpu for one in theirs])
        result[f"{extractor}_peer_memory_mb"] = stable([one.together for one in theirs], 0)
        result[f"{extractor}_ratio"] = stable([b.cpu / a.cpu for a, b in zip(ours, theirs, strict=True)])
        result[f"{extractor}_peer_wall_s"] = stable([one.wall for one in theirs])
        result[f"{extractor}_own_rows"] = ours[0].answer["rows"]
        result[f"{extractor}_peer_rows"] = theirs[0].answer["rows"]
        result[f"{extractor}_peer_lines_held"] = lines_held(OUT / "own", OUT / "peer.jsonl")
    return result


def lines_held(own: Path, peer: Path) -> int:
    """On how many pages Gristmill has every line that the peer has, of those that the peer gives."""
    ours = {page["url"]: page["text"] for path in own.glob("*.jsonl") for page in _json(path)}
    return sum(set(page["text"].splitlines()) <= set(ours.get(page["url"], "").splitlines()) for page in _json(peer))


def _json(path: Path) -> Iterator[dict[str, str]]:
    with path.open("rb") as lines:
        yield from map(json.loads, lines)


def extract(rounds: int = 1, size: int = 50) -> dict[str, Any]:
    path = archive(size * 10**6)
    result: dict[str, Any] = {"pages_mb": size}
    for extractor in EXTRACTORS:
        runs = [measure(job("warc_extract", path, extractor)).answer for _ in range(rounds)]
        result[f"{extractor}_over_bare"] = stable([run["ours_s"] / run["bare_s"] for run in runs])
        result[f"{extractor}_bare_cpu_s"] = stable([run["bare_s"] for run in runs])
        result[f"{extractor}_pages"] = runs[0]["pages"]
        result[f"{extractor}_same"] = runs[0]["same"]
    return result


def memory(rounds: int = 1, sizes: tuple[int, int] = (100, 1000)) -> dict[str, Any]:
    """The most memory of a worker over files of two sizes (bytes on disk are a fraction of that)."""
    found: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            run = measure(job("warc", archive(size * 10**6), OUT / "own", "resiliparse"), memory=True)
            found[size].append(run.peak("worker"))
    result: dict[str, Any] = {f"{size}mb_worker_rss_mb": stable(peaks, 1) for size, peaks in found.items()}
    small, large = found.values()
    result["growth"] = stable([b / a for a, b in zip(small, large, strict=True)])
    return result


if __name__ == "__main__":
    figure = sys.argv[1] if len(sys.argv) > 1 else "versus"
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    show(
        memory(1, (size, 10 * size)) if figure == "memory" else {"versus": versus, "extract": extract}[figure](1, size)
    )
