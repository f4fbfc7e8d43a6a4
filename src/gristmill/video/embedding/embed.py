"""Embeddings: a vector for each clip, such that clips of similar things have similar vectors.

    VideoEmbeddingStage                the mean of the embeddings of its frames, by CLIP or any ONNX model of pictures
    CosmosEmbed1EmbeddingStage         one look at eight frames, by a model of clips whose weights are given
    CosmosEmbed1FrameCreationStage     is there for pipelines that have it before: it decodes nothing

`SemanticDeduplicationStage(embedding_field="video_embedding")` drops clips by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.errors import InputError
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.models.image_preprocess import Preprocess
from gristmill.models.model_loader import ModelInput, load_model
from gristmill.samples.argument_checks import check_choice
from gristmill.samples.model_stages import unit_rows
from gristmill.video.batch import VideoBatch
from gristmill.video.embedding.frame_model_stage import EMBEDDING, FrameModelColumnStage
from gristmill.video.one_pass import Measured

if TYPE_CHECKING:
    from gristmill.models.model_loader import Array, Model

COSMOS_EMBEDDING = "cosmos_embed1_embedding"
VARIANTS = ("224p", "336p", "448p")
CLIP_FRAMES = 8


class VideoEmbeddingStage(FrameModelColumnStage):
    """Adds the embedding of each clip: the mean of those of `target_fps` frames a second, of length 1.

    `model_dir` is as in `ImageEmbeddingStage`. Null is the embedding of a clip without any such frame.
    """

    def __init__(
        self,
        model_dir: str | Path | None = None,
        num_gpus_per_worker: float = 0.25,
        model_inference_batch_size: int = 32,
        target_fps: float = 1.0,
        verbose: bool = False,
        embedding_field: str = EMBEDDING,
        engine: str = "auto",
    ) -> None:
        super().__init__(model_dir, num_gpus_per_worker, model_inference_batch_size, verbose, engine)
        self._set_rate(target_fps)
        self.embedding_field = embedding_field

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.embedding_field]

    def _load(self, folder: Path) -> None:
        model = self._open_model(folder)
        self._sample_model, self._width = model, model.width()

    def process_measured(self, rows: VideoBatch, measured: Sequence[Measured]) -> VideoBatch:
        vectors = [pooled(outputs) for outputs in self._run_frames(measured)]
        return rows.with_column(self.embedding_field, vector_column(vectors, self._width))


def pooled(outputs: Array) -> Array | None:
    """The mean direction of some vectors; None if there is none."""
    if not len(outputs):
        return None
    middle: Array = unit_rows(unit_rows(outputs).mean(axis=0, dtype=np.float64)[None])[0]
    return middle


def vector_column(vectors: Sequence[Array | None], width: int) -> pa.Array:
    """An Arrow column of float32 lists of one length; null where there is no vector."""
    flat = np.zeros((len(vectors), width), np.float32)
    for row, vector in enumerate(vectors):
        if vector is not None:
            flat[row] = vector
    missing = pa.array([vector is None for vector in vectors], pa.bool_())
    numbers = pa.Array.from_buffers(pa.float32(), flat.size, [None, pa.py_buffer(flat)])
    return pa.FixedSizeListArray.from_arrays(numbers, width, mask=missing if len(vectors) else None)


class CosmosEmbed1EmbeddingStage(FrameModelColumnStage):
    """Adds the embedding of each clip by a model that looks at eight of its frames at once, such as Cosmos-Embed1.

    `model_dir` is a directory with the model as ONNX (`model.onnx`, and `preprocessor_config.json`): one input of clips
    with five axes, rows, frames and colours, or rows, colours and frames, then height and width. The frames are spread
    evenly over those at `target_fps`. `gpu_memory_gb` changes nothing.
    """

    not_identity: ClassVar[tuple[str, ...]] = ("gpu_memory_gb", "verbose")

    def __init__(
        self,
        variant: str = "336p",
        texts_to_verify: Sequence[str] | None = None,
        gpu_memory_gb: float = 20,
        verbose: bool = False,
        model_dir: str | Path = "",
        target_fps: float = 2.0,
        embedding_field: str = COSMOS_EMBEDDING,
        engine: str = "auto",
    ) -> None:
        super().__init__(model_dir, 0, 1, verbose, engine)
        check_choice("CosmosEmbed1EmbeddingStage", "variant", variant, VARIANTS)
        if texts_to_verify is not None:
            raise ValueError("CosmosEmbed1EmbeddingStage: texts_to_verify is not supported, must be None")
        if not model_dir:
            raise ValueError(
                "CosmosEmbed1EmbeddingStage: give model_dir=..., a directory with the model as ONNX. Without one, "
                "VideoEmbeddingStage makes embeddings of frames"
            )
        self.variant, self.texts_to_verify, self.gpu_memory_gb = variant, texts_to_verify, gpu_memory_gb
        self.embedding_field, self.model_dir = embedding_field, str(model_dir)
        self._set_rate(target_fps)

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.embedding_field]

    def _load(self, folder: Path) -> None:
        self._clip_model = _ClipModel(load_model(folder, device=self._device, engine=self.engine), folder)

    def teardown(self) -> None:
        self._clip_model = None  # type: ignore[assignment]

    def process_measured(self, rows: VideoBatch, measured: Sequence[Measured]) -> VideoBatch:
        vectors = [self._clip_model.embed(one.series[0].columns["frames"], len(one.series[0].pts)) for one in measured]
        return rows.with_column(self.embedding_field, vector_column(vectors, self._clip_model.width))


class _ClipModel:
    """A model that takes several frames of one clip."""

    def __init__(self, model: Model, folder: Path) -> None:
        if len(model.inputs) != 1 or len(model.inputs[0].shape) != 5:
            takes = ", ".join(f"{one.name} {one.shape}" for one in model.inputs)
            raise InputError(f"the model in {folder} takes {takes}, and not clips: an input with five axes")
        self._model, self._input = model, model.inputs[0]
        shape = self._input.shape
        self._colours_first = shape[1] == 3 and shape[2] != 3
        self._count = (shape[2] if self._colours_first else shape[1]) or CLIP_FRAMES
        size = shape[3], shape[4]
        self._prepare = Preprocess.read(folder, ModelInput("frames", (None, 3, *size), self._input.dtype))
        blank = np.zeros((self._count, size[0] or 224, size[1] or 224, 3), np.uint8)
        self.width = len(self._run([self._prepare(one) for one in blank]))

    def _run(self, frames: Sequence[Array]) -> Array:
        clip = np.stack(frames, axis=1 if self._colours_first else 0)[None]
        output: Array = self._model({self._input.name: clip})[self._model.outputs[0]].reshape(1, -1)
        vector: Array = unit_rows(output)[0]
        return vector

    def embed(self, frames: Array, count: int) -> Array | None:
        if not count:
            return None
        chosen = np.linspace(0, count - 1, self._count).round().astype(int)
        prepared = {at: self._prepare(frames[at]) for at in set(chosen.tolist())}
        return self._run([prepared[at] for at in chosen.tolist()])


class CosmosEmbed1FrameCreationStage(ProcessingStage[VideoBatch, VideoBatch]):
    """Does nothing: `CosmosEmbed1EmbeddingStage` takes its frames from the shared decoding pass."""

    takes_empty = True
    not_identity: ClassVar[tuple[str, ...]] = ("variant", "target_fps", "num_cpus", "verbose")

    def __init__(
        self, variant: str = "336p", target_fps: float = 2.0, num_cpus: int = 3, verbose: bool = False
    ) -> None:
        super().__init__()
        check_choice("CosmosEmbed1FrameCreationStage", "variant", variant, VARIANTS)
        self.variant, self.target_fps, self.num_cpus, self.verbose = variant, target_fps, num_cpus, verbose

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def process(self, task: VideoBatch) -> VideoBatch:
        return task
