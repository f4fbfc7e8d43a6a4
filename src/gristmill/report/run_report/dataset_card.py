"""A dataset card for the Hugging Face hub, in Markdown, made from report.json.

It states what was done to the data, with numbers. What only people know, such as the licence, is left to them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from gristmill.core.errors import InputError
from gristmill.core.records.run_location import run_place
from gristmill.core.records.run_record_store import RecordStore
from gristmill.core.result import count_noun
from gristmill.report.run_report.reporter import RECIPE, REPORT_JSON

Facts = Mapping[str, Any]
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_LARGER = ((10_000_000, "1M<n<10M"), (100_000_000, "10M<n<100M"), (1_000_000_000, "100M<n<1B"))
MAX_LANGUAGES = 50


def dataset_card_of_run(run: str, storage_options: Mapping[str, Any] | None = None) -> str:
    """The card of a run, found by its directory or by one of its outputs."""
    store = RecordStore(run_place(run, storage_options), storage_options)
    if (facts := store.read(REPORT_JSON)) is not None:
        recipe = store.get(RECIPE)
        return dataset_card(facts | {"recipe": recipe.decode()} if recipe else facts)
    raise InputError(f"{run} has no {REPORT_JSON}: give the directory of a finished run")


def dataset_card(facts: Facts) -> str:
    """The whole file."""
    sections = (_about, _splits, _stages, _languages, _sources, _duplicates, _how_it_was_made)
    return _front_matter(facts) + "\n".join(section(facts) for section in sections if section(facts))


def _front_matter(facts: Facts) -> str:
    import yaml

    front: dict[str, Any] = {"pretty_name": facts["name"]}
    if codes := _codes(facts):
        front["language"] = codes[:MAX_LANGUAGES]
    front |= {"task_categories": ["text-generation"], "size_categories": [_size(facts["rows_out"])]}
    front["tags"] = ["gristmill"]
    return f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---\n\n"


def _size(rows: int) -> str:
    return next((name for most, name in (*_SIZES, *_LARGER) if rows < most), "n>1B")


def _about(facts: Facts) -> str:
    rows_in, rows_out = facts["rows_in"], facts["rows_out"]
    if (share := facts.get("kept_share")) is not None:
        kept = f"{rows_out:,} of {rows_in:,} documents ({share:.1%})"
    else:
        kept = f"{count_noun(rows_out, 'row')} made of {count_noun(rows_in, 'document')}"
    where = f"in {count_noun(facts['files'], 'file')} with {facts['bytes'] / 1e6:,.1f} MB in total"
    made = f"Made with Gristmill {_text(facts['versions']['gristmill'])}, {_text(facts['finished'])}."
    lines = [f"# {_text(facts['name'])}", "", f"{kept}, {where}. {made}"]
    if facts["quarantined"]:
        verb = "is" if facts["quarantined"] == 1 else "are"
        lines.append(f"{count_noun(facts['quarantined'])} failed and {verb} not included; see quarantine/.")
    if facts["outcome"] != "finished":
        lines += ["", f"**Not complete: {_text(facts['outcome'])}**"]
    if unfinished := facts.get("unfinished_rows"):
        lines += ["", f"The counts include {count_noun(unfinished, 'row')} of sources that were not finished."]
    return "\n".join([*lines, ""])


def _stages(facts: Facts) -> str:
    shown = [stage for stage in facts["stages"] if stage["rows_in"] and (stage["dropped"] or stage.get("thresholds"))]
    rows = [
        (
            stage["name"],
            ", ".join(stage.get("thresholds", {}).values()),
            f"{stage['rows_in']:,}",
            f"{stage['dropped']:,}",
            f"{stage['dropped'] / stage['rows_in']:.2%}",
        )
        for stage in shown
    ]
    return _section("What was dropped", ("stage", "kept if", "rows in", "dropped", "share"), rows)


def _outputs_of(facts: Facts) -> list[Facts]:
    """The stages that write: one, or one for each branch."""
    return [stage for stage in facts["stages"] if stage.get("writes") and stage["rows_in"]]


def _languages_of(facts: Facts) -> tuple[dict[str, int] | None, list[dict[str, int]]]:
    """Rows of each language as read, None where readers do not tell them, and as written by each output."""
    written = [stage.get("values") or {} for stage in _outputs_of(facts)]
    name = next((name for name in ("language", "lang") if any(name in values for values in written)), "")
    ends = [stage for stage in facts["stages"] if stage.get("values")]
    before = ends[0]["values"].get(name) if ends and not ends[0].get("writes") else None
    return before, [values.get(name, {}) for values in written] if name else []


def _codes(facts: Facts) -> list[str]:
    """The languages of what was written, those of most rows first."""
    kept = _total(_languages_of(facts)[1])
    return [name for name, _ in kept.most_common() if re.fullmatch(r"[a-z]{2,3}", name)]


def _total(written: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counts in written:
        total.update(counts)
    return total


def _splits(facts: Facts) -> str:
    """How many rows each output has, if there are several."""
    outputs = _outputs_of(facts)
    if len(outputs) < 2:
        return ""
    rows = [(_branch(stage), f"{stage['rows_out']:,}") for stage in outputs]
    return _section("Outputs", ("output", "rows"), [*rows, *_sum_line(facts, [stage["rows_out"] for stage in outputs])])


def _branch(stage: Facts) -> str:
    return str(stage.get("branch") or stage["name"])


def _sum_line(facts: Facts, rows: Sequence[int]) -> list[tuple[str, str]]:
    """The total, where each row is in one output: not with a `Tee`."""
    adds_up = facts.get("kept_share") is not None and sum(rows) == facts["rows_out"]
    return [("total", f"{sum(rows):,}")] if adds_up else []


def _languages(facts: Facts) -> str:
    """A line for each language, and one for all others: each column adds up to the rows that were read or kept."""
    before, written = _languages_of(facts)
    if not any(written):
        return ""
    outputs = _outputs_of(facts)
    columns: list[tuple[str, Mapping[str, int], int]] = []
    if before is not None:
        columns.append(("read", before, facts["rows_in"] - _unreadable(facts)))
    if facts.get("kept_share") is not None:
        columns.append(("kept", _total(written), facts["rows_out"]))
    else:  # rows are in several outputs, so a sum would count them several times
        columns += [(_branch(one), counts, one["rows_in"]) for one, counts in zip(outputs, written, strict=True)]
    names = [name for name, _ in _total(counts for _, counts, _ in columns[-len(written) :]).most_common(MAX_LANGUAGES)]
    rows = [(name, *(f"{counts.get(name, 0):,}" for _, counts, _ in columns)) for name in names]
    rest = [rows_of - sum(counts.get(name, 0) for name in names) for _, counts, rows_of in columns]
    if any(rest):
        rows.append(("(other)", *(f"{max(count, 0):,}" for count in rest)))
    return _section("Languages", ("language", *(title for title, _, _ in columns)), rows)


def _unreadable(facts: Facts) -> int:
    """Records that readers could not read: they have no language."""
    first = next((stage for stage in facts["stages"] if stage["rows_in"] or stage["rows_out"]), None)
    return int(first["quarantined"]) if first and not first["rows_in"] else 0


def _sources(facts: Facts) -> str:
    found = facts.get("sources") or {}
    before, after = found.get("before", {}), found.get("after", {})
    folder = (
        _common_folder(before) if found.get("by") == "file" else ""
    )  # a path of this machine is of no use to others
    rows = [
        (name.removeprefix(folder), f"{count:,}", f"{after.get(name, 0):,}")
        for name, count in sorted(before.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    if rows and found["count"] > len(rows):
        read, kept = facts["rows_in"] - sum(found["before"].values()), facts["rows_out"] - sum(found["after"].values())
        rows.append((f"{found['count'] - len(rows):,} others", f"{max(read, 0):,}", f"{max(kept, 0):,}"))
    kept = "written" if facts.get("kept_share") is None else "kept"
    return _section("Sources", (found.get("by", "source"), "read", kept), rows)


def _common_folder(names: Iterable[str]) -> str:
    """The folder that all files are in, with a slash at its end."""
    folders = [name.rpartition("/")[0].split("/") for name in names]
    shared = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*folders, strict=False))]
    return "/".join([*shared, ""]) if shared else ""


def _duplicates(facts: Facts) -> str:
    tables = (facts.get("duplicates") or {}).get("tables") or []
    lines = [_cluster_sentence(one, f"{_text(one['stage'])}: " if len(tables) > 1 else "") for one in tables]
    return "\n\n".join(["## Duplicates", *lines]) + "\n" if lines else ""


def _cluster_sentence(found: Facts, by: str) -> str:
    """What a stage has found."""
    clusters, kept = count_noun(found["clusters"], "cluster"), found["kept"]
    kept_text = "one of each was kept" if kept == found["clusters"] else f"{kept:,} of them were kept"
    return f"{by}{found['rows']:,} documents were in {clusters}; {kept_text}."


def _how_it_was_made(facts: Facts) -> str:
    """How to make it again: the recipe, or else the stages."""
    description = facts.get("recipe") or facts.get("pipeline") or facts["plan"]
    lines = [f"    {line}" for line in str(description).splitlines()]
    versions = ", ".join(f"{name} {_text(number)}" for name, number in facts["versions"].items())
    return "\n".join(["## How it was made", "", *lines, "", versions, ""])


def _section(title: str, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(_text(cell) for cell in row)} |" for row in rows]
    head = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    return "\n".join([f"## {title}", "", *head, *lines, ""]) if lines else ""


def _text(value: Any) -> str:
    """Text that stays text in a cell of a Markdown table."""
    plain = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", plain)
