"""Base classes of stages that run a model on decoded samples, and columns of embeddings.

    SampleModelStage      finds and loads the model, chooses the device, gives it samples in batches
    ThresholdScoreStage   scores samples and drops some by the score
    ModelScoreStage       the same, by their embedding
    HeadScoreStage        the same, with a small head on top of the embedding
    LoadsAestheticHead, LoadsUnsafeHead   where the heads for pictures come from

Samples are decoded, prepared and given to the model a few at a time, so the memory of a stage does not grow with the
batch. They are taken from the rows of all tasks that the stage was given; what a sample gives does not depend on which
others were with it (`models/fixed_shape_batches.py`).

What is given up: what is decoded here is not kept for the next stage, and an embedding that is made for a score is made
again by the next stage that needs one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import as_one_array, make_array
from gristmill.core.deciding_stage import DecidingStage, Decision, Measures, Rule
from gristmill.core.errors import ContractError, InputError
from gristmill.core.resources import Resources
from gristmill.core.stage import ProcessingStage
from gristmill.models.fixed_shape_batches import CPU_ROWS, prefetch_rows, run_in_batches
from gristmill.models.model_files import AESTHETIC, Wanted
from gristmill.models.model_loader import ENGINES, Array, Device, onnx_file
from gristmill.models.score_heads import ScoreHead
from gristmill.samples.batch import BadSample, SampleBatch
from gristmill.samples.decode import set_aside_bad_samples

if TYPE_CHECKING:
    from gristmill.core.stage import Columns, NodeInfo, WorkerMetadata

GPU_TASKS = 4
"""Tasks that are processed together on a GPU, so that its batches are full."""

In = TypeVar("In", bound=SampleBatch)
Out = TypeVar("Out", bound=SampleBatch)

EmbeddingRows = tuple["Array", "Array"]
"""An embedding for each row of a batch, and which rows have one."""


class SampleModel(Protocol):
    """A model together with the preparation of its input."""

    def prepare(self, decoded: Any, /) -> Array:
        """One decoded sample as the model takes it."""

    def __call__(self, prepared: Array, /) -> Array:
        """A row of numbers for each of several prepared samples."""

    def width(self) -> int:
        """The length of a row."""


class SampleModelStage(ProcessingStage[In, Out]):
    """A stage that gives samples to a model. A modality sets `kind` and `default_model`, and writes `_open_model` and
    `_decoded_rows`."""

    takes_empty = True
    not_identity: ClassVar[tuple[str, ...]] = ("num_gpus_per_worker", "verbose")
    kind: ClassVar[type[SampleBatch]]
    default_model: ClassVar[str]
    """The model that is fetched when the directory is empty."""

    _device: Device
    _sample_model: SampleModel | None = None

    def __init__(
        self,
        model_dir: str | Path | None,
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
        self.model_dir, self.num_gpus_per_worker = str(model_dir or self.default_model), num_gpus_per_worker
        self.model_inference_batch_size, self.verbose, self.engine = model_inference_batch_size, verbose, engine
        self.resources = Resources(cpus=1.0, gpus=num_gpus_per_worker, or_cpu=True)
        self.batch_size = GPU_TASKS if num_gpus_per_worker else 1

    @abstractmethod
    def _open_model(self, folder: Path) -> SampleModel:
        """The model in a directory."""

    @abstractmethod
    def _decoded_rows(self, batch: In) -> Iterator[Any]:
        """The decoded sample of each row, or a BadSample, one at a time."""

    def with_(self, **settings: Any) -> Self:
        other = super().with_(**settings)
        if "batch_size" not in settings and not other.resources.requires_gpu:
            other.batch_size = 1  # on a CPU larger batches gain nothing, and single tasks balance better
        return other

    def wanted(self) -> Wanted:
        return Wanted(self.model_dir, self.default_model, self.name)

    def check(self) -> None:
        self.wanted().check()

    def setup_on_node(self, node_info: NodeInfo | None = None, worker_metadata: WorkerMetadata | None = None) -> None:
        self.wanted().fetch()

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self._find_device(worker_metadata)
        self._load(self.wanted().fetch())

    def _find_device(self, worker_metadata: WorkerMetadata | None) -> None:
        self._device = Device(bool(worker_metadata and worker_metadata.gpus), max(1, int(self.resources.cpus)))

    def teardown(self) -> None:
        self._sample_model = None

    def _load(self, folder: Path) -> None:
        """Called once in each worker, with the directory of the model."""
        self._sample_model = self._open_model(folder)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.kind.encoded_column]

    def rows_per_call(self) -> int:
        """The rows of a batch for the model: always the same number, so that every sample is computed alike."""
        rows = self.model_inference_batch_size
        return rows if self._device.gpu else min(rows, CPU_ROWS)

    def _run_model(self, batches: Sequence[In]) -> tuple[Array, list[list[bool]]]:
        """The output of the model for all rows that can be decoded, and for each batch which rows those are."""
        assert self._sample_model is not None, "loaded by setup"
        good: list[list[bool]] = []
        prepared = self._prepared(self._sample_model, batches, good)
        rows = prefetch_rows(prepared, 2 * self.rows_per_call()) if self._device.gpu else prepared
        outputs = run_in_batches(self._sample_model, rows, self.rows_per_call())
        return np.stack(outputs).astype(np.float32, copy=False) if outputs else np.zeros((0, 0), np.float32), good

    def _prepared(self, model: SampleModel, batches: Sequence[In], good: list[list[bool]]) -> Iterator[Array]:
        """Samples as the model takes them. Rows that cannot be decoded are set aside."""
        for batch in batches:
            results: list[Any] = []
            for decoded in self._decoded_rows(batch):
                if isinstance(decoded, BadSample):
                    results.append(decoded)
                    continue
                results.append(True)
                yield model.prepare(decoded)
            good.append([result is not None for result in set_aside_bad_samples(batch, results, self)])


class ThresholdScoreStage(DecidingStage[In], SampleModelStage[In, In]):
    """Scores samples with a model and keeps those on one side of a threshold. A subclass writes `decide_batch`.

    A row without a score is dropped.
    """

    score_field: str
    score_threshold: float | None
    limit_parameters: ClassVar[tuple[str, ...]] = ("score_threshold",)
    rule: ClassVar[str] = "min_score"
    """How the threshold is named beside rejected rows: "min_score" is the least score that is kept, "below" the first
    that is not."""

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.score_field]

    def decide(self, batch: In) -> Decision:
        return self.decide_batch([batch])[0]

    def apply(self, batch: In, decision: Decision) -> In:
        return batch.with_column(self.score_field, decision.scores[self.score_field]).keep(decision.keep)

    def rules(self) -> dict[str, Sequence[Rule]]:
        bound, at_least = self.score_threshold, self.rule == "min_score"
        if at_least:
            return {self.score_field: (Rule("", low=bound, low_name=self.rule),)}
        return {self.score_field: (Rule("", high=bound, high_name=self.rule, strict=True),)}

    def judge(
        self, scores: Mapping[str, pa.Array], measures: Mapping[str, Measures] | None = None
    ) -> dict[str, pa.Array]:
        """The decisions on scores of an earlier run."""
        return {label: self._kept(column) for label, column in scores.items() if label == self.score_field}

    def thresholds(self) -> dict[str, str]:
        return {} if self.score_threshold is None else {self.score_field: f"{self.rule}={self.score_threshold!r}"}

    def _kept(self, scores: pa.Array) -> pa.Array:
        at_least = self.rule == "min_score"
        bound = self.score_threshold
        if bound is None:
            return make_array([True] * len(scores), pa.bool_())
        kept = [score is not None and (score >= bound if at_least else score < bound) for score in scores.to_pylist()]
        return make_array(kept, pa.bool_())


class ModelScoreStage(ThresholdScoreStage[In]):
    """Scores samples by their embedding: that in `embedding_field`, or else one that is made here."""

    embedding_field: str

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []  # an embedding or the encoded bytes: which of them is known when rows come

    def decide_batch(self, batches: Sequence[In]) -> list[Decision]:
        embeddings = self._embedding_rows(batches)
        return [self._decision(*pair) for pair in zip(batches, embeddings, strict=True)]

    def _decision(self, batch: In, embeddings: EmbeddingRows) -> Decision:
        values, present = embeddings
        rows = self._rows_to_score(batch, present)
        scores = np.full(len(present), np.nan)
        scores[rows] = self._score(batch, values[rows], rows)
        column = make_array([None if np.isnan(score) else float(score) for score in scores], pa.float64())
        all_scored = present.all() or self._has_embedding(batch)
        aside = None if all_scored else make_array([not one for one in present], pa.bool_())
        return Decision(self._kept(column), {self.score_field: column}, aside=aside)

    # -- embeddings, from their column or from the model -------------------------------------------------------

    def _has_embedding(self, batch: In) -> bool:
        return self.embedding_field in batch.get_columns()

    def _embedding_rows(self, batches: Sequence[In]) -> list[EmbeddingRows]:
        """The embeddings of each batch: those of its column, or else what the model gives."""
        without = [batch for batch in batches if not self._has_embedding(batch)]
        for batch in without:
            self._check_encoded(batch)
        if without and self._sample_model is None:
            self._sample_model = self._open_model(self.wanted().fetch())
        outputs, good = self._run_model(without) if without else (np.zeros((0, 0)), [])
        computed = map(_scatter_rows, split_by_batch(self._from_model_output(outputs), good), good)
        return [self._column(batch) if self._has_embedding(batch) else next(computed) for batch in batches]

    def _check_encoded(self, batch: In) -> None:
        """Raise if a batch without embeddings has nothing to make them of."""
        columns = batch.get_columns()
        if batch.encoded_column not in columns and batch.decoded_objects[0] not in batch.objects:
            raise ContractError(
                f"stage {self.name!r} needs column {self.embedding_field!r} or {batch.encoded_column!r}, and there are "
                f"{', '.join(columns)}: put {self.kind.sample_name.title()}EmbeddingStage before it"
            )

    def _from_model_output(self, outputs: Array) -> Array:
        return unit_rows(outputs)

    def _column(self, batch: In) -> EmbeddingRows:
        column = as_one_array(batch.data.column(self.embedding_field))
        return embedding_matrix(self, column, self.embedding_field), np.array(column.is_valid().to_pylist(), bool)

    def _rows_to_score(self, batch: In, present: Array) -> Array:
        """Which rows get a score."""
        return present

    @abstractmethod
    def _score(self, batch: In, values: Array, rows: Array) -> Array:
        """The scores of some rows of a batch."""


class HeadScoreStage(ModelScoreStage[In]):
    """A stage whose score is computed from the embedding by a small head."""

    _head: ScoreHead | None = None

    def teardown(self) -> None:
        super().teardown()
        self._head = None

    def _score(self, batch: In, values: Array, rows: Array) -> Array:
        head = self._head
        assert head is not None, "loaded by setup"
        if len(values) and values.shape[1] != head.width:
            raise ContractError(
                f"stage {self.name!r}: its head is for embeddings of {head.width} numbers, and those in "
                f"{self.embedding_field!r} have {values.shape[1]}: use the model that the head was made for"
            )
        return head(values)


def head_file(name: str, given: str | None, model_dir: str, patterns: Sequence[str]) -> Path | None:
    """The file of a head: `given`, or the first in the directory that matches a pattern; None if there is none."""
    if given is not None:
        file = Path(given).expanduser()
        if not file.is_file():
            raise InputError(f"{name}: there is no file {given}: give weights_path=... of a .safetensors or .pth file")
        return file
    matches = (file for pattern in patterns for file in sorted(Path(model_dir).expanduser().glob(pattern)))
    return next(matches, None)


class LoadsAestheticHead(SampleModelStage[Any, Any]):
    """LAION's predictor of how pleasing a picture is: `weights_path`, a file in `model_dir`, or fetched once."""

    weights_path: str | None

    def check(self) -> None:
        if self._local_head() is None:
            self.wanted().beside(AESTHETIC).check()

    def setup_on_node(self, node_info: Any = None, worker_metadata: Any = None) -> None:
        if self._local_head() is None:
            self.wanted().beside(AESTHETIC).fetch()

    def _local_head(self) -> Path | None:
        names = ("aesthetic*.safetensors", "aesthetic*.pth", "sac*logos*ava*.pth", "sac*logos*ava*.safetensors")
        return head_file(self.name, self.weights_path, self.model_dir, names)

    def _head_file(self) -> Path:
        return self._local_head() or self.wanted().beside(AESTHETIC).fetch() / "model.safetensors"


