"""Find out what happened to one row, from the records of its run.

A row is asked for by its own id (the column `id`, or what a batch class has for it, as the ids of clips and of their
film), by its row id (as in the cluster table), or as FILE:POSITION. What
the run has not kept is said, with the option that would have kept it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from gristmill.core.arrow.table_conversion import is_json, table_to_rows
from gristmill.core.errors import InputError
from gristmill.core.records.rejected_rows import PART as REJECTED_PART
from gristmill.core.records.row_scores import (
    ALIKE,
    CHARS,
    DROPPED,
    FACTS,
    FILE,
    ID,
    LANGUAGE,
    PART,
    PLACE,
    SEGMENT,
    SOURCE,
    TOKENS,
)
from gristmill.core.task import digest
from gristmill.report.cluster_table_listing import ComparedColumns, cluster_tables, compared_columns
from gristmill.report.drop_sentence import drop_sentence, rejected_sentence, similarity_sentence
from gristmill.report.recorded_filters import recorded_filters
from gristmill.report.run_records import REJECTED, SCORES, Records, has_row, read_output_row, row_id
from gristmill.report.whatif import SCORES_CONFUSED, input_row_at

if TYPE_CHECKING:
    from pyarrow import dataset

MAX_CLUSTER_MEMBERS = 20
_ROW_ID = re.compile(r"([0-9a-f]{16})_([0-9]+)")
_PLACE = re.compile(r"(.+):([0-9]+)")


@dataclass
class FilterScore:
    """The score that one filter gave a row. `kept` is None where the score alone does not decide."""

    stage: str
    filter: str
    score: Any
    threshold: str
    kept: bool | None


@dataclass
class RowOutcome:
    """What happened to a row."""

    file: str | None
    position: int | None
    id: str | None = None
    part: str | None = None
    """Its name, if it is a part of what was read there, as a clip is of a film."""
    path: str | None = None
    """The input file, if the ledger knows it."""
    facts: dict[str, Any] = field(default_factory=dict)
    scores: list[FilterScore] = field(default_factory=list)
    fate: str = "unknown"
    """kept, dropped, quarantined or unknown."""
    dropped_by: str | None = None
    reason: str = ""
    cluster: dict[str, Any] | None = None
    """`stage`, `cluster`, `kept`, `partner`, `similarity`, `survivor`, `members` (the first of them) and `size`."""
    quarantine: dict[str, Any] | None = None
    outputs: list[str] = field(default_factory=list)
    outputs_known: bool = True
    """False: it is in one of `outputs`, and it is not known in which."""
    line: int | None = None
    """Its number in the output file, from 1, where that is known."""
    row: dict[str, Any] | None = None
    redacted: list[dict[str, Any]] = field(default_factory=list)
    """What `RedactPii` has found in it: entity, start and end, where its `spans_field` was kept."""
    missing: list[str] = field(default_factory=list)

    @property
    def row_id(self) -> str | None:
        return row_id(self.file, self.position) if self.file is not None and self.position is not None else None


def why(run: str | Records, wanted: str, storage_options: Mapping[str, Any] | None = None) -> list[RowOutcome]:
    """What happened to the row with this id, or to each of them if several have it."""
    records = run if isinstance(run, Records) else Records(run, storage_options)
    stories = _from_scores(records, wanted) or _from_rejected(records, wanted) or _from_quarantine(records, wanted)
    if not stories:
        stories = _from_clusters(records, wanted)
    if not stories:
        raise InputError(_not_found(records, wanted))
    for story in stories:
        _add_details(records, story)
    return stories


def _not_found(records: Records, wanted: str) -> str:
    lacking = [records.explain_missing(name) for name in (SCORES, REJECTED) if getattr(records, name) is None]
    form = "Give the value of its id column, its row id, or FILE:POSITION"
    hint = f"{lacking[0]}. " if lacking and records.scores is None else ""
    return f"no row {wanted!r} found in {records.place}. {hint}{form}"


def _position_from_id(records: Records, wanted: str) -> tuple[str, int] | None:
    """The file and position that an id stands for."""
    if match := _ROW_ID.fullmatch(wanted):
        name = next((name for name in _names(records) if digest([name]) == match[1]), None)
        return (name, int(match[2])) if name else None
    if match := _PLACE.fullmatch(wanted):
        return match[1], int(match[2])
    return None


def position_of_row(records: Records, wanted: str) -> tuple[str, int] | None:
    """The file and position of a row, by whatever it is called; None if no record tells."""
    if place := _position_from_id(records, wanted):
        return place
    found = _from_scores(records, wanted) or _from_rejected(records, wanted)
    first = found[0] if found else None
    return (first.file, first.position) if first and first.file is not None and first.position is not None else None


def _names(records: Records) -> Iterator[str]:
    """What input files may be called: each end of their paths."""
    for entry in records.entries:
        for path in entry["files"]:
            parts = path.split("/")
            yield from ("/".join(parts[start:]) for start in range(len(parts) - 1, -1, -1))


def _condition(records: Records, wanted: str, file: str, position: str, rows: dataset.Dataset) -> Any:
    from pyarrow import dataset as ds

    place = _position_from_id(records, wanted)
    places = [place] if place else []
    by_id = None
    for name in _names_of_parts(rows.schema, file == FILE):
        same = ds.field(name) == wanted
        by_id = same if by_id is None else by_id | same
    if ID in rows.schema.names:
        kind, own = rows.schema.field(ID).type, ds.field(ID)
        if is_json(kind):  # of mixed types: Arrow cannot compare it
            found = table_to_rows(rows.to_table(columns=[ID, file, position]))
            places += [(row[file], row[position]) for row in found if str(row[ID]) == wanted]
        elif not pa.types.is_nested(kind):
            same = (own if pa.types.is_string(kind) else own.cast(pa.string())) == wanted
            by_id = same if by_id is None else by_id | same
    here = [(ds.field(file) == name) & (ds.field(position) == number) for name, number in places]
    conditions = here if by_id is None else [by_id, *here]
    return reduce(or_, conditions) if conditions else None


def _names_of_parts(schema: pa.Schema, scores: bool) -> list[str]:
    """The columns with the names of parts; of rejected rows, also those with other ids that the parts have."""
    if scores:
        return [PART] if PART in schema.names else []
    if REJECTED_PART not in schema.names:
        return []
    others = [one.name for one in schema if one.name.endswith("_id") and pa.types.is_string(one.type)]
    return [REJECTED_PART, *others]


def _from_scores(records: Records, wanted: str) -> list[RowOutcome]:
    scores = records.scores
    if scores is None:
        return []
    condition = _condition(records, wanted, FILE, PLACE, scores.rows)
    lines = scores.find(condition) if condition is not None else []
    rows: dict[tuple[str, int, str | None], dict[str, Any]] = {}
    for line in lines:
        known = rows.setdefault((line[FILE], line[PLACE], line.get(PART)), {})
        known |= {name: value for name, value in line.items() if value is not None and known.get(name) is None}
    divided = {key[:2] for key in rows if key[2] is not None}
    for (file, place, part), row in rows.items():
        whole = rows.get((file, place, None)) if part is not None else None
        row |= {name: value for name, value in (whole or {}).items() if name not in row}
    return [_scored(records, row) for key, row in rows.items() if key[2] is not None or key[:2] not in divided]


def _scored(records: Records, row: Mapping[str, Any]) -> RowOutcome:
    story = RowOutcome(row[FILE], row[PLACE], row.get(PART) or row.get(ID), row.get(PART))
    if row.get(ALIKE) is not None:
        story.reason = SCORES_CONFUSED
        return story
    story.facts = {name: row[name] for name in (LANGUAGE, SOURCE, CHARS, TOKENS) if row.get(name) is not None}
    story.dropped_by = row.get(DROPPED)
    story.fate = "dropped" if story.dropped_by else "kept"
    scores = {name: value for name, value in row.items() if name not in FACTS}
    table = pa.Table.from_pylist([{FILE: row[FILE], **scores}])  # a row that was set aside may have no scores
    for rule in recorded_filters(records):
        verdicts = {label: keep[0].as_py() for label, keep in rule.verdicts(table).items()}
        for label, column in rule.columns.items():
            if row.get(column) is not None:
                threshold = rule.thresholds.get(label, "")
                kept = False if rule.needs_all_rows and rule.name == story.dropped_by else verdicts.get(label)
                story.scores.append(FilterScore(rule.name, label, row[column], threshold, kept))
    failed = [one for one in story.scores if one.stage == story.dropped_by and one.kept is False]
    broken = {rule.name: rule for rule in recorded_filters(records)}
    for one in failed:
        found = broken[one.stage].broken_rule(one.filter, row)
        if found is not None or _number(one):
            story.reason = drop_sentence(*found) if found else _reason(one.filter, one.score, one.threshold)
            break
    return story


def _number(one: FilterScore) -> bool:
    return isinstance(one.score, int | float)


def _from_rejected(records: Records, wanted: str) -> list[RowOutcome]:
    found: list[dict[str, Any]] = []
    for rows in records.rejected or ():
        condition = _condition(records, wanted, "rejected_file", "rejected_position", rows)
        found += table_to_rows(rows.to_table(filter=condition)) if condition is not None else []
    return [_rejected(row) for row in found]


def _rejected(row: dict[str, Any]) -> RowOutcome:
    own = {name: value for name, value in row.items() if not name.startswith("rejected_")}
    part = row.get(REJECTED_PART)
    story = RowOutcome(row["rejected_file"], row["rejected_position"], part or _text(own.get(ID)), part, row=own)
    story.fate, story.dropped_by = "dropped", row["rejected_by"]
    score, threshold = row["rejected_score"], row["rejected_threshold"] or ""
    if row["rejected_filter"]:
        story.scores = [FilterScore(row["rejected_by"], row["rejected_filter"], score, threshold, False)]
    rule, limit = row.get("rejected_rule"), row.get("rejected_limit")
    if sentence := rejected_sentence(row):
        story.reason = sentence
    elif score is not None and limit is not None:
        story.reason = drop_sentence(rule, score, limit, threshold)
    elif score is not None:
        story.reason = _reason(row["rejected_filter"], score, threshold)
    return story


def _reason(label: str, score: float, threshold: str) -> str:
    return f"{label} score {score:g} is outside {threshold}"


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _from_quarantine(records: Records, wanted: str) -> list[RowOutcome]:
    place = _position_from_id(records, wanted)
    found = []
    for record in records.quarantined():
        own = str(record.row.get(ID)) if record.row and record.row.get(ID) is not None else None
        if wanted in (own, record.id) or (place and place == (record.file, record.position)):
            found.append(RowOutcome(record.file, record.position, own))
    return found


def _from_clusters(records: Records, wanted: str) -> list[RowOutcome]:
    place = _position_from_id(records, wanted)
    if not any(_members(rows, "id", wanted) for rows in cluster_tables(records).values()):
        return []
    file, position = place or (None, None)
    return [RowOutcome(file, position, None if _ROW_ID.fullmatch(wanted) else wanted)]


def _add_details(records: Records, story: RowOutcome) -> None:
    """All else that is known of a row."""
    story.path = records.input_path(story.file) if story.file else None
    story.cluster = _cluster(records, story)
    _look_in_quarantine(records, story)
    if story.cluster:
        _explain_duplicate(story, story.cluster)
    if story.row is None and story.file is not None and story.position is not None:
        story.row = input_row_at(records, story.file, story.position, story.part)
    if story.fate == "kept" and story.file is not None:
        story.outputs, story.outputs_known = _outputs(records, story, story.file)
        alone = len(records.output_paths(story.file)) == 1
        number = _output_row_number(records, story) if alone else None
        story.line = None if number is None else records.rows_before(story.file) + number
    _look_for_spans(records, story)
    if records.scores is None:
        story.missing.append(records.explain_missing(SCORES))
    if records.rejected is None and story.row is None:
        story.missing.append(records.explain_missing(REJECTED))


def _outputs(records: Records, story: RowOutcome, file: str) -> tuple[list[str], bool]:
    """The files that a row may be in, and whether that is sure: of the branches of a Route, it took one."""
    branches = records.output_paths_by_branch(file)
    paths = [path for paths in branches.values() for path in paths]
    if len(branches) < 2:
        return paths, True
    own = {ID: story.id, **{name: (story.row or {}).get(name) for name in (ID, "text") if story.id is None}}
    column, value = next(((name, value) for name, value in own.items() if value is not None), ("", None))
    if value is None:
        return paths, False
    there = {path: has_row(path, column, value, records.options) for path in paths}
    found = [path for path, has in there.items() if has]
    return (found, True) if found and None not in there.values() else (found or paths, False)


def _explain_duplicate(story: RowOutcome, cluster: Mapping[str, Any]) -> None:
    """What became of a row that is in a cluster, if that decided it."""
    if story.fate == "unknown":
        story.fate = "kept" if cluster["kept"] else "dropped"
    stage: str = cluster["stage"]
    elsewhere = story.dropped_by is not None and not story.dropped_by.startswith(stage)
    if cluster["kept"] or story.fate != "dropped" or (elsewhere and story.reason):
        return
    story.dropped_by = story.dropped_by or stage or None
    known = f" (in the index since {cluster['snapshot']})" if cluster.get("snapshot") else ""
    similar = cluster["similarity"]
    if similar is None:
        story.reason = f"a duplicate of {cluster['partner'] or 'another row'}{known}"
    else:
        story.reason = f"{similarity_sentence(similar, cluster['partner'], cluster['threshold'])}{known}"


def _look_for_spans(records: Records, story: RowOutcome) -> None:
    """What was redacted, from a column of the row as it was rejected or written."""
    redacting = [stage for stage in records.stages if "spans_field" in stage]
    if redacting and not any(stage["spans_field"] for stage in redacting):
        story.missing.append("redacted spans were not recorded: set RedactPii(spans_field=...)")
    names = [stage["spans_field"] for stage in redacting if stage["spans_field"]]
    rows = [story.row or {}]
    if names and story.line and story.outputs:
        rows.append(read_output_row(story.outputs[0], story.line, records.options) or {})
    for row in rows:
        for name in names:
            spans = row.get(name) or []
            story.redacted += orjson.loads(spans) if isinstance(spans, str) else spans


def _look_in_quarantine(records: Records, story: RowOutcome) -> None:
    for record in records.quarantined():
        if (
            story.position is not None
            and (record.file, record.position) == (story.file, story.position)
            and (story.part is None or record.row is None or story.part in record.row.values())
        ):
            story.fate, story.dropped_by = "quarantined", None
            story.quarantine = {"id": record.id, "stage": record.stage, "error": record.error}
            story.reason = record.error


def _members(rows: dataset.Dataset, column: str, value: str) -> list[dict[str, Any]]:
    from pyarrow import dataset as ds

    found: list[dict[str, Any]] = rows.to_table(filter=ds.field(column) == value).to_pylist()
    return found


def _cluster(records: Records, story: RowOutcome) -> dict[str, Any] | None:
    """The cluster that a row is in: of several stages, that which dropped it."""
    tables = cluster_tables(records)
    for name in (story.row_id, story.id):
        mine = [(one, prefix) for prefix in tables for one in _members(tables[prefix], "id", name)] if name else []
        if mine:
            own, prefix = min(mine, key=lambda one: one[0]["kept"] != (story.fate == "kept"))
            return _cluster_details(records, own, tables[prefix], prefix)
    return None


def _cluster_details(records: Records, own: dict[str, Any], rows: dataset.Dataset, prefix: str) -> dict[str, Any]:
    all_of_it = _members(rows, "cluster", own["cluster"])
    stage = compared_columns(records).get(prefix, ComparedColumns())
    return {
        **own,
        "stage": stage.name,
        "threshold": stage.threshold,
        "survivor": next((one["id"] for one in all_of_it if one["kept"]), None),
        "size": len(all_of_it),
        "members": [one["id"] for one in all_of_it if one["id"] != own["id"]][:MAX_CLUSTER_MEMBERS],
    }


def _output_row_number(records: Records, story: RowOutcome) -> int | None:
    """How many rows of its file were kept up to this one. Only where rows went straight from reader to writer."""
    from pyarrow import dataset as ds

    scores = records.scores
    if (
        scores is None
        or scores.has_parts
        or not records.stages
        or any("partition" in stage["name"] for stage in records.stages[1:])
    ):
        return None
    here = (ds.field(FILE) == story.file) & (ds.field(PLACE) <= story.position)
    rows = scores.rows.to_table(columns=[PLACE, SEGMENT, DROPPED], filter=here & ds.field(DROPPED).is_null())
    if any(segment > 1 for segment in rows.column(SEGMENT).unique().to_pylist()):
        return None
    aside = {record.position for record in records.quarantined() if record.file == story.file}
    return sum(place not in aside for place in rows.column(PLACE).to_pylist())
