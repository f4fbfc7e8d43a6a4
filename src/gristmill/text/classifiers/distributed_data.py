"""Classifiers with a column for the label and one for its probabilities, and those of NVIDIA of this kind.

    DistributedDataClassifier       the base: any classifier, by its folder or its name on the hub
    QualityClassifier               High, Medium, Low
    DomainClassifier                26 domains of English text
    MultilingualDomainClassifier    the same domains for 52 languages
    ContentTypeClassifier           11 kinds of text: news, reviews, code ...

With `filter_by`, documents with other labels are dropped; reports, what-if and `why` know labels as they know scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.deciding_stage import DecidingStage, Decision, Measures
from gristmill.models.text.classifier_heads import ClassifierHead
from gristmill.models.text.text_encoder import TextEncoder
from gristmill.samples.batch import DocumentBatch
from gristmill.text.classifiers.text_model_stage import INPUT_ID_FIELD, TextModelStage, rows_of_batches, token_column

if TYPE_CHECKING:
    from gristmill.core.stage import Columns
    from gristmill.models.model_loader import Array

PROBABILITIES = pa.list_(pa.float32())


class LabelStage(TextModelStage, DecidingStage[DocumentBatch]):
    """A stage that labels text by a model and keeps the labels in `filter_by`, or all. A subclass writes
    `_label_columns`."""

    label_field: str
    filter_by: Sequence[str] | None
    limit_parameters: ClassVar[tuple[str, ...]] = ("filter_by",)

    _text_encoder: TextEncoder | None = None
    _head: ClassifierHead | None = None

    def _open(self, place: Path) -> None:
        self._head, self._text_encoder = ClassifierHead.read(place), self._encoder(place)

    def teardown(self) -> None:
        self._text_encoder = self._head = None

    def outputs(self) -> tuple[list[str], Columns]:
        tokens = [INPUT_ID_FIELD] if self.keep_tokens else []
        return ["data"], [*self._column_names(), *tokens]

    def decide(self, batch: DocumentBatch) -> Decision:
        return self.decide_batch([batch])[0]

    def decide_batch(self, batches: Sequence[DocumentBatch]) -> list[Decision]:
        encoder = self._text_encoder
        assert encoder is not None, "loaded by setup"
        tokens = self._tokens(encoder, batches)
        values = self._values(encoder, [row for rows in tokens for row in rows])
        split = rows_of_batches(values, [len(rows) for rows in tokens])
        return [self._decision(*pair) for pair in zip(split, tokens, strict=True)]

    def _values(self, encoder: TextEncoder, rows: Sequence[Sequence[int]]) -> list[Array]:
        """What the model says of each row of tokens."""
        assert self._head is not None, "loaded by setup"
        return encoder.reduce_rows(rows, self._head)

    def apply(self, batch: DocumentBatch, decision: Decision) -> DocumentBatch:
        batch = self._without_used_tokens(batch)
        for name, column in decision.columns.items():
            batch = batch.with_column(name, column)
        return batch.keep(decision.keep)

    def thresholds(self) -> dict[str, str]:
        return {} if not self.filter_by else {self.label_field: f"filter_by={list(self.filter_by)!r}"}

    def judge(
        self, scores: Mapping[str, pa.Array], measures: Mapping[str, Measures] | None = None
    ) -> dict[str, pa.Array]:
        """The decisions on labels of an earlier run."""
        return {name: self._kept(column) for name, column in scores.items() if name == self.label_field}

    def _kept(self, labels: pa.Array) -> pa.Array:
        wanted = None if not self.filter_by else set(self.filter_by)
        return make_array([wanted is None or label in wanted for label in labels.to_pylist()], pa.bool_())

    def _decision(self, values: Sequence[Array], tokens: Sequence[Sequence[int]]) -> Decision:
        columns = self._label_columns(values)
        if self.keep_tokens:
            columns[INPUT_ID_FIELD] = token_column(tokens)
        scores = {name: columns[name] for name in self._score_names()}
        return Decision(self._kept(columns[self.label_field]), scores, columns=columns)

    def _score_names(self) -> list[str]:
        """The columns that reports show as scores."""
        return [self.label_field]

    def _column_names(self) -> list[str]:
        """The columns that the stage adds."""
        raise NotImplementedError

    def _label_columns(self, values: Sequence[Array]) -> dict[str, pa.Array]:
        """The columns for some rows, from what the model says of each."""
        raise NotImplementedError


class DistributedDataClassifier(LabelStage):
    """Labels documents by a classifier, and keeps the labels in `filter_by`, or all without it.

    `model_identifier` is a folder (config.json, tokenizer.json, and model.onnx or model.safetensors) or a name on the
    hub, also NAME@REVISION; its architecture is one that has hidden states and a linear head, such as a
    *ForSequenceClassification of BERT, RoBERTa or DeBERTa. `score_field` is a column for the probabilities of all
    labels, in the order of the configuration. The text is cut at `max_chars` for the model only, and stays as it is.
    """

    def __init__(
        self,
        model_identifier: str | Path,
        cache_dir: str | Path | None = None,
        label_field: str = "preds",
        score_field: str | None = None,
        text_field: str = "text",
        filter_by: Sequence[str] | None = None,
        max_chars: int | None = None,
        max_seq_length: int | None = None,
        *,
        padding_side: str = "right",
        sort_by_length: bool = True,
        model_inference_batch_size: int = 256,
        autocast: bool = True,
        keep_tokens: bool = False,
        use_existing_tokens: bool = False,
        engine: str = "auto",
    ) -> None:
        super().__init__(
            model_identifier,
            cache_dir,
            text_field=text_field,
            max_chars=max_chars,
            max_seq_length=max_seq_length,
            padding_side=padding_side,
            sort_by_length=sort_by_length,
            model_inference_batch_size=model_inference_batch_size,
            autocast=autocast,
            keep_tokens=keep_tokens,
            use_existing_tokens=use_existing_tokens,
            engine=engine,
        )
        self.label_field, self.score_field, self.filter_by = label_field, score_field, filter_by

    def _column_names(self) -> list[str]:
        return [self.label_field, *([self.score_field] if self.score_field else [])]

    def _label_columns(self, values: Sequence[Array]) -> dict[str, pa.Array]:
        assert self._head is not None, "loaded by setup"
        names = list(self._head.labels)
        labels = [names[int(np.argmax(row))] if len(names) > 1 else names[0] for row in values]
        columns = {self.label_field: make_array(labels, pa.string())}
        if self.score_field:
            columns[self.score_field] = pa.array([row.tolist() for row in values], PROBABILITIES)
        return columns


NOT_TOXIC, TOXIC_FROM = "not_toxic", 0.5


class PublishedClassifier(DistributedDataClassifier):
    """A classifier whose model is known: a subclass names it, its column and the limits that its publisher uses."""

    is_base: ClassVar[bool] = True
    default_model: ClassVar[str]
    default_label_field: ClassVar[str]
    default_max_chars: ClassVar[int]
    most_tokens: ClassVar[int] = 512

    def __init__(
        self,
        cache_dir: str | Path | None = None,
        label_field: str | None = None,
        score_field: str | None = None,
        text_field: str = "text",
        filter_by: Sequence[str] | None = None,
        max_chars: int | None = None,
        sort_by_length: bool = True,
        model_inference_batch_size: int = 256,
        autocast: bool = True,
        *,
        keep_tokens: bool = False,
        use_existing_tokens: bool = False,
        engine: str = "auto",
        model_identifier: str | Path | None = None,
    ) -> None:
        super().__init__(
            model_identifier or self.default_model,
            cache_dir,
            label_field or self.default_label_field,
            score_field,
            text_field,
            filter_by,
            max_chars or self.default_max_chars,
            self.most_tokens,
            sort_by_length=sort_by_length,
            model_inference_batch_size=model_inference_batch_size,
            autocast=autocast,
            keep_tokens=keep_tokens,
            use_existing_tokens=use_existing_tokens,
            engine=engine,
        )


class QualityClassifier(PublishedClassifier):
    """The quality of English text, High, Medium or Low, by NVIDIA's quality-classifier-deberta.

    The column is `quality_pred`; the model sees the first 6,000 characters. `model_identifier` is another model of this
    kind, or a folder with this one.
    """

    default_model = "nvidia/quality-classifier-deberta"
    default_label_field, default_max_chars, most_tokens = "quality_pred", 6000, 1024


class DomainClassifier(PublishedClassifier):
    """The domain of English text, one of 26 such as Health, News or Sports, by NVIDIA's domain-classifier.

    The column is `domain_pred`; the model sees the first 2,000 characters. `model_identifier` is another model of this
    kind, or a folder with this one.
    """

    default_model = "nvidia/domain-classifier"
    default_label_field, default_max_chars = "domain_pred", 2000


class MultilingualDomainClassifier(PublishedClassifier):
    """The domain of text in 52 languages, by NVIDIA's multilingual-domain-classifier.

    The column is `multilingual_domain_pred`; the model sees the first 2,000 characters. `model_identifier` is another
    model of this kind, or a folder with this one.
    """

    default_model = "nvidia/multilingual-domain-classifier"
    default_label_field, default_max_chars = "multilingual_domain_pred", 2000


class ContentTypeClassifier(PublishedClassifier):
    """The kind of English text, one of 11 such as News or Blogs, by NVIDIA's content-type-classifier-deberta.

    The column is `content_pred`; the model sees the first 6,000 characters. `model_identifier` is another model of this
    kind, or a folder with this one.
    """

    default_model = "nvidia/content-type-classifier-deberta"
    default_label_field, default_max_chars, most_tokens = "content_pred", 6000, 1024


class ToxicityClassifier(PublishedClassifier):
    """The kind of toxicity in English text, or `not_toxic` where no kind has a probability of 0.5, by toxic-bert.

    The column is `toxicity_pred`; `filter_by=["not_toxic"]` drops the rest. `score_field` is a column for the
    probabilities of all kinds. `model_identifier` is another model with several labels at once.
    """

    default_model = "unitary/toxic-bert"
    default_label_field, default_max_chars = "toxicity_pred", 3000

    def _label_columns(self, values: Sequence[Array]) -> dict[str, pa.Array]:
        columns = super()._label_columns(values)
        likely = columns[self.label_field].to_pylist()
        labels = [label if row.max() >= TOXIC_FROM else NOT_TOXIC for label, row in zip(likely, values, strict=True)]
        return {**columns, self.label_field: make_array(labels, pa.string())}