class LoadsUnsafeHead(SampleModelStage[Any, Any]):
    """LAION's head for unsafe pictures, or a model of pictures that gives the probability itself."""

    weights_path: str | None

    def check(self) -> None:
        if self._local_head() is None and onnx_file(self.wanted().place(), "vision") is None:
            raise InputError(
                f"{self.name}: {self.model_dir} holds neither a model of images (.onnx) nor a head for CLIP "
                "(*nsfw*.safetensors): use model_dir='open_nsfw', or give weights_path=..., for example of LAION's "
                "CLIP-based-NSFW-Detector"
            )

    def setup_on_node(self, node_info: Any = None, worker_metadata: Any = None) -> None:
        """Nothing is fetched before pictures come."""

    def _local_head(self) -> Path | None:
        names = ("*nsfw*.safetensors", "*nsfw*.pth")
        return head_file(self.name, self.weights_path, self.model_dir, names)

    def _probabilities(self, values: Array) -> Array:
        """Those that a model of pictures gives: the last of its numbers."""
        scores = values[:, -1]
        if len(values) and (values.shape[1] > 2 or scores.min() < 0 or scores.max() > 1 + 1e-6):
            raise ContractError(
                f"stage {self.name!r}: the model gives {values.shape[1]} numbers for each image, from "
                f"{values.min():g} to {values.max():g}, and not a probability: use one that ends in softmax or "
                "sigmoid, with the unsafe class last"
            )
        return np.minimum(scores, 1)


