"""What is said of figures beside their numbers: whether a target is missed, and how and on what they were measured."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

BUSY = 0.3
"""So many cores that others use are told: times may be longer than on a quiet machine."""

Row = tuple[str, str, str]


def note(report: dict[str, Any]) -> str:
    """What stands below a table."""
    where, figures = report["machine"], report["figures"]
    versions = ", ".join(f"{name} {number}" for name, number in where["packages"].items() if name != "gristmill")
    return (
        f"{where['cpu']}, {where['cores']} cores, {where['memory_gb']} GB; Python {where['python']}, {versions}. "
        f"Medians of {_rounds(figures)}, with the smallest and largest; each ratio is of one round. `make bench-full` "
        f"measures them anew.{_others(figures)}{_code(figures)}"
    )


def judged(row: Row, rounds: int) -> Row:
    """A row that says if its target is missed, and if it was measured but once."""
    what, target, value = row
    if rounds == 1 and any(map(str.isdigit, value)):
        value += "; one round"
    asked = re.match(r"(at least|at most|below) ([\d.]+)", target)
    found = re.search(r"[\d.]+", value.replace(",", ""))
    if asked and found:
        wanted, reached = float(asked[2]), float(found[0].rstrip("."))
        if reached < wanted if asked[1] == "at least" else reached > wanted:
            value = f"**missed**: {value}"
    return what, target, value


def _others(figures: dict[str, Any]) -> str:
    """Which figures others may have made worse, by using the machine."""
    busy = {name: one.get("others_cores") for name, one in figures.items()}
    busy_texts = [f"{name} ({cores:g} cores)" for name, cores in busy.items() if cores is not None and cores >= BUSY]
    unknown = [name for name, cores in busy.items() if cores is None]
    said = f" Others used the machine just before these were measured: {', '.join(busy_texts)}." if busy_texts else ""
    return said + (f" Whether others used it was not noted for {', '.join(unknown)}." if unknown else "")


def _code(figures: dict[str, Any]) -> str:
    """Of which code figures are: a row is as old as the run that it is of."""
    names: dict[str, list[str]] = {}
    for name, one in figures.items():
        names.setdefault(one.get("code", ""), []).append(name)
    kinds = {code: f"the code of {code}" if code else "earlier code, maybe with other versions" for code in names}
    return "".join(f" Of {kinds[code]}: {', '.join(names[code])}." for code in sorted(names, key=lambda code: not code))


def _rounds(figures: dict[str, Any]) -> str:
    """How many rounds figures have, and which have others."""
    counts = {name: found["rounds"] for name, found in figures.items()}
    usual = Counter(counts.values()).most_common(1)[0][0] if counts else 0
    others = ", ".join(f"{name} {count}" for name, count in counts.items() if count != usual)
    return f"{usual} round{'s' if usual != 1 else ''}{f' ({others})' if others else ''}"
