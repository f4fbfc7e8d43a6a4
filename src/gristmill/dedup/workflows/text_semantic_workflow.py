"""TextSemanticDeduplicationWorkflow: from files with text to files without semantic duplicates.

Texts are embedded in the same pipeline that compares them: nothing is written in between, and a run that is killed
resumes with the embeddings that were spooled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gristmill.core.batch import Batch
from gristmill.core.executor import Executor, default_text_embedder
from gristmill.core.stage import ProcessingStage
from gristmill.dedup.semantic.ranking_strategy import HARD, RankingStrategy
from gristmill.dedup.semantic.semantic_stage import AUTO
from gristmill.dedup.workflows.semantic_workflow import UNUSED, SemanticDeduplicationWorkflow
from gristmill.io.read.file_listing import Paths

if TYPE_CHECKING:
    from gristmill.core.result import Result
    from gristmill.core.stage import Columns

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


class WithoutEmbeddings(ProcessingStage[Batch, Batch]):
    """Drops the column of embeddings."""

    name = "without_embeddings"
    takes_empty = True

    def __init__(self, embedding_field: str) -> None:
        super().__init__()
        self.embedding_field = embedding_field

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.embedding_field]

    def process(self, task: Batch) -> Batch:
        if self.embedding_field not in task.get_columns():
            return task
        return task.with_data(task.data.drop_columns([self.embedding_field]))


class TextSemanticDeduplicationWorkflow(SemanticDeduplicationWorkflow):
    """Embeds the texts of files, and removes those whose embeddings are nearly the same; or only finds them.

    `model_identifier` is a model for `EmbeddingCreatorStage`, "wordllama" for static embeddings, or a stage that adds
    `embedding_field`. The other parameters are those of `SemanticDeduplicationWorkflow`; unlike there, duplicates are
    removed unless perform_removal=False, and rows need no id. Embeddings are not written, unless `keep_embeddings`.
    Parameters of NeMo Curator for vLLM are accepted and ignored.
    """

    unused: ClassVar[Sequence[str]] = (
        *UNUSED, "embedding_pretokenize", "embedding_vllm_init_kwargs", "use_id_generator", "id_generator_state_file",
        "kmeans_max_iter", "kmeans_tol", "kmeans_random_state", "kmeans_init", "kmeans_n_init",
        "kmeans_oversampling_factor", "kmeans_max_samples_per_batch",
    )  # fmt: skip

    def __init__(
        self,
        input_path: Paths,
        output_path: str | os.PathLike[str],
        cache_path: str | os.PathLike[str] | None = None,
        perform_removal: bool = True,
        text_field: str = "text",
        embedding_field: str = "embeddings",
        model_identifier: str | Path | ProcessingStage[Any, Any] = MINILM,
        embedding_max_chars: int | None = None,
        *,
        model_cache_dir: str | Path | None = None,
        hf_token: str | None = None,
        keep_embeddings: bool = False,
        n_clusters: int | str = AUTO,
        id_field: str | None = None,
        eps: float = 0.01,
        which_to_keep: str = HARD,
        ranking_strategy: RankingStrategy | Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """`more`: the other parameters of `SemanticDeduplicationWorkflow`."""
        super().__init__(
            input_path,
            output_path,
            n_clusters,
            cache_path,
            id_field,
            embedding_field,
            perform_removal=perform_removal,
            eps=eps,
            which_to_keep=which_to_keep,
            ranking_strategy=ranking_strategy,
            **more,
        )
        self.text_field, self.model_identifier, self.hf_token = text_field, model_identifier, hf_token
        self.embedding_max_chars, self.model_cache_dir = embedding_max_chars, model_cache_dir
        self.keep_embeddings = keep_embeddings

    def embedder(self) -> ProcessingStage[Any, Any]:
        """The stage that adds embeddings."""
        if isinstance(self.model_identifier, ProcessingStage):
            return self.model_identifier
        stage: ProcessingStage[Any, Any] = default_text_embedder(
            self.model_identifier,
            text_field=self.text_field,
            embedding_field=self.embedding_field,
            max_chars=self.embedding_max_chars,
            cache_dir=self.model_cache_dir,
            hf_token=self.hf_token,
        )
        return stage

    def run_stages(self, stages: Sequence[Any], executor: Executor | None, settings: Mapping[str, Any]) -> Result:
        reader, *rest = stages
        if self.perform_removal and not self.keep_embeddings:
            rest.insert(len(rest) - 1, WithoutEmbeddings(self.embedding_field))
        return super().run_stages([reader, self.embedder(), *rest], executor, settings)
