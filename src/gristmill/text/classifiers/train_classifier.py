"""train_classifier: from labelled texts to the folder of a classifier that `ClassifierFilter` runs.

    fasttext    words and pairs of words; for more than some thousand labels the best and by far the fastest
    linear      a logistic regression on static embeddings; for few labels, or words that were not seen
    minilm      a logistic regression on embeddings of a model; for few labels and meaning, a thousandth of the speed

Texts are divided into parts of 80, 10 and 10 percent: one trains, one calibrates and chooses the threshold, one tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import InputError, PlanError, did_you_mean
from gristmill.models.model_files import Wanted
from gristmill.models.model_loader import Device
from gristmill.models.text.classifier_metrics import (
    Calibration,
    CurvePoint,
    calibration_error,
    confusion,
    precision_recall,
    threshold_for,
)
from gristmill.models.text.fasttext_trainer import FastTextSettings, train_fasttext
from gristmill.models.text.logistic_regression import LogisticRegression
from gristmill.models.text.trained_classifier import (
    DEFAULT_EMBEDDERS,
    DESCRIPTION,
    FASTTEXT,
    FASTTEXT_FILE,
    HEAD_FILE,
    KINDS,
    FastTextScorer,
    HeadScorer,
    TextScorer,
    open_embedder,
    write_description,
    write_head,
)
from gristmill.samples.argument_checks import check_choice, check_ratio
from gristmill.text.classifiers.labelled_texts import (
    CHOOSE,
    TEST,
    TRAIN,
    DividedTexts,
    LabelledTexts,
    divide,
    read_labelled,
)
from gristmill.text.classifiers.training_page import write_page

if TYPE_CHECKING:
    from gristmill.io.read.file_listing import Paths

POSITIVE = ("1", "true", "yes", "good", "hq", "high", "high_quality", "positive", "keep", "clean")
"""What the label that is to be kept is usually called."""

LEAST_ROWS = 20
PAGE = "report.html"


@dataclass(frozen=True)
class TrainedFigures:
    """How good a classifier is on texts that it has not seen."""

    label: str
    threshold: float
    precision: float
    recall: float
    kept: float
    accuracy: float
    average_precision: float
    calibration_error: float
    wished_precision: float
    reached: bool
    """Whether the wished precision was reached where the threshold was chosen."""
    train: int
    choose: int
    test: int
    repeated: int
    near: int


@dataclass(frozen=True)
class Evaluation:
    """What the page shows beside the figures."""

    figures: TrainedFigures
    points: Sequence[CurvePoint]
    labels: Sequence[str]
    confusions: Sequence[Sequence[int]]
    examples: Sequence[tuple[str, str, float]]


def train_classifier(
    paths: Paths,
    output: str | Path,
    text_field: str = "text",
    label_field: str = "label",
    kind: str = FASTTEXT,
    *,
    positive: str | None = None,
    precision: float = 0.9,
    model: str | None = None,
    settings: FastTextSettings | None = None,
    threads: int = 1,
    overwrite: bool = False,
) -> TrainedFigures:
    """Train a classifier on labelled JSON lines or Parquet, and write its folder. Returns how good it is.

    `positive` is the label that scores are about, and `precision` the share of what is kept that must have it: the
    threshold is the lowest that reaches it. `model` is what embeds, for the kinds `linear` and `minilm`. A classifier
    that is in the folder already is replaced only if `overwrite`.
    """
    check_folder(output, overwrite)
    check_choice("train_classifier", "kind", kind, KINDS)
    check_ratio("train_classifier", "precision", precision)
    settings = settings or FastTextSettings()
    divided = divide(read_labelled(paths, text_field, label_field), settings.seed)
    names = _label_names(divided)
    label = _positive(names, positive)
    folder = _empty_folder(output, overwrite)
    embedder = "" if kind == FASTTEXT else model or DEFAULT_EMBEDDERS[kind]
    scorer, files = _train(divided.parts[TRAIN], names, kind, embedder, folder, settings, threads)
    calibration, point = _choose(divided.parts[CHOOSE], scorer, names.index(label), label, precision)
    evaluation = _evaluate(divided, scorer, names, label, calibration, point, precision)
    write_page(folder / PAGE, kind, evaluation)
    content = {
        "kind": kind, "labels": names, "label": label, "threshold": evaluation.figures.threshold,
        "calibration": asdict(calibration), "embedder": embedder, "figures": asdict(evaluation.figures),
        "settings": asdict(settings), "label_counts": dict(Counter(divided.parts[TRAIN].labels)),
    }  # fmt: skip
    write_description(folder, content, files)
    return evaluation.figures


def _label_names(divided: DividedTexts) -> list[str]:
    counts = Counter(label for part in divided.parts.values() for label in part.labels)
    rows = sum(counts.values())
    if len(counts) < 2:
        raise PlanError(f"all texts have the label {next(iter(counts), None)!r}: a classifier needs two or more")
    if rows < LEAST_ROWS or any(len(set(part.labels)) < 2 for part in divided.parts.values()):
        raise PlanError(
            f"{rows} texts are too few, for each part needs two labels: label {', '.join(counts)} more often, at least "
            "some hundred times each"
        )
    return sorted(counts)


def _positive(names: Sequence[str], positive: str | None) -> str:
    if positive is not None:
        if positive not in names:
            hint = did_you_mean(positive, names)
            raise PlanError(f"there is no label {positive!r}.{hint} There are: {', '.join(names)}")
        return positive
    known = {name.casefold().replace(" ", "_"): name for name in names}
    return next((known[name] for name in POSITIVE if name in known), names[-1])


def check_folder(output: str | Path, overwrite: bool = False) -> Path:
    """The folder for a classifier. Raises an InputError if something is there that must stay."""
    folder = Path(output).expanduser()
    is_classifier = (folder / DESCRIPTION).is_file()
    if folder.is_dir() and any(folder.iterdir()) and not is_classifier:
        raise InputError(f"{folder} holds something else than a classifier: give another directory")
    if is_classifier and not overwrite:
        raise InputError(
            f"{folder} holds a classifier already: give another directory, or overwrite it (--overwrite, in Python "
            "overwrite=True)"
        )
    return folder


def _empty_folder(output: str | Path, overwrite: bool) -> Path:
    folder = check_folder(output, overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DESCRIPTION).unlink(missing_ok=True)
    return folder


def _train(
    part: LabelledTexts,
    names: Sequence[str],
    kind: str,
    embedder: str,
    folder: Path,
    settings: FastTextSettings,
    threads: int,
) -> tuple[TextScorer, list[str]]:
    """The classifier, and the files that it has written."""
    if kind == FASTTEXT:
        train_fasttext(part.column(), part.labels, settings).write(folder / FASTTEXT_FILE)
        return FastTextScorer(folder / FASTTEXT_FILE, names), [FASTTEXT_FILE]
    place = Wanted(embedder, purpose="train_classifier").fetch()
    embed = open_embedder(kind, place, Device(threads=threads))
    numbers = {name: number for number, name in enumerate(names)}
    labels = np.array([numbers[label] for label in part.labels])
    head = LogisticRegression.fit(embed(part.column()), labels, len(names))
    write_head(head, folder / HEAD_FILE)
    return HeadScorer(embed, head), [HEAD_FILE]


def _choose(
    part: LabelledTexts, scorer: TextScorer, place: int, label: str, precision: float
) -> tuple[Calibration, CurvePoint | None]:
    """The calibration, and the lowest threshold that reaches the wished precision."""
    raw = scorer(part.column())[:, place]
    hits = np.array([one == label for one in part.labels])
    calibration = Calibration.fit(raw, hits)
    return calibration, threshold_for(precision_recall(calibration(raw), hits), precision)


def _evaluate(
    divided: DividedTexts,
    scorer: TextScorer,
    names: Sequence[str],
    label: str,
    calibration: Calibration,
    chosen: CurvePoint | None,
    precision: float,
) -> Evaluation:
    part = divided.parts[TEST]
    found = scorer(part.column())
    scores = calibration(found[:, names.index(label)])
    hits = np.array([one == label for one in part.labels])
    points = precision_recall(scores, hits)
    best = max(points, key=lambda point: (point.precision, point.recall))
    threshold = chosen.threshold if chosen else best.threshold
    kept = scores >= threshold
    guesses = [names[number] for number in found.argmax(axis=1).tolist()]
    figures = TrainedFigures(
        label=label,
        threshold=threshold,
        precision=float(hits[kept].mean()) if kept.any() else 0.0,
        recall=float(kept[hits].mean()) if hits.any() else 0.0,
        kept=float(kept.mean()),
        accuracy=float(np.mean([one == other for one, other in zip(guesses, part.labels, strict=True)])),
        average_precision=_average_precision(points),
        calibration_error=calibration_error(scores, hits),
        wished_precision=precision,
        reached=chosen is not None,
        train=len(divided.parts[TRAIN]),
        choose=len(divided.parts[CHOOSE]),
        test=len(part),
        repeated=divided.repeated,
        near=divided.near,
    )
    border = np.argsort(np.abs(scores - threshold), kind="stable")[:10].tolist()
    examples = [(part.texts[row], part.labels[row], float(scores[row])) for row in border]
    return Evaluation(figures, points, names, confusion(part.labels, guesses, names), examples)


def _average_precision(points: Sequence[CurvePoint]) -> float:
    recalls = [0.0, *(point.recall for point in points)]
    return sum(point.precision * (point.recall - before) for point, before in zip(points, recalls, strict=False))


def describe_figures(figures: TrainedFigures) -> list[str]:
    """Lines for people."""
    lines = [
        f"trained on {figures.train:,} texts; {figures.choose:,} chose the threshold, {figures.test:,} tested",
        f"left out: {figures.repeated:,} repeated, {figures.near:,} nearly the same as a text of another part",
        f"accuracy {figures.accuracy:.3f}; average precision of {figures.label!r} {figures.average_precision:.3f}",
        f"threshold {figures.threshold:.4g}: precision {figures.precision:.3f}, recall {figures.recall:.3f}",
    ]
    if not figures.reached:
        lines.append(
            f"no threshold reaches a precision of {figures.wished_precision:g}: the one with the highest was taken"
        )
    return lines
