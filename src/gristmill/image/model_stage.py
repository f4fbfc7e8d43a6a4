"""What stages with a model share: where the model is, where it runs, and pictures in batches for it.

Pictures are decoded, made ready and given to the model a few at a time, so what a stage holds of them does not grow
with the batch. They are taken from the rows of all tasks that the stage was given, whatever task they belong to; what a
picture gives does not depend on which others were with it (`models/fixed_shape_batches.py`).

What is given up: pixels that this stage has decoded are not kept for the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from gristmill.core.batch import ImageBatch
from gristmill.core.errors import ContractError, InputError
from gristmill.core.resources import Resources
from gristmill.core.stage import ProcessingStage
from gristmill.image.decode import IMAGE, PIXELS, decode, image_bytes, set_aside_bad_images
from gristmill.image.formats import BadImage
from gristmill.models.fixed_shape_batches import CPU_ROWS, prefetch_rows, run_in_batches
from gristmill.models.image_preprocess import Preprocess
from gristmill.models.model import ENGINES, Array, Device, Model, load_model
from gristmill.models.model_files import CLIP, Wanted

if TYPE_CHECKING:
    from gristmill.core.stage import Columns, NodeInfo, WorkerMetadata

EMBEDDING = "image_embedding"
GPU_TASKS = 4
"""Tasks that are worked on together on a GPU, so that its batches are full."""


class ImageModelStage(ProcessingStage[ImageBatch, ImageBatch]):
    """A stage that shows pictures to a model."""

    takes_empty = True
    not_identity: ClassVar[tuple[str, ...]] = ("num_gpus_per_worker", "verbose")
    default_model: ClassVar[str] = CLIP
    """What is fetched when the directory is empty."""

    def __init__(
        self,
        model_dir: str | Path,
        num_gpus_per_worker: float,
        model_inference_batch_size: int,
        verbose: bool,
        engine: str,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if model_inference_batch_size < 1:
            raise ValueError(f"{name}: model_inference_batch_size is {model_inference_batch_size}, must be 1 or more")
        if engine not in ENGINES:
            raise ValueError(f"{name}: engine is {engine!r}, must be one of {', '.join(ENGINES)}")
        self.model_dir, self.num_gpus_per_worker = str(model_dir), num_gpus_per_worker
        self.model_inference_batch_size, self.verbose, self.engine = model_inference_batch_size, verbose, engine
        self.resources = Resources(cpus=1.0, gpus=num_gpus_per_worker, or_cpu=True)
        self.batch_size = GPU_TASKS if num_gpus_per_worker else 1

    def with_(self, **settings: Any) -> Self:
        other = super().with_(**settings)
        if "batch_size" not in settings and not other.resources.requires_gpu:
            other.batch_size = 1  # on a CPU larger batches gain nothing, and tasks are better shared out
        return other

    def wanted(self) -> Wanted:
        return Wanted(self.model_dir, self.default_model, self.name)

    def check(self) -> None:
        self.wanted().check()

    def setup_on_node(self, node_info: NodeInfo, worker_metadata: WorkerMetadata) -> None:
        self.wanted().fetch()

    def setup(self, worker_metadata: WorkerMetadata) -> None:
        self._find_device(worker_metadata)
        self._load(self.wanted().fetch())

    def _find_device(self, worker_metadata: WorkerMetadata) -> None:
        self._device = Device(bool(worker_metadata.gpus), max(1, int(self.resources.cpus)))

    def teardown(self) -> None:
        for name in ("_image_model", "_text", "_head"):
            vars(self).pop(name, None)

    def _load(self, place: Path) -> None:
        """Called once in each worker, with the directory of the model."""
        self._image_model = ImageModel(load_model(place, device=self._device, engine=self.engine), place)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [IMAGE]

    def rows_per_call(self) -> int:
        """The rows of a batch for the model: always as many, so that every picture is computed in the same way."""
        most = self.model_inference_batch_size
        return most if self._device.gpu else min(most, CPU_ROWS)

    def see(self, batches: Sequence[ImageBatch]) -> tuple[Array, list[list[bool]]]:
        """What the model gives for the pictures of all batches, those that can be decoded; and which those are."""
        good: list[list[bool]] = []
        ready = self._prepared_images(batches, good)
        rows = prefetch_rows(ready, 2 * self.rows_per_call()) if self._device.gpu else ready
        found = run_in_batches(self._image_model, rows, self.rows_per_call())
        return np.stack(found).astype(np.float32, copy=False) if found else np.zeros((0, 0), np.float32), good

    def _prepared_images(self, batches: Sequence[ImageBatch], good: list[list[bool]]) -> Iterator[Array]:
        """Pictures as the model takes them. What cannot be decoded is set aside."""
        for batch in batches:
            results: list[Any] = []
            for source in _pixels_or_bytes(batch):
                try:
                    pixels = source if isinstance(source, np.ndarray) else decode(b"" if source is None else source)
                except BadImage as error:
                    results.append(error)
                    continue
                results.append(True)
                yield self._image_model.prepare(pixels)
            good.append([found is not None for found in set_aside_bad_images(batch, results, self)])


class ImageModel:
    """A model of pictures with what is done to them before, as something that takes pictures and gives rows."""

    def __init__(self, model: Model, place: Path) -> None:
        if len(model.inputs) != 1 or len(model.inputs[0].shape) != 4:
            takes = ", ".join(f"{one.name} {one.shape}" for one in model.inputs)
            raise InputError(f"the model in {place} takes {takes}, and not pictures alone: give one that does")
        self.model, self.input = model, model.inputs[0]
        self.output = "image_embeds" if "image_embeds" in model.outputs else model.outputs[0]
        self.prepare = Preprocess.read(place, self.input)

    def __call__(self, pictures: Array) -> Array:
        return self.model({self.input.name: pictures})[self.output].reshape(len(pictures), -1)

    def width(self) -> int:
        """How many numbers there are for each picture: found by showing it nothing, since not all models say."""
        shape = [size or 224 for size in self.input.shape[1:]]
        return int(self(np.zeros((CPU_ROWS, *shape), self.input.dtype)).shape[1])


def _pixels_or_bytes(batch: ImageBatch) -> Sequence[Any]:
    """The pixels of each row if they are there, or else its bytes."""
    known: list[Any] | None = batch.objects.get(PIXELS)
    if known is None:
        return image_bytes(batch)
    return known if all(one is not None for one in known) or IMAGE not in batch.get_columns() else image_bytes(batch)


def embedding_column(values: Array, present: Sequence[bool], width: int) -> pa.Array:
    """An Arrow column of float32 lists of one length: a row for each that is present, null for others."""
    flat = np.zeros((len(present), width), np.float32)
    if len(values):
        flat[np.array(present, bool)] = values
    numbers = pa.Array.from_buffers(pa.float32(), flat.size, [None, pa.py_buffer(flat)])
    return pa.FixedSizeListArray.from_arrays(numbers, width)


def embedding_matrix(stage: ProcessingStage[Any, Any], column: pa.Array, name: str) -> Array:
    """Rows of a column of embeddings, with zeros where there is none."""
    kind = column.type
    if not pa.types.is_fixed_size_list(kind):
        raise ContractError(
            f"stage {stage.name!r}: column {name!r} holds {kind}, must be lists of one length of float32"
        )
    found = np.zeros((len(column), kind.list_size), np.float32)
    values = column.drop_null().flatten().cast(pa.float32())
    found[np.array(column.is_valid().to_pylist(), bool)] = values.to_numpy().reshape(-1, kind.list_size)
    return found


def split_by_batch(values: Array, good: Sequence[Sequence[bool]]) -> Iterator[Array]:
    """Rows that were computed together, as those of each batch."""
    done = 0
    for flags in good:
        count = sum(flags)
        yield values[done : done + count]
        done += count
