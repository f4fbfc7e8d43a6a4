"""datatrove's side of the comparison of filters: `python datatrove_jobs.py FOLDER OUTPUT`."""

import json
import sys
from pathlib import Path
from typing import Any


def verdict(filter_: Any, text: str) -> tuple[str, str]:
    """Why a filter drops a text, or "", and the text that it leaves."""
    from datatrove.data import Document

    document = Document(text=text, id="0")
    try:
        found = filter_.filter(document)
    except (ValueError, ZeroDivisionError, AssertionError) as error:  # blank texts and the like
        return type(error).__name__, text
    if found is True:
        return "", document.text
    return (found[1] if isinstance(found, tuple) else "dropped"), text


def main(folder: str, output: str) -> None:
    """Of each document what each filter says of it alone, and what the filters of FineWeb say one after the other."""
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    chain = {
        "GopherRepetitionFilter": GopherRepetitionFilter(),
        "GopherQualityFilter": GopherQualityFilter(),
        "C4QualityFilter(filter_no_terminal_punct=False)": C4QualityFilter(filter_no_terminal_punct=False),
        "FineWebQualityFilter": FineWebQualityFilter(),
    }
    with open(output, "w") as file:
        for path in sorted(Path(folder).glob("*.jsonl")):
            for line in path.open():
                record = json.loads(line)
                alone = {name: verdict(one, record["text"]) for name, one in chain.items()}
                alone["C4QualityFilter"] = verdict(C4QualityFilter(), record["text"])
                text, dropped = record["text"], ""
                for one in chain.values():
                    dropped, text = verdict(one, text)
                    if dropped:
                        break
                file.write(json.dumps([record["id"], alone, not dropped]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
