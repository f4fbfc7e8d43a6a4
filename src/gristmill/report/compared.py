"""Compared: the cluster tables of a run, and what the stages that wrote them have compared, as the plan tells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.report.rules import find_class

if TYPE_CHECKING:
    from pyarrow import dataset

    from gristmill.report.records import Records

SEARCHED = 64 * 2**20
"""Of the rejected rows, and of the input, that are searched for ids."""

_TEXT = "text"
_SEGMENT = re.compile(r"segment(\d+)-")
_COMMIT = "_commit_verdicts"


def cluster_tables(records: Records) -> dict[int, dataset.Dataset]:
    """The cluster table of each stage that has one, by the segment that wrote it."""
    from pyarrow import dataset as ds

    rows = records.clusters
    found: dict[int, list[Any]] = {}
    for part in rows.get_fragments() if rows is not None else ():
        named = _SEGMENT.match(part.path.rpartition("/")[2])
        found.setdefault(int(named[1]) if named else 0, []).append(part)
    return {
        segment: ds.FileSystemDataset(parts, rows.schema, parts[0].format, parts[0].filesystem)  # type: ignore[union-attr]
        for segment, parts in sorted(found.items())
    }


@dataclass(frozen=True)
class Compared:
    """The columns that a stage compares rows by, and the one that it names them by."""

    fields: tuple[str, ...] = (_TEXT,)
    id_field: str | None = None
    of_text: bool = False
    name: str = ""
    threshold: str = ""

    @classmethod
    def of(cls, stage: Mapping[str, Any], name: str) -> Compared:
        """From what a plan says of a stage."""
        columns = stage.get("columns") or [stage.get("url_field") or stage.get("text_field")]
        fields = tuple(name for name in columns if isinstance(name, str))
        limits = [f"{limit}={stage[limit]}" for limit in ("threshold", "eps", "radius") if limit in stage]
        return cls(fields or (_TEXT,), stage.get("id_field"), bool(fields), name, ", ".join(limits))

    @property
    def without(self) -> str:
        """Why a row may have no text."""
        if not self.of_text:
            return ""
        if self.id_field is None:
            return f"Rows without a text: it is not in the input as {' or '.join(map(repr, self.fields))}."
        return (
            f"Rows without a text: their {self.id_field!r} is not among the rejected rows, which rejected=True keeps, "
            f"nor in the first {SEARCHED // 2**20} MB of the input."
        )

    def text(self, row: Mapping[str, Any]) -> str | None:
        """What a row was compared by."""
        there = {name: row[name] for name in self.fields if row.get(name) is not None}
        if len(self.fields) > 1:
            return "\n".join(f"{name}: {value}" for name, value in there.items()) or None
        return next(map(str, there.values()), None)


def compared_by(records: Records) -> dict[int, Compared]:
    """What the stages have compared that have a cluster table, by the segment that wrote it."""
    found: dict[int, Compared] = {}
    segment = 1
    for number, stage in enumerate(records.stages):
        segment += number > 0 and _begins_segment(stage)
        spool = (stage.get("exchange") or {}).get("spool") if "CommitVerdicts" in stage["class"] else None
        if spool:
            found[segment] = Compared.of(spool["stage"], stage["name"].removesuffix(_COMMIT))
    return found


def _begins_segment(stage: Mapping[str, Any]) -> bool:
    try:
        return bool(getattr(find_class(stage["class"]), "continues", False))
    except (LookupError, ImportError):  # a stage of the user's own
        return False
