"""The commands `gristmill llm`: look at prompts, and have requests answered by a batch API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gristmill.cli.recipe_runner import allow_local_modules, exit_on_error
from gristmill.core.errors import PlanError
from gristmill.core.result import count_noun

if TYPE_CHECKING:
    from gristmill.core.pipeline import Pipeline
    from gristmill.core.stage import ProcessingStage
    from gristmill.models.llm.llm_request import LLMRequest

app = typer.Typer(no_args_is_help=True, help="Look at prompts, and have requests answered by a batch API.")
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A YAML file, or the name of a bundled recipe.")]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a variable or parameter.")]


@app.command("prompts")
def prompts(
    recipe: RecipeName,
    settings: Settings = None,
    count: Annotated[int, typer.Option("-n", min=1, help="How many prompts to show of each stage.")] = 10,
) -> None:
    """Show the first prompts as they would be sent. Nothing is sent."""
    with exit_on_error():
        seen: dict[str, int] = {}

        def show(stage: str, request: LLMRequest) -> None:
            seen[stage] = seen.get(stage, 0) + 1
            if seen[stage] <= count:
                typer.echo(_as_text(stage, seen[stage], request))

        pipeline = _dry_pipeline(recipe, settings, show)
        pipeline.preview(count)
        if not seen:
            typer.echo("the first rows lead to no request")


@app.command("export")
def export(
    recipe: RecipeName,
    directory: Annotated[str, typer.Argument(metavar="DIRECTORY", help="Where to write the files.")],
    settings: Settings = None,
) -> None:
    """Write the requests of the first stage that asks a model to files for a batch API. Nothing is sent."""
    from gristmill.executors.local.local_executor import LocalExecutor
    from gristmill.models.llm.offline_batches import BatchRequestFiles

    with exit_on_error():
        files = BatchRequestFiles(directory)
        pipeline = _dry_pipeline(recipe, settings, files, only_first=True)
        try:
            for _ in pipeline.stream(LocalExecutor(num_workers=0)):
                pass
        finally:
            files.close()
        typer.echo(f"{count_noun(files.requests, 'request')} in {count_noun(len(files.files), 'file')} in {directory}")


@app.command("import")
def import_answers(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Result files of a batch API.")],
    answers: Annotated[
        str, typer.Option("--answers", metavar="DIRECTORY", help="The `cache` of the stage, or RUN_DIR/answers.")
    ],
) -> None:
    """Take in the answers of a batch API, so that a run finds them."""
    from gristmill.models.llm.answer_store import AnswerStore
    from gristmill.models.llm.offline_batches import take_in_answers

    with exit_on_error():
        store = AnswerStore(answers)
        taken, problems = take_in_answers(files, store)
        store.close()
        typer.echo(f"{count_noun(taken, 'answer')} in {answers}")
        for problem in problems[:20]:
            typer.echo(problem, err=True)
        if problems:
            typer.echo(f"{count_noun(len(problems), 'line')} without an answer: a run will ask these again", err=True)
            raise typer.Exit(1)


def _dry_pipeline(recipe: str, settings: list[str] | None, recorder: Any, only_first: bool = False) -> Pipeline:
    from gristmill.core.pipeline import Pipeline
    from gristmill.core.plan.planner import decompose
    from gristmill.core.stage_roles import EndpointRole
    from gristmill.recipes import load_recipe, parse_settings

    allow_local_modules()
    pipeline = load_recipe(recipe, parse_settings(settings or [])).build()
    stages: list[ProcessingStage[Any, Any]] = []
    for stage in decompose(pipeline.stages):
        asks = isinstance(stage, EndpointRole)
        stages.append(stage.dry_copy(recorder) if isinstance(stage, EndpointRole) else stage)
        if asks and only_first:
            break
    if not any(isinstance(stage, EndpointRole) for stage in stages):
        raise PlanError(f"no stage of {recipe} asks a language model")
    return Pipeline(pipeline.name, stages=stages)


def _as_text(stage: str, number: int, request: LLMRequest) -> str:
    lines = [f"--- {stage}, prompt {number}, {request.model}, about {request.expected_prompt_tokens:,} tokens"]
    for message in request.messages:
        content = message["content"]
        said = content if isinstance(content, str) else " ".join(f"<{part.get('type')}>" for part in content)
        lines += [f"[{message['role']}]", said, ""]
    return "\n".join(lines)
