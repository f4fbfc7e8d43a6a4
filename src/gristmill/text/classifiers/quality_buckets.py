"""QualityBuckets: scores of several models as whole numbers from 0 to 20 by their rank in the corpus, joined to one.

As Nemotron-CC does it: the scores of one model mean nothing beside those of another, but their ranks do. Each score
becomes the number of its quantile; the bucket of a document is the highest number that a model gives it.

    spool     when all scores are written, the driver takes the quantiles of them
    assign    each row gets the numbers of its quantiles

The result does not depend on blocks, workers or executors. Of more than `SAMPLE_ROWS` rows the quantiles are those of a
random sample of at least that size, so a bucket may have some thousandths more or less than its share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.errors import ColumnError
from gristmill.core.row_sampling import draw_uniform, row_ids
from gristmill.core.task import WrittenFiles, digest
from gristmill.io.exchange.exchange import Exchange, ListPartitions
from gristmill.io.exchange.keyed_stage import KeyedStage
from gristmill.io.exchange.verdict_stage import ROW, TASK, SpoolExchange, VerdictStage, identities
from gristmill.samples.argument_checks import check_choice, check_count
from gristmill.text.text_columns import as_array

if TYPE_CHECKING:
    from gristmill.core.batch import Batch
    from gristmill.core.stage import Columns
    from gristmill.models.model_loader import Array

SAMPLE_ROWS = 2_000_000
ENSEMBLES = ("max", "mean", "min")
LABELS = {"low": 0, "medium": 7, "high": 14}
_KEY, _KEEP = "bucket_key", "keep"


class QualityBuckets(VerdictStage):
    """Adds the bucket of each document, from 0 to `buckets`, by the rank of its scores in the corpus.

    `score_fields` is a column of scores, or several, of which the `ensemble` ("max", "mean", "min") decides. With
    `label_field`, a column names the bucket: `labels` says from which bucket on each name holds, by default low,
    medium from 7 and high from 14. `by="value"` takes 20 equal steps from `low` to `high` instead of ranks. A row
    without any score has no bucket. No row is dropped: `Route`, `Resample` and `Filter` come next.
    """

    def __init__(
        self,
        score_fields: str | Sequence[str],
        bucket_field: str = "quality_bucket",
        buckets: int = 20,
        ensemble: str = "max",
        label_field: str | None = None,
        labels: Mapping[str, int] | None = None,
        by: str = "rank",
        low: float = 0.0,
        high: float = 1.0,
        num_partitions: int | None = None,
        memory_gb: float | None = None,
    ) -> None:
        super().__init__()
        Exchange(num_partitions=num_partitions, memory_gb=memory_gb)  # raises for wrong numbers
        check_count("QualityBuckets", "buckets", buckets, 1)
        check_choice("QualityBuckets", "ensemble", ensemble, ENSEMBLES)
        check_choice("QualityBuckets", "by", by, ("rank", "value"))
        if not low < high:
            raise ValueError(f"QualityBuckets: low={low} must be below high={high}")
        self.score_fields, self.bucket_field, self.buckets, self.ensemble = (
            score_fields,
            bucket_field,
            buckets,
            ensemble,
        )
        self.label_field, self.labels, self.by, self.low, self.high = label_field, labels, by, low, high
        self.num_partitions, self.memory_gb = num_partitions, memory_gb
        self._fields = [score_fields] if isinstance(score_fields, str) else list(score_fields)
        self._labels = sorted((labels or LABELS).items(), key=lambda one: one[1])
        if not self._fields:
            raise ValueError("QualityBuckets: score_fields is empty: name the columns with scores")
        self.adds = [bucket_field, *([label_field] if label_field else [])]

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], list(self._fields)

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], list(self.adds)

    def keys(self, batch: Batch) -> pa.Table:
        owner, numbers = row_ids(batch)
        drawn = draw_uniform(numbers, int(digest(["QualityBuckets", owner]), 16))
        columns = {_KEY: drawn, **{f"score_{n}": self._scores(batch, name) for n, name in enumerate(self._fields)}}
        known = identities(batch)
        return pa.table({**columns, TASK: known[TASK], ROW: known[ROW]})

    def _scores(self, batch: Batch, name: str) -> pa.Array:
        column = as_array(batch.data.column(name))
        if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
            raise ColumnError(f"stage {self.name!r} needs numbers in column {name!r}, which holds {column.type}")
        return column.cast(pa.float64())

    def spool(self, first: KeyedStage, spools: bool) -> SpoolExchange:
        return QuantileSpool(self, first.columns, first.num_partitions, spools)

    def rounds(self) -> Sequence[KeyedStage]:
        return self.named_rounds([AssignBuckets(self)])

    def edges(self, values: Array) -> Array:
        """The least score of each bucket but the first."""
        if self.by == "value":
            return np.linspace(self.low, self.high, self.buckets + 1)[1:]
        known = np.sort(values[~np.isnan(values)])
        if not len(known):
            return np.zeros(self.buckets)
        shares = np.arange(1, self.buckets + 1) / (self.buckets + 1)
        places = np.minimum((shares * len(known)).astype(np.int64), len(known) - 1)
        found: Array = known[places]
        return found

    def numbers(self, scores: Array, edges: Array) -> list[int | None]:
        """The bucket of each row, from one column of scores and edges for each model."""
        each = np.full(scores.shape, np.nan)
        for model in range(scores.shape[1]):
            known = ~np.isnan(scores[:, model])
            each[known, model] = np.searchsorted(edges[model], scores[known, model], side="right")
        return [self._joined(row[~np.isnan(row)]) for row in each]

    def _joined(self, found: Array) -> int | None:
        if not len(found):
            return None
        if self.ensemble == "mean":
            return int(np.floor(found.mean() + 0.5))
        return int(found.max() if self.ensemble == "max" else found.min())

    def label(self, bucket: int | None) -> str | None:
        names = [name for name, least in self._labels if bucket is not None and bucket >= least]
        return names[-1] if names else None

    @property
    def score_columns(self) -> list[str]:
        return [f"score_{number}" for number in range(len(self._fields))]


class QuantileSpool(SpoolExchange):
    """The spool, with scores partitioned at random; takes the quantiles when all are written."""

    stage: QualityBuckets
    _file = "quantiles.npy"

    def __init__(self, stage: QualityBuckets, key: Sequence[str], num_partitions: int | None, spools: bool) -> None:
        super().__init__(stage, key, num_partitions, spools)
        self._edges: Array | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_edges": None}

    def list_files(self, outputs: Iterable[WrittenFiles]) -> None:
        super().list_files(outputs)
        self._edges = None
        data = BytesIO()
        np.save(data, np.stack([self.stage.edges(values) for values in self._sample()]))
        with self.target.create(self.target.file(self._file)) as file:
            file.write(data.getvalue())

    def _sample(self) -> list[Array]:
        """Scores of each model: of all rows, or of the first partitions, which are a random sample."""
        parts: list[list[Array]] = [[] for _ in self.stage.score_columns]
        held = 0
        for number in range(self.partitions):
            for table in self.listing.tables(number):
                for part, name in zip(parts, self.stage.score_columns, strict=True):
                    part.append(score_numbers(table, name))
                held += table.num_rows
            if held >= SAMPLE_ROWS:
                break
        return [np.concatenate(part) if part else np.zeros(0) for part in parts]

    def load(self) -> Array:
        """The edges of the buckets of each model, read by each worker once."""
        if self._edges is None:
            with self.target.open(self.target.file(self._file)) as file:
                self._edges = np.load(BytesIO(file.read()), allow_pickle=False)
        return self._edges


class AssignBuckets(KeyedStage):
    """Gives each row its bucket."""

    key = _KEY
    step_name = "assign"

    def __init__(self, stage: QualityBuckets) -> None:
        super().__init__()
        self.stage = stage
        self.spool: QuantileSpool | None = None

    def lister(self, exchange: Exchange, name: str) -> ListPartitions:
        self.spool = cast("QuantileSpool", exchange)
        return super().lister(exchange, name)

    def process_groups(self, table: pa.Table) -> pa.Table:
        assert self.spool is not None, "known when partitions are listed"
        stage = self.stage
        scores = np.stack([score_numbers(table, name) for name in stage.score_columns], axis=1)
        buckets = stage.numbers(scores, self.spool.load())
        columns = {
            TASK: table[TASK],
            ROW: table[ROW],
            _KEEP: make_array([True] * table.num_rows, pa.bool_()),
            stage.bucket_field: make_array(buckets, pa.int64()),
        }
        if stage.label_field:
            columns[stage.label_field] = make_array([stage.label(bucket) for bucket in buckets], pa.string())
        return pa.table(columns)


def score_numbers(table: pa.Table, name: str) -> Array:
    """A column of scores, with NaN for null."""
    column = as_array(table[name])
    values: Array = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return values
