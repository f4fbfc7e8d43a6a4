"""The page that shows how good a classifier is: precision and recall, confusions, texts at the threshold.

Self-contained: no script, no file beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gristmill.models.text.classifier_metrics import CurvePoint
    from gristmill.text.classifiers.train_classifier import Evaluation

MOST_POINTS = 400
MOST_CHARS = 400
_WIDTH, _HEIGHT, _EDGE = 560, 300, 36
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2327; --quiet: #5b666e; --line: #cfcbc0; --curve: #2f7d5b;
  --limit: #c9762b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e6e1; --quiet: #a3abb1; --line: #343b40; --curve: #4fae85; } }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 4rem; font: 16px/1.5 system-ui, sans-serif;
  color: var(--ink); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } .quiet { color: var(--quiet); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .3rem .7rem; text-align: left;
  border-bottom: 1px solid var(--line); vertical-align: top; } td.n { text-align: right; }
svg { max-width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--quiet); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
"""


def write_page(path: Path, kind: str, evaluation: Evaluation) -> None:
    figures = evaluation.figures
    rows = [
        ("texts for training", f"{figures.train:,}"),
        ("texts for the threshold", f"{figures.choose:,}"),
        ("texts for the test", f"{figures.test:,}"),
        ("left out: repeated", f"{figures.repeated:,}"),
        ("left out: nearly the same as one of another part", f"{figures.near:,}"),
        ("accuracy", f"{figures.accuracy:.4f}"),
        (f"average precision of {figures.label}", f"{figures.average_precision:.4f}"),
        ("error of calibration", f"{figures.calibration_error:.4f}"),
        ("threshold", f"{figures.threshold:.4g}"),
        ("precision there", f"{figures.precision:.4f}"),
        ("recall there", f"{figures.recall:.4f}"),
        ("share of texts kept", f"{figures.kept:.2%}"),
    ]
    wish = f"The threshold was chosen for a precision of {figures.wished_precision:g}."
    if not figures.reached:
        wish = f"No threshold reached a precision of {figures.wished_precision:g}: the one with the highest was taken."
    unseen = "All figures are of texts that neither training nor the choice of the threshold has seen."
    parts = [
        f"<h1>Classifier of {escape(figures.label)} ({escape(kind)})</h1>",
        f"<p class=quiet>{escape(wish)} {unseen}</p>",
        _table(["", ""], rows),
        "<h2>Precision and recall</h2>",
        _curve(evaluation.points, figures.recall, figures.precision),
        "<h2>At other thresholds</h2>",
        _table(["threshold", "precision", "recall", "kept"], _some_points(evaluation.points)),
        "<h2>Confusions</h2><p class=quiet>Rows: the label. Columns: what the classifier finds most likely.</p>",
        _table(["", *evaluation.labels], _confusion_rows(evaluation)),
        "<h2>Texts at the threshold</h2>",
        _table(["score", "label", "text"], _examples(evaluation)),
    ]
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    path.write_text(f"{head}<title>Classifier</title><style>{_STYLE}</style>{''.join(parts)}</html>\n", "utf-8")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = f"<tr>{''.join(f'<th>{escape(cell)}' for cell in head)}" if any(head) else ""
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}" for row in rows)
    return f"<table>{top}{body}</table>"


def _cell(text: str) -> str:
    number = text.replace(",", "").rstrip("%").replace(".", "", 1).isdigit()
    return f"<td class=n>{escape(text)}" if number else f"<td><pre>{escape(text)}</pre>"


def _some_points(points: Sequence[CurvePoint]) -> list[list[str]]:
    """Where recall passes each tenth."""
    chosen = []
    for tenth in range(1, 11):
        point = next((one for one in points if one.recall >= tenth / 10), None)
        if point and point not in chosen:
            chosen.append(point)
    return [[f"{one.threshold:.4g}", f"{one.precision:.4f}", f"{one.recall:.4f}", f"{one.kept:.2%}"] for one in chosen]


def _confusion_rows(evaluation: Evaluation) -> list[list[str]]:
    pairs = zip(evaluation.labels, evaluation.confusions, strict=True)
    return [[label, *(f"{count:,}" for count in row)] for label, row in pairs]


def _examples(evaluation: Evaluation) -> list[list[str]]:
    return [[f"{score:.4f}", label, text[:MOST_CHARS]] for text, label, score in evaluation.examples]


def _curve(points: Sequence[CurvePoint], recall: float, precision: float) -> str:
    step = max(1, len(points) // MOST_POINTS)
    line = " ".join(f"{_x(one.recall):.1f},{_y(one.precision):.1f}" for one in [*points[::step], points[-1]])
    grid = "".join(
        f'<line x1="{_x(0)}" x2="{_x(1)}" y1="{_y(tenth):.1f}" y2="{_y(tenth):.1f}" stroke="var(--line)"/>'
        f'<text x="4" y="{_y(tenth) + 4:.1f}">{tenth:g}</text>'
        f'<text x="{_x(tenth) - 8:.1f}" y="{_HEIGHT - 12}">{tenth:g}</text>'
        for tenth in (0, 0.25, 0.5, 0.75, 1)
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Precision by recall">{grid}'
        f'<polyline fill="none" stroke="var(--curve)" stroke-width="2" points="{line}"/>'
        f'<circle cx="{_x(recall):.1f}" cy="{_y(precision):.1f}" r="5" fill="var(--limit)"/>'
        f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT}">recall</text></svg>'
    )


def _x(share: float) -> float:
    return _EDGE + share * (_WIDTH - 2 * _EDGE)


def _y(share: float) -> float:
    return _HEIGHT - _EDGE - share * (_HEIGHT - 2 * _EDGE)
