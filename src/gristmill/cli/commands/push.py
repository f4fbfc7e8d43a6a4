"""The command `gristmill push`: copy an output, without the records of its run, to another place or to the hub."""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill.cli.recipe_runner import Quiet, Verbose, exit_on_error


def push(
    output: Annotated[
        str, typer.Argument(metavar="OUT", help="The directory of an output, or of the run that wrote it.")
    ],
    target: Annotated[
        str, typer.Argument(help="A directory, a URL such as s3://bucket/data, or hf://datasets/OWNER/NAME.")
    ],
    with_card: Annotated[
        bool, typer.Option("--card/--no-card", help="Write the dataset card of the run as README.md.")
    ] = True,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Copy the files of an output, and nothing else, to another directory, a bucket or the Hugging Face hub."""
    with exit_on_error(verbose):
        from gristmill.core.result import count_noun
        from gristmill.io.storage.output_directory import OutputDirectory
        from gristmill.io.write.push_files import push_files, verified_output
        from gristmill.io.write.push_to_hub import HUB, push_to_hub

        source, entries = verified_output(output)
        card = _card(output) if with_card else None
        sizes = [entry["bytes"] for entry in entries.values()]
        progress = _Progress(len(sizes), sum(sizes), quiet)
        if target.startswith(HUB):
            pushed = push_to_hub(source, entries, target, card, progress)
        else:
            pushed = push_files(source, entries, OutputDirectory(target), card, progress)
        if quiet:
            return
        sentence = f"{count_noun(pushed.copied, 'file')} with {pushed.nbytes:,} bytes copied to {pushed.target}"
        sentence += f", {pushed.kept} were there" if pushed.kept else ""
        sentence += f", {pushed.removed} removed" if pushed.removed else ""
        for line in (*pushed.notes, sentence):
            typer.echo(line)


class _Progress:
    """Prints a line for each file."""

    def __init__(self, files: int, nbytes: int, quiet: bool) -> None:
        self._files, self._bytes, self._quiet = files, nbytes, quiet
        self._done = self._done_bytes = 0

    def __call__(self, name: str, size: int) -> None:
        self._done, self._done_bytes = self._done + 1, self._done_bytes + size
        if not self._quiet:
            share = self._done_bytes / self._bytes if self._bytes else 1.0
            typer.echo(f"{self._done}/{self._files}  {share:4.0%}  {name}", err=True)


def _card(output: str) -> str | None:
    """The dataset card of the run; None if it has no report."""
    from gristmill.core.errors import InputError
    from gristmill.report.run_report.dataset_card import dataset_card_of_run

    try:
        return dataset_card_of_run(output)
    except InputError:
        return None
