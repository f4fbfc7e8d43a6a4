"""SemanticDeduplicationWorkflow: from files with embeddings to files without semantic duplicates.

It accepts the parameters of NeMo Curator. Those for clustering on GPUs are checked by name only, and have no effect.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, ClassVar

from gristmill.core.executor import Executor
from gristmill.core.task import FileGroupTask
from gristmill.dedup.semantic.ranking_strategy import HARD, RankingStrategy
from gristmill.dedup.semantic.semantic_stage import AUTO, SemanticDeduplicationStage
from gristmill.dedup.workflows.deduplication_workflows import DeduplicationResult, DuplicateFindingWorkflow
from gristmill.io.read.file_listing import Paths

UNUSED = (
    "init", "n_init", "oversampling_factor", "max_samples_per_batch", "fit_data_fraction", "pairwise_batch_size",
    "pairwise_compute_dtype", "kmeans_embedding_output_dtype", "metadata_fields", "clear_output", "verbose",
    "_duplicates_num_row_groups_hint",
)  # fmt: skip
"""Parameters of NeMo Curator that are accepted and have no effect."""


class SemanticDeduplicationWorkflow(DuplicateFindingWorkflow):
    """Finds rows of files whose embeddings are nearly the same; with perform_removal=True, also removes them.

    Rows are compared and chosen as by `SemanticDeduplicationStage`. The input is Parquet or JSON lines with embeddings
    in `embedding_field`. With `cache_path`, a directory, a killed run can be resumed. `read_kwargs`, `write_kwargs` and
    `cache_kwargs` may contain `storage_options`. Without removal, the default as in NeMo Curator, the cluster table is
    written to `clusters` in `output_path`, and the ids of duplicates to `duplicates`, in the column `id`. Parameters of
    NeMo Curator that are not needed, such as `init`, are accepted and ignored.
    """

    ids_directory, ids_column = "duplicates", "id"
    id_generator_file = "semantic_id_generator.json"
    unused: ClassVar[Sequence[str]] = UNUSED
    extend = None

    def __init__(
        self,
        input_path: Paths,
        output_path: str | os.PathLike[str],
        n_clusters: int | str = AUTO,
        cache_path: str | os.PathLike[str] | None = None,
        id_field: str | None = "id",
        embedding_field: str = "embeddings",
        *,
        perform_removal: bool = False,
        eps: float = 0.01,
        which_to_keep: str = HARD,
        distance_metric: str = "cosine",
        ranking_strategy: RankingStrategy | Mapping[str, Any] | None = None,
        greedy: bool = True,
        n_probe: int = 4,
        border: float = 0.25,
        embedding_dim: int | None = None,
        random_state: int = 42,
        max_iter: int = 300,
        tol: float = 1e-4,
        num_partitions: int | None = None,
        memory_gb: float | None = None,
        input_filetype: str | None = None,
        input_file_extensions: Sequence[str] | None = None,
        **more: Any,
    ) -> None:
        """`more`: input_blocksize, output_filetype, output_mode, read_kwargs, write_kwargs, cache_kwargs; and
        ignored ones."""
        super().__init__(
            input_path,
            output_path,
            cache_path,
            input_filetype=input_filetype,
            input_file_extensions=input_file_extensions,
            **more,
        )
        self.n_clusters, self.id_field, self.embedding_field = n_clusters, id_field, embedding_field
        self.perform_removal, self.eps, self.which_to_keep = perform_removal, eps, which_to_keep
        self.distance_metric, self.ranking_strategy, self.greedy = distance_metric, ranking_strategy, greedy
        self.n_probe, self.border, self.embedding_dim = n_probe, border, embedding_dim
        self.random_state, self.max_iter, self.tol = random_state, max_iter, tol
        self.num_partitions, self.memory_gb = num_partitions, memory_gb
        self.stage()  # raises for wrong parameters

    def run(
        self,
        executor: Executor | Sequence[FileGroupTask] | None = None,
        pairwise_executor: Executor | None = None,
        *,
        kmeans_executor: Executor | None = None,
        **settings: Any,
    ) -> DeduplicationResult:
        """As for other workflows. One executor runs all steps: the first that is given."""
        return super().run(executor or kmeans_executor or pairwise_executor, **settings)

    def stage(self) -> SemanticDeduplicationStage:
        names = signature(SemanticDeduplicationStage).parameters
        return SemanticDeduplicationStage(**{name: getattr(self, name) for name in names})
