"""The cluster tables of a run, and the columns that their stages compared, according to the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.dedup.clusters.cluster_table import CLUSTER_TABLE_RECORD, SIMILARITY
from gristmill.report.run_records import dataset_of

if TYPE_CHECKING:
    from pyarrow import dataset

    from gristmill.report.run_records import Records

SEARCHED_REJECTED_BYTES, SEARCHED_INPUT_BYTES = 32 * 2**20, 8 * 2**20
"""Of the rejected rows, and of the input, that are searched for ids: what is compared there, once it is read."""

_TEXT = "text"


def cluster_tables(records: Records) -> dict[str, dataset.Dataset]:
    """The cluster table of each stage that has one, by how the names of its files begin. Runs of earlier versions do
    not tell whose a table is."""
    rows = records.clusters
    if rows is None:
        return {}
    prefixes, found = list(compared_columns(records)), dict[str, list[Any]]()
    for part in rows.get_fragments():
        name = part.path.rpartition("/")[2]
        own = next((prefix for prefix in prefixes if name.startswith(prefix)), f"{name.partition('-')[0]}-")
        found.setdefault(own, []).append(part)
    in_order = sorted(found, key=lambda prefix: prefixes.index(prefix) if prefix in prefixes else -1)
    return {prefix: dataset_of(found[prefix], rows.schema) for prefix in in_order}


@dataclass(frozen=True)
class ComparedColumns:
    """The columns that a stage compares rows by, and the one that it names them by."""

    fields: tuple[str, ...] = (_TEXT,)
    id_field: str | None = None
    columns_known: bool = False
    name: str = ""
    threshold: str = ""

    @classmethod
    def of(cls, stage: Mapping[str, Any], name: str, threshold: str) -> ComparedColumns:
        """From what a plan says of a stage."""
        columns = stage.get("columns") or [stage.get("url_field") or stage.get("text_field")]
        fields = tuple(name for name in columns if isinstance(name, str))
        return cls(fields or (_TEXT,), stage.get("id_field"), bool(fields), name, threshold)

    @property
    def missing_text_note(self) -> str:
        """Why a row may have no text."""
        if not self.columns_known:
            return ""
        if self.id_field is None:
            return f"Some texts are missing because the input has no column {' or '.join(map(repr, self.fields))}."
        return (
            f"Some texts are missing: their {self.id_field!r} is neither among the rejected rows (kept with "
            f"rejected=True) nor in the first {SEARCHED_INPUT_BYTES // 2**20} MB of a local input."
        )

    def text(self, row: Mapping[str, Any]) -> str | None:
        """What a row was compared by."""
        there = {name: row[name] for name in self.fields if row.get(name) is not None}
        if len(self.fields) > 1:
            return "\n".join(f"{name}: {value}" for name, value in there.items()) or None
        return next(map(str, there.values()), None)


def compared_columns(records: Records) -> dict[str, ComparedColumns]:
    """What the stages have compared that have a cluster table, by how the names of its files begin."""
    found: dict[str, ComparedColumns] = {}
    for described, memory in zip(records.stages, records.plan.get("memories") or (), strict=False):
        if written := memory.get(CLUSTER_TABLE_RECORD):
            stage, threshold = described["exchange"]["spool"]["stage"], written["thresholds"].get(SIMILARITY, "")
            found[written["prefix"]] = ComparedColumns.of(stage, written["stage"], threshold)
    return found
