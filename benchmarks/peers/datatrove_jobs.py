"""datatrove's side of the comparisons of filters: `python datatrove_jobs.py verdicts | fineweb FOLDER OUTPUT`."""

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


def filters() -> dict[str, Any]:
    """The filters of FineWeb, in order."""
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    return {
        "GopherRepetitionFilter": GopherRepetitionFilter(),
        "GopherQualityFilter": GopherQualityFilter(),
        "C4QualityFilter(filter_no_terminal_punct=False)": C4QualityFilter(filter_no_terminal_punct=False),
        "FineWebQualityFilter": FineWebQualityFilter(),
    }


def fineweb(folder: str, output: str) -> None:
    """The filters and the redaction, JSON lines to JSON lines."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.formatters import PIIFormatter
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    steps = [JsonlReader(folder), *filters().values(), PIIFormatter(), JsonlWriter(output, compression=None)]
    LocalPipelineExecutor(steps, logging_dir=f"{output}-logs", skip_completed=False).run()


def verdicts(folder: str, output: str) -> None:
    """Of each document what each filter says of it alone, and what the filters of FineWeb say one after the other."""
    from datatrove.pipeline.filters import C4QualityFilter

    chain, with_marks = filters(), C4QualityFilter()
    with open(output, "w") as file:
        for path in sorted(Path(folder).glob("*.jsonl")):
            for line in path.open():
                record = json.loads(line)
                alone = {name: verdict(one, record["text"]) for name, one in chain.items()}
                alone["C4QualityFilter"] = verdict(with_marks, record["text"])
                text, dropped = record["text"], ""
                for one in chain.values():
                    dropped, text = verdict(one, text)
                    if dropped:
                        break
                file.write(json.dumps([record["id"], alone, not dropped]) + "\n")


if __name__ == "__main__":
    {"verdicts": verdicts, "fineweb": fineweb}[sys.argv[1]](*sys.argv[2:])
