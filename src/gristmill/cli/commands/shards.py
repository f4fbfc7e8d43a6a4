"""The command `gristmill shards`: which shards of a run are done, and which to start again."""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill.cli.recipe_runner import Quiet, exit_on_error, print_error


def shards(
    run_dir: Annotated[str, typer.Argument(metavar="RUN", help="The directory that all shards were given.")],
    quiet: Quiet = False,
) -> None:
    """Show which shards of a run are done. Exits with 1 if any is not; --quiet prints only their numbers, 3,7."""
    with exit_on_error():
        from gristmill.core.records.sharded_run import DONE, shard_states

        states, problems = shard_states(run_dir)
        left = [(shard, state) for shard, state in states if state != DONE]
        indices = ",".join(str(shard.array_index) for shard, _ in left)
        if quiet and left:
            typer.echo(indices)
        elif not quiet:
            typer.echo(f"{len(states) - len(left)} of {len(states)} shards are done")
            for shard, state in left:
                typer.echo(f"  {shard}  {state}  {shard.directory}")
            if left:
                typer.echo(f"To run those that are left, once none of them runs any more: sbatch --array={indices} ...")
        for problem in problems:
            print_error(f"error: {problem}")
        if left or problems:
            raise typer.Exit(1)
