"""A dataset card for the Hugging Face hub, in Markdown, made from report.json.

It states what was done to the data, with numbers. What only people know, such as the licence, is left to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gristmill.core.errors import InputError
from gristmill.core.records.record_store import RecordStore
from gristmill.core.records.run_location import run_place
from gristmill.core.result import count_noun
from gristmill.report.run_report.reporter import REPORT_JSON

Facts = Mapping[str, Any]
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_LARGER = ((10_000_000, "1M<n<10M"), (100_000_000, "10M<n<100M"), (1_000_000_000, "100M<n<1B"))
MAX_LANGUAGES = 50


def dataset_card_of_run(run: str, storage_options: Mapping[str, Any] | None = None) -> str:
    """The card of a run, found by its directory or by one of its outputs."""
    facts = RecordStore(run_place(run, storage_options), storage_options).read(REPORT_JSON)
    if facts is not None:
        return dataset_card(facts)
    raise InputError(f"{run} has no {REPORT_JSON}: give the directory of a finished run")


def dataset_card(facts: Facts) -> str:
    """The whole file."""
    sections = (_about, _stages, _languages, _sources, _duplicates, _how_it_was_made)
    return _front_matter(facts) + "\n".join(section(facts) for section in sections if section(facts))


def _front_matter(facts: Facts) -> str:
    import yaml

    told: dict[str, Any] = {"pretty_name": facts["name"]}
    codes = [code for code in _languages_of(facts)[1] if re.fullmatch(r"[a-z]{2,3}", code)]
    if codes:
        told["language"] = codes[:MAX_LANGUAGES]
    told |= {"task_categories": ["text-generation"], "size_categories": [_size(facts["rows_out"])]}
    told["tags"] = ["gristmill"]
    return f"---\n{yaml.safe_dump(told, sort_keys=False, allow_unicode=True)}---\n\n"


def _size(rows: int) -> str:
    return next((name for most, name in (*_SIZES, *_LARGER) if rows < most), "n>1B")


def _about(facts: Facts) -> str:
    rows_in, rows_out = facts["rows_in"], facts["rows_out"]
    share = f" ({rows_out / rows_in:.1%})" if rows_in else ""
    kept = f"{rows_out:,} of {rows_in:,} documents{share}"
    where = f"in {count_noun(facts['files'], 'file')} with {facts['bytes'] / 1e6:,.1f} MB in total"
    made = f"Made with Gristmill {_text(facts['versions']['gristmill'])}, {_text(facts['finished'])}."
    lines = [f"# {_text(facts['name'])}", "", f"{kept}, {where}. {made}"]
    if facts["quarantined"]:
        verb = "is" if facts["quarantined"] == 1 else "are"
        lines.append(f"{count_noun(facts['quarantined'])} failed and {verb} not included; see quarantine/.")
    if facts["outcome"] != "finished":
        lines += ["", f"**Not complete: {_text(facts['outcome'])}**"]
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


def _languages_of(facts: Facts) -> tuple[dict[str, int], dict[str, int]]:
    """Rows of each language, as read and as written."""
    ends = [stage["values"] for stage in facts["stages"] if stage.get("values")]
    if not ends:
        return {}, {}
    name = next((name for name in ("language", "lang") if name in ends[0]), "")
    return dict(ends[0].get(name, {})), dict(ends[-1].get(name, {}))


def _languages(facts: Facts) -> str:
    before, after = _languages_of(facts)
    rows = [(name, f"{before.get(name, 0):,}", f"{count:,}") for name, count in list(after.items())[:MAX_LANGUAGES]]
    return _section("Languages", ("language", "read", "kept"), rows)


def _sources(facts: Facts) -> str:
    found = facts.get("sources") or {}
    rows = [(name, f"{count:,}", f"{found['after'].get(name, 0):,}") for name, count in found.get("before", {}).items()]
    return _section("Sources", (found.get("by", "source"), "read", "kept"), rows)


def _duplicates(facts: Facts) -> str:
    tables = (facts.get("duplicates") or {}).get("tables") or []
    lines = [_cluster_sentence(one, f"{_text(one['stage'])}: " if len(tables) > 1 else "") for one in tables]
    return "\n\n".join(["## Duplicates", *lines]) + "\n" if lines else ""


def _cluster_sentence(found: Facts, by: str) -> str:
    """What a stage has found."""
    clusters, kept = count_noun(found["clusters"], "cluster"), found["kept"]
    told = "one of each was kept" if kept == found["clusters"] else f"{kept:,} of them were kept"
    return f"{by}{found['rows']:,} documents were in {clusters}; {told}."


def _how_it_was_made(facts: Facts) -> str:
    """How to make it again."""
    plan = [f"    {line}" for line in facts["plan"].splitlines()]
    seeds = [f"- {_text(one['stage'])}: {one['parameter']}={one['seed']}" for one in facts.get("seeds", ())]
    versions = ", ".join(f"{name} {_text(number)}" for name, number in facts["versions"].items())
    return "\n".join(["## How it was made", "", *plan, "", *seeds, *([""] if seeds else []), versions, ""])


def _section(title: str, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(_text(cell) for cell in row)} |" for row in rows]
    head = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    return "\n".join([f"## {title}", "", *head, *lines, ""]) if lines else ""


def _text(value: Any) -> str:
    """Text that stays text in a cell of a Markdown table."""
    plain = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", plain)
