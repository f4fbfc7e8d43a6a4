"""Whether the filters of FineWeb keep the documents that datatrove's keep, and leave the same text.

Each filter judges every document alone; then all judge it one after the other, on the text that the one before left.
The documents are JSON lines of a folder with `id` and `text`, those with another `lang` than "en" left out; without a
folder, 1,000 of the generated web text of the other figures and 1,000 odd ones. With a folder, the results are a
section of docs/agreement.md.

    python benchmarks/agreement_datatrove.py [FOLDER] [DOCUMENTS]
"""

from __future__ import annotations

import json
import os
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from agreement_curator import DATATROVE_RESULT, DOCS, OUT, RESULT, odd, page, web
from peers.install import interpreter, version
from process_measurement import HERE, measure

from gristmill.text import (
    C4QualityFilter,
    DocumentFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    LineCleaner,
)

WITHOUT_MARKS = "C4QualityFilter(filter_no_terminal_punct=False)"
CHAIN: dict[str, DocumentFilter] = {
    "GopherRepetitionFilter": GopherRepetitionFilter(),
    "GopherQualityFilter": GopherQualityFilter(),
    WITHOUT_MARKS: C4QualityFilter(filter_no_terminal_punct=False),
    "FineWebQualityFilter": FineWebQualityFilter(),
}
CLEANERS = {"C4QualityFilter": LineCleaner(), WITHOUT_MARKS: LineCleaner(end_marks="")}


def real(folder: str, count: int) -> dict[str, str]:
    lines = (orjson.loads(line) for path in sorted(Path(folder).glob("*.jsonl")) for line in path.open("rb"))
    english = (record for record in lines if record.get("lang", "en") == "en")
    return {record["id"]: record["text"] for record in islice(english, count)}


def kept(one: DocumentFilter, texts: list[str]) -> list[bool]:
    return one.keep_batch(one.score_batch(pa.array(texts, pa.string()))).to_pylist()


def kept_by_chain(texts: list[str]) -> list[bool]:
    alive, left = [True] * len(texts), texts
    for name, one in CHAIN.items():
        alive = [before and now for before, now in zip(alive, kept(one, left), strict=True)]
        if name in CLEANERS:
            left = CLEANERS[name].modify_batch(pa.array(left, pa.string())).to_pylist()
    return alive


def compare(name: str, documents: dict[str, str]) -> dict[str, Any]:
    folder = OUT / f"datatrove-{name}"
    (folder / "in").mkdir(parents=True, exist_ok=True)
    with open(folder / "in" / "documents.jsonl", "wb") as file:
        for key, text in documents.items():
            file.write(orjson.dumps({"id": key, "text": text}, option=orjson.OPT_APPEND_NEWLINE))
    output, texts = folder / "verdicts.jsonl", list(documents.values())
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [interpreter("datatrove"), HERE / "peers" / "datatrove_jobs.py", "verdicts", folder / "in", output]
    measure([str(part) for part in command], env=env, log=folder / "datatrove.log")
    rows = [orjson.loads(line) for line in output.read_bytes().splitlines()]
    found: dict[str, Any] = {"documents": len(texts), "filters": {}}
    for title, one in {**CHAIN, "C4QualityFilter": C4QualityFilter()}.items():
        mine, theirs = kept(one, texts), [not alone[title][0] for _, alone, _ in rows]
        found["filters"][title] = {
            "kept": sum(mine),
            "kept_by_peer": sum(theirs),
            "kept_by_one": sum(a != b for a, b in zip(mine, theirs, strict=True)),
        }
        if title in CLEANERS:
            cleaned = CLEANERS[title].modify_batch(pa.array(texts, pa.string())).to_pylist()
            both = [number for number, keep in enumerate(mine) if keep and theirs[number]]
            found["filters"][title]["texts_differ"] = sum(cleaned[n] != rows[n][1][title][1] for n in both)
    mine, theirs = kept_by_chain(texts), [keep for *_, keep in rows]
    differ = sum(a != b for a, b in zip(mine, theirs, strict=True))
    found["filters"]["all four, in order"] = {"kept": sum(mine), "kept_by_peer": sum(theirs), "kept_by_one": differ}
    return found


def main(arguments: list[str]) -> None:
    count = int(arguments[1]) if len(arguments) > 1 else 5000
    sets = {"real": real(arguments[0], count)} if arguments else {"web": dict(web(1000)), "odd": dict(odd(1000))}
    result: dict[str, Any] = {"peer": f"datatrove {version('datatrove')}", "sets": {}}
    for name, documents in sets.items():
        result["sets"][name] = compare(name, documents)
        print(name, json.dumps(result["sets"][name], indent=1), flush=True)
    if arguments:
        DATATROVE_RESULT.write_text(json.dumps(result, indent=1) + "\n")
        DOCS.write_text(page(json.loads(RESULT.read_text())))


if __name__ == "__main__":
    main(sys.argv[1:])
