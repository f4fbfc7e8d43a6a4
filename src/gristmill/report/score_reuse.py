"""A copy of a pipeline whose filters reuse the scores recorded by an earlier run, and compute only the others.

The rows are read again, and all else is done as it would be. A filter of which every score is known loads no model.

Gives up: filters inside of composite stages. They compute their scores again, with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.row_keys import repeated_keys
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.batch import SOURCE_FILE, column_cache, stored_rows
from gristmill.core.deciding_stage import DecidingStage, Decision, Measures, Rule
from gristmill.core.pipeline import Pipeline
from gristmill.core.plan.planner import decompose
from gristmill.core.records.row_scores import FILE, PLACE, unique_names
from gristmill.core.records.run_directory import OUTPUT_GONE
from gristmill.core.stage import ProcessingStage
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.commit import safe_file_name
from gristmill.report.recorded_filters import RecordedFilter, Settings, recorded_filters
from gristmill.report.run_records import Records
from gristmill.samples.batch import DocumentBatch
from gristmill.text.score import ScoreFilter

if TYPE_CHECKING:
    from gristmill.core.stage import Columns, WorkerMetadata

_RECORDED_SCORES = "__recalled__"


def with_recorded_scores(pipeline: Pipeline, records: Records, settings: Settings) -> tuple[Pipeline, int]:
    """The pipeline, which has other parameters than the run by `settings`, with filters that recall scores, and how
    many there are."""
    flat = decompose(pipeline.stages)
    names = unique_names(stage.name for stage in flat)
    rules = {rule.name: rule for rule in recorded_filters(records, settings)}
    segments = _segments(records)
    stages: list[ProcessingStage[Any, Any]] = []
    for stage in pipeline.stages:
        rule = rules.get(next((name for one, name in zip(flat, names, strict=True) if one is stage), ""))
        found = {segments.get(column) for column in rule.columns.values()} if rule else set()
        segment = found.pop() if len(found) == 1 else None
        if isinstance(stage, ScoreFilter) and rule and rule.is_recallable and segment is not None:
            stages.append(RecordedScoreFilter(stage, rule, segment, records.scores_directory, records.options))
        else:
            stages.append(stage)
    made = Pipeline(pipeline.name, pipeline.description, stages, pipeline.config)
    return made, sum(isinstance(stage, RecordedScoreFilter) for stage in stages)


def _segments(records: Records) -> dict[str, int]:
    """The segment that each column of scores belongs to."""
    if records.scores is None:
        return {}
    return {column: segment for part, segment in records.scores.parts() for column in part.physical_schema.names}


class RecordedScoreFilter(DecidingStage[DocumentBatch]):
    """A `ScoreFilter` that looks its scores up."""

    takes_empty = True

    def __init__(
        self, stage: ScoreFilter, rule: RecordedFilter, segment: int, place: str, options: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.stage, self.columns, self.segment, self.name = stage, dict(rule.columns), segment, stage.name
        self.measured = {
            label: {one["rule"]: one["column"] for one in several if one["rule"]}
            for label, several in rule.rules.items()
        }
        self.place, self.options = place, dict(options)
        self._metadata: Any = None
        self._ready = False

    def inputs(self) -> tuple[list[str], Columns]:
        return self.stage.inputs()

    def outputs(self) -> tuple[list[str], Columns]:
        return self.stage.outputs()

    def check(self) -> None:
        self.stage.check()

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self._metadata = worker_metadata

    def teardown(self) -> None:
        if self._ready:
            self.stage.teardown()

    def decide(self, batch: DocumentBatch) -> Decision:
        known = self._known(batch) if batch.num_items else None
        if known is None:
            return self._computed(batch)
        scores: dict[str, pa.Array] = {}
        measures: dict[str, Measures] = {}
        for step in self.stage.filter_steps():
            numbers = {rule: _column(known, column) for rule, column in self.measured.get(step.label, {}).items()}
            if numbers:
                measures[step.label] = numbers
            scores[step.label] = (
                as_one_array(step.tool.score_measures(numbers)) if numbers else _column(known, self.columns[step.label])
            )
        verdicts = self.stage.judge(scores, measures)
        if verdicts.keys() != scores.keys():
            return self._computed(batch)
        self.count("scores_recalled", batch.num_items)
        kept = reduce(pc.and_, verdicts.values())
        dropped_by = self.stage._dropped_by([verdicts[label] for label in scores])
        return Decision(kept, scores, measures=measures, dropped_by=dropped_by)

    def apply(self, batch: DocumentBatch, decision: Decision) -> DocumentBatch:
        return self.stage.apply(batch, decision)

    def thresholds(self) -> dict[str, str]:
        return self.stage.thresholds()

    def rules(self) -> dict[str, Sequence[Rule]]:
        return self.stage.rules()

    def _computed(self, batch: DocumentBatch) -> Decision:
        if not self._ready:
            self.stage._planned = self._planned
            self.stage.setup(self._metadata)
            self._ready = True
        return self.stage.decide(batch)

    def _known(self, batch: DocumentBatch) -> pa.Table | None:
        """The scores of a batch's rows; None if one of them is not known."""
        table, rows = stored_rows(batch)
        memo = f"{_RECORDED_SCORES}{self.segment}"
        if memo not in column_cache(batch):
            column_cache(batch)[memo] = self._looked_up(batch, table)
        found: pa.Table | None = column_cache(batch)[memo]
        needed = {*self.columns.values(), *(column for each in self.measured.values() for column in each.values())}
        if found is None or not needed <= {*found.column_names}:
            return None
        mine = found.select([*needed])
        mine = mine if rows is None else mine.filter(rows)
        return None if any(column.null_count for column in mine.columns) else mine

    def _looked_up(self, batch: DocumentBatch, table: pa.Table) -> pa.Table | None:
        """All that was kept of the rows of a table, in their order."""
        import pyarrow.parquet as pq
        from pyarrow import dataset as ds

        target, partition = OutputDirectory(self.place, self.options), batch.metadata.get("partition")
        file = batch.metadata.get(SOURCE_FILE)
        if partition is None or file is None or POSITION not in table.column_names:
            return None
        path = target.file(safe_file_name(f"{partition}{f'-{self.segment}' if self.segment > 1 else ''}") + ".parquet")
        if not target.exists(path):
            return None
        places = as_one_array(table.column(POSITION))
        first, last = pc.min_max(places).as_py().values()
        here = (ds.field(FILE) == file) & (ds.field(PLACE) >= first) & (ds.field(PLACE) <= last)
        with target.open(path) as source:
            found = pq.read_table(source, filters=here)
        there = as_one_array(found.column(PLACE))
        if repeated_keys(there) is not None or repeated_keys(places) is not None:
            return None  # several rows of one: which is which is not known
        return found.take(pc.index_in(places, value_set=there))


def _column(table: pa.Table, name: str) -> pa.Array:
    return as_one_array(table.column(name))


def changes_since_run(pipeline: Pipeline, place: str) -> Sequence[str]:
    """What has changed since a run, so that its scores may not be those of the rows that are there now. Output that is
    gone, such as the partitions of a run without a run directory, is no such change."""
    changes, left, _ = pipeline.left_to_do(place)
    return [*changes, *(f"{', '.join(lineage.files)}: {why}" for lineage, why in left if why != OUTPUT_GONE)]
