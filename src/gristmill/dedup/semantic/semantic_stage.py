"""Semantic deduplication: of rows whose embeddings point in nearly the same direction, one is kept.

Rows of any modality stay in their sources. Their embeddings, scaled to unit length, go through exchanges
(`io/exchange/verdict_stage.py`):

    spool           when all embeddings are written, the driver computes centroids of a sample (`kmeans.py`)
    assign_cells    each row goes to the cell of its nearest centroid, and to cells whose border is near it
    compare_cells   rows of a cell are compared with each other, in the order of their rank (`cell_comparison.py`)
    select          a row that is near a row that was kept before it is dropped (`greedy_selection.py`)

The result does not depend on blocks, workers or executors.

Gives up pairs across a border that neither row is near. A run estimates how many, by comparing a sample with all rows.
`border=1` and a large `n_probe` find all pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from math import sqrt
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.batch import Batch
from gristmill.core.stage import Columns
from gristmill.core.task import WrittenFiles
from gristmill.dedup.clusters.cluster_table import ID, SIMILARITY, CommitVerdicts, ids, row_numbers
from gristmill.dedup.columns import kernel_reference as reference
from gristmill.dedup.columns.arrow_numpy import Numbers, from_numbers, numbers
from gristmill.dedup.semantic.cell_exchange import AssignCells, CellPlan, CompareCells
from gristmill.dedup.semantic.embedding_columns import embeddings_of, matrix_of
from gristmill.dedup.semantic.greedy_selection import NODE, RANK, VECTOR, GreedySelection
from gristmill.dedup.semantic.kmeans import CentroidCells, fit_centroids, principal_directions
from gristmill.dedup.semantic.ranking_strategy import (
    HARD,
    RANDOM,
    WHICH_TO_KEEP,
    RankingStrategy,
    big_endian,
    binary_column,
    column_sort_bytes,
    position_bytes,
)
from gristmill.io.exchange.exchange import CommitShuffleFiles, Exchange, sort_memory_bytes
from gristmill.io.exchange.keyed_stage import KeyedStage
from gristmill.io.exchange.verdict_stage import ROW, TASK, SpoolExchange, VerdictStage, identities

AUTO = "auto"
CLUSTER_ROWS = 8192
"""Rows of a cluster on average, with n_clusters="auto". Smaller clusters are compared faster, but more clusters have
more borders. With very many rows, clusters are larger."""

PER_CLUSTER, SAMPLE_ROWS = 64, 8192
"""The size of the sample that centroids are computed from: rows for each centroid, and at least."""

SHORT, SHARE = 64, 8
"""Embeddings longer than `SHORT` are first compared in a short form, one part in `SHARE` as long."""

QUERIES = 512
"""The number of rows that are compared with all others, to estimate recall."""

_KEY = "__key__"


class SemanticDeduplicationStage(VerdictStage):
    """Drops rows whose embedding is nearly that of another row; of similar rows, the first by rank is kept.

    Two rows are similar if their embeddings, in `embedding_field`, have a cosine similarity of at least 1 - `eps`. Rows
    are visited in the order of their rank; one that is similar to a row that was kept before it is dropped. With
    greedy=False it is also dropped if it is similar to a dropped row before it, so that fewer rows are kept.

    `which_to_keep` ranks rows by their distance to the centroid of their cluster: "hard" keeps the farthest, "easy" the
    nearest, and "random" a random one, by `random_state`. `distance_metric` of this distance is "cosine" or "l2".
    `ranking_strategy` ranks by columns instead: a `RankingStrategy`, or a dict of its parameters.

    Rows are compared within `n_clusters` clusters ("auto": by the number of rows). Rows near a border are also compared
    with the clusters beyond it: each row with at most `n_probe` clusters. `border` is how near, from 0, not at all, to
    1, which misses no pair. The run reports an estimate of its recall, `estimated_recall`.

    Null and zeros are never duplicates. Rows with NaN, or with a length other than `embedding_dim`, go to quarantine.
    `id_field` is the column that names rows in the cluster table. `memory_gb` is the memory that a worker may use.
    Output files have the same names and order as without this stage.
    """

    def __init__(
        self,
        id_field: str | None = None,
        embedding_field: str = "embeddings",
        n_clusters: int | str = AUTO,
        eps: float = 0.01,
        which_to_keep: str = HARD,
        distance_metric: str = "cosine",
        ranking_strategy: RankingStrategy | Mapping[str, Any] | None = None,
        *,
        greedy: bool = True,
        n_probe: int = 4,
        border: float = 0.25,
        embedding_dim: int | None = None,
        random_state: int = 42,
        max_iter: int = 10,
        tol: float = 1e-4,
        num_partitions: int | None = None,
        memory_gb: float | None = None,
    ) -> None:
        super().__init__()
        Exchange(num_partitions=num_partitions, memory_gb=memory_gb)  # raises for wrong numbers
        self.id_field, self.embedding_field, self.n_clusters, self.eps = id_field, embedding_field, n_clusters, eps
        self.which_to_keep, self.distance_metric = which_to_keep, distance_metric
        self.ranking_strategy, self.greedy = ranking_strategy, greedy
        self.n_probe, self.border, self.embedding_dim = n_probe, border, embedding_dim
        self.random_state, self.max_iter, self.tol = random_state, max_iter, tol
        self.num_partitions, self.memory_gb = num_partitions, memory_gb
        given = ranking_strategy
        self._ranking = RankingStrategy(**given) if isinstance(given, Mapping) else given
        self.key_share = 1.0
        self._check_arguments()

    def _check_arguments(self) -> None:
        def is_integer(value: Any, least: int = 1) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and value >= least

        rules = [
            ("eps", isinstance(self.eps, int | float) and 0 <= self.eps < 1, "a number from 0 up to 1, such as 0.05"),
            (
                "n_clusters",
                self.n_clusters == AUTO or is_integer(self.n_clusters),
                "a whole number, 1 or more, or 'auto'",
            ),
            ("which_to_keep", self.which_to_keep in WHICH_TO_KEEP, f"one of {', '.join(WHICH_TO_KEEP)}"),
            ("distance_metric", self.distance_metric in ("cosine", "l2"), "'cosine' or 'l2'"),
            ("n_probe", is_integer(self.n_probe), "a whole number, 1 or more"),
            ("border", isinstance(self.border, int | float) and 0 <= self.border <= 1, "a share from 0 to 1"),
            ("embedding_dim", self.embedding_dim is None or is_integer(self.embedding_dim), "a whole number, or None"),
            ("random_state", is_integer(self.random_state, 0), "a whole number, 0 or more"),
            ("max_iter", is_integer(self.max_iter), "a whole number, 1 or more"),
            ("tol", isinstance(self.tol, int | float) and self.tol >= 0, "a number, 0 or more"),
        ]
        for name, valid, wanted in rules:
            if not valid:
                raise ValueError(f"SemanticDeduplicationStage: {name} is {getattr(self, name)!r}, must be {wanted}")

    def inputs(self) -> tuple[list[str], Columns]:
        ranked = [name for name, _ in self._ranking.columns] if self._ranking else []
        named = [self.embedding_field, *([self.id_field] if self.id_field else []), *ranked]
        return ["data"], list(dict.fromkeys(named))

    def keys(self, batch: Batch) -> pa.Table:
        rows, vectors = embeddings_of(self, batch.data, self.embedding_field, self.embedding_dim)
        some = from_numbers(rows)
        known, nodes = identities(batch), row_numbers(batch)[rows]
        shuffled = reference.scramble(nodes.view(np.uint64))
        return pa.table(
            [
                pa.Array.from_buffers(pa.binary(8), len(rows), [None, pa.py_buffer(np.ascontiguousarray(shuffled))]),
                from_numbers(nodes),
                vectors,
                binary_column(self._ranks(batch, nodes, rows)),
                ids(self.name, batch, self.id_field).take(some),
                known[TASK].take(some),
                known[ROW].take(some),
            ],
            [_KEY, NODE, VECTOR, RANK, ID, TASK, ROW],
        )

    def _ranks(self, batch: Batch, nodes: Numbers, rows: Numbers) -> list[bytes]:
        """The rank of each row, as far as it does not depend on clusters."""
        batch_position, row_positions = position_bytes(batch)
        ends = [batch_position + row.tobytes() for row in row_positions[rows]]
        if self._ranking and self._ranking.columns:
            begins = column_sort_bytes(self, batch.data, self._ranking.columns)
            return [begins[row] + end for row, end in zip(rows.tolist(), ends, strict=True)]
        if self._random_seed is None:
            return ends
        drawn = reference.scramble(
            nodes.view(np.uint64) + np.uint64(self._random_seed * reference.GOLDEN & reference.ALL)
        )
        return [lot.tobytes() + end for lot, end in zip(big_endian(drawn), ends, strict=True)]

    @property
    def _random_seed(self) -> int | None:
        """The seed, if rows are ranked at random."""
        if self._ranking:
            return self._ranking.random_seed
        return self.random_state if self.which_to_keep == RANDOM else None

    def spool(self, first: KeyedStage, spools: bool) -> SpoolExchange:
        return CentroidSpool(self, first.columns, first.num_partitions, spools)

    def rounds(self) -> Sequence[KeyedStage]:
        by_distance = None if self._ranking or self.which_to_keep == RANDOM else self.which_to_keep
        assign = AssignCells(_KEY, by_distance, self.distance_metric, self.eps)
        compare, select = CompareCells(assign, self.eps, self.greedy), GreedySelection(self.greedy, self.eps)
        return self.named_rounds([assign, compare, select])

    def thresholds(self) -> dict[str, str]:
        return {SIMILARITY: f"eps={self.eps:g}, at least {1 - self.eps:g}"}

    def commit(self, verdicts: Exchange) -> CommitShuffleFiles:
        return CommitVerdicts(verdicts, f"{self.name}_commit_verdicts", memory_gb=self.memory_gb)


class CentroidSpool(SpoolExchange):
    """The spool, with embeddings partitioned by a hash of the row; computes centroids when all are written."""

    stage: SemanticDeduplicationStage
    _file = "centroids.npy"

    def __init__(
        self, stage: SemanticDeduplicationStage, key: Sequence[str], num_partitions: int | None, spools: bool
    ) -> None:
        super().__init__(stage, key, num_partitions, spools)
        self.cells = 0
        """The number of clusters."""
        self.queries = np.zeros(0, np.int64)
        """The numbers of the rows that are compared with all others."""
        self._loaded: CellPlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_loaded": None}

    def list_files(self, outputs: Iterable[WrittenFiles]) -> None:
        super().list_files(outputs)
        rows = sum(run.stop for number in range(self.partitions) for run in self.listing.blocks_of(number))
        if not rows:
            return
        nodes, sample = self._sample(rows)
        stage = self.stage
        centroids = fit_centroids(sample, self._wanted(rows), stage.random_state, stage.max_iter, stage.tol)
        self.cells, self.queries = len(centroids), nodes[:QUERIES]
        self._loaded = None
        dim = sample.shape[1]
        basis = principal_directions(sample, dim // SHARE if dim > SHORT else 0, stage.random_state)
        data = BytesIO()
        np.save(data, np.concatenate([centroids, sample[:QUERIES], basis]))
        with self.target.create(self.target.file(self._file)) as file:
            file.write(data.getvalue())

    def _wanted(self, rows: int) -> int:
        wanted = self.stage.n_clusters
        if not isinstance(wanted, int):
            wanted = int(min(rows / CLUSTER_ROWS, sqrt(rows)))
        return min(max(wanted, 1), rows)

    def _sample(self, rows: int) -> tuple[Numbers, Numbers]:
        """A random sample of rows. Partitions are by hash, so the first ones are a sample already."""
        nodes, parts, dim, held = [], [], 0, 0
        for number in range(self.partitions):
            for table in self.listing.tables(number):
                dim = dim or len(table[VECTOR][0].as_py()) // 4
                nodes.append(numbers(table[NODE], np.int64))
                parts.append(matrix_of(table[VECTOR], dim))
                held += table.num_rows
            if dim and held >= self._sample_rows(rows, dim):
                break
        found = np.concatenate(nodes)
        order = np.argsort(reference.scramble(found.view(np.uint64)), kind="stable")[: self._sample_rows(rows, dim)]
        return found[order], np.concatenate(parts)[order]

    def _sample_rows(self, rows: int, dim: int) -> int:
        most = sort_memory_bytes(self.stage.memory_gb) // (4 * dim)
        return min(rows, max(PER_CLUSTER * self._wanted(rows), SAMPLE_ROWS), max(most, 1))

    def load(self) -> CellPlan:
        """The cell plan, read by each worker once."""
        if self._loaded is None:
            with self.target.open(self.target.file(self._file)) as file:
                found = np.load(BytesIO(file.read()), allow_pickle=False)
            margin = self.stage.border * sqrt(2 * self.stage.eps) / 2
            centroids, queries, basis = np.split(found, [self.cells, self.cells + len(self.queries)])
            self._loaded = CellPlan(CentroidCells(centroids, margin, self.stage.n_probe), self.queries, queries, basis)
        return self._loaded
