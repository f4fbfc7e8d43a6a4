"""The command `gristmill train-classifier`: from labelled texts to the folder of a classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gristmill.cli.recipe_runner import exit_on_error

MOST_CHARS = 6000
"""How much of a text the language model sees."""


def train_classifier(
    labelled: Annotated[list[str], typer.Argument(metavar="FILE...", help="JSON lines or Parquet with labels.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder of the classifier.")],
    *,
    text: Annotated[str, typer.Option("--text", help="The column with the text.")] = "text",
    label: Annotated[str, typer.Option("--label", help="The column with the label.")] = "label",
    kind: Annotated[str, typer.Option("--kind", help="fasttext, linear or minilm.")] = "fasttext",
    positive: Annotated[str | None, typer.Option("--positive", help="The label that scores are about.")] = None,
    precision: Annotated[float, typer.Option("--precision", help="The precision that the threshold is for.")] = 0.9,
    model: Annotated[str | None, typer.Option("--model", help="What embeds, for linear and minilm.")] = None,
    epoch: Annotated[int, typer.Option("--epoch", help="How often fastText sees each text.")] = 5,
    dim: Annotated[int, typer.Option("--dim", help="The numbers of each row of fastText.")] = 16,
    word_ngrams: Annotated[int, typer.Option("--word-ngrams", help="The words of an n-gram of fastText.")] = 2,
    lr: Annotated[float, typer.Option("--lr", help="The learning rate of fastText.")] = 0.5,
    annotate: Annotated[
        str | None,
        typer.Option("--annotate", metavar="LABELS", help="Have a language model choose one of these, by commas."),
    ] = None,
    endpoint: Annotated[str | None, typer.Option("--endpoint", metavar="URL", help="Its address, to /v1.")] = None,
    llm: Annotated[str, typer.Option("--llm", metavar="NAME", help="The language model that annotates.")] = "",
    question: Annotated[
        str, typer.Option("--question", help="What it is asked about each text.")
    ] = "Which label fits the text best?",
    seed: Annotated[int, typer.Option("--seed", help="Another order of the texts, and other parts.")] = 42,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a classifier that is there already.")] = False,
) -> None:
    """Train a classifier that ClassifierFilter runs; report.html in its folder shows how good it is."""
    with exit_on_error():
        from gristmill.models.text.fasttext_trainer import FastTextSettings
        from gristmill.text.classifiers.train_classifier import check_folder, describe_figures
        from gristmill.text.classifiers.train_classifier import train_classifier as train

        check_folder(output, overwrite)
        if annotate is not None:
            labelled = [_annotated(labelled, output, text, label, annotate.split(","), question, endpoint, llm)]
        settings = FastTextSettings(dim=dim, lr=lr, epoch=epoch, word_ngrams=word_ngrams, seed=seed)
        figures = train(
            labelled, output, text, label, kind, positive=positive, precision=precision, model=model, settings=settings,
            overwrite=overwrite,
        )  # fmt: skip
        for line in describe_figures(figures):
            typer.echo(line)
        typer.echo(f"wrote {output}; how good it is: {output / 'report.html'}")


def _annotated(
    files: list[str],
    output: Path,
    text: str,
    label: str,
    labels: list[str],
    question: str,
    endpoint: str | None,
    llm: str,
) -> str:
    """Have a language model label the texts, beside the folder of the classifier. Answers are kept: a second call asks
    only for what is new."""
    from gristmill import Pipeline
    from gristmill.synthetic import AnnotateStage
    from gristmill.text import JsonlReader, JsonlWriter

    folder = f"{output}-labels"
    stage = AnnotateStage(
        [one.strip() for one in labels],
        {"base_url": endpoint} if endpoint else None,
        llm,
        question,
        input_field=text,
        label_field=label,
        max_chars=MOST_CHARS,
        cache=f"{output}-answers",
    )
    Pipeline("annotate", stages=[JsonlReader(files), stage, JsonlWriter(folder, mode="overwrite")]).run()
    typer.echo(f"labels are in {folder}")
    return folder