# -- columns of embeddings -----------------------------------------------------------------------------------


def embedding_column(values: Array, present: Sequence[bool], width: int) -> pa.Array:
    """An Arrow column of float32 lists of one length, with zeros for rows that are not present."""
    flat = np.zeros((len(present), width), np.float32)
    if len(values):
        flat[np.array(present, bool)] = values
    numbers = pa.Array.from_buffers(pa.float32(), flat.size, [None, pa.py_buffer(flat)])
    return pa.FixedSizeListArray.from_arrays(numbers, width)


def embedding_matrix(stage: ProcessingStage[Any, Any], column: pa.Array, name: str) -> Array:
    """The rows of a column of embeddings, with zeros for null."""
    kind = column.type
    if not pa.types.is_fixed_size_list(kind):
        raise ContractError(
            f"stage {stage.name!r}: column {name!r} holds {kind}, must be lists of one length of float32"
        )
    matrix = np.zeros((len(column), kind.list_size), np.float32)
    values = column.drop_null().flatten().cast(pa.float32())
    matrix[np.array(column.is_valid().to_pylist(), bool)] = values.to_numpy().reshape(-1, kind.list_size)
    return matrix


def unit_rows(values: Array) -> Array:
    """The rows, each of length 1; a row of zeros stays as it is."""
    length = np.sqrt((values.astype(np.float64) ** 2).sum(axis=1))
    return (values / np.where(length > 0, length, 1.0)[:, None]).astype(np.float32)


def split_by_batch(values: Array, good: Sequence[Sequence[bool]]) -> Iterator[Array]:
    """Rows that were computed together, split into those of each batch."""
    done = 0
    for flags in good:
        count = sum(flags)
        yield values[done : done + count]
        done += count


def _scatter_rows(values: Array, good: Sequence[bool]) -> EmbeddingRows:
    present = np.array(good, bool)
    scattered = np.zeros((len(good), values.shape[1] if values.ndim == 2 else 0), np.float32)
    scattered[present] = values
    return scattered, present
