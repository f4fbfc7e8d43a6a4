"""Shared by the commands: option types, loading recipes, making executors, running, and exit codes for errors."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from gristmill.core.errors import (
    GristmillError,
    InputError,
    PlanError,
    RecipeError,
    StageError,
    describe_error,
    did_you_mean,
    explain_storage_error,
    printable,
)

if TYPE_CHECKING:
    from gristmill.core.executor import Executor, Observer
    from gristmill.core.pipeline import Pipeline
    from gristmill.core.result import Result
    from gristmill.observe.estimate import Estimate
    from gristmill.observe.events import Events
    from gristmill.recipes import Recipe

ExecutorName = Annotated[str | None, typer.Option("--executor", help="Where to run, for example local.")]
Workers = Annotated[int | None, typer.Option("--workers", min=0, help="How many workers; 0 runs in this process.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show full tracebacks, and the logs of Ray and engines.")
]
AsEvents = Annotated[bool, typer.Option("--json", help="Print events as lines of JSON, the summary last.")]
MetricsPort = Annotated[
    str | None,
    typer.Option("--metrics-port", metavar="[HOST:]PORT", help="Serve metrics for Prometheus while the run lasts."),
]
TracesTo = Annotated[
    str | None,
    typer.Option("--traces", metavar="URL", help="Send spans to this OpenTelemetry collector, by OTLP over HTTP."),
]
WithEstimate = Annotated[
    bool, typer.Option("--estimate", help="First run a sample of a few seconds and estimate time, memory and disk.")
]
OnError = Annotated[
    str,
    typer.Option(
        "--on-error", metavar="quarantine|raise", help="Quarantine records that fail, or stop at the first failure."
    ),
]
MaxErrors = Annotated[
    str,
    typer.Option(
        "--max-errors", metavar="NUMBER|SHARE|none", help="Stop when more records fail, for example 50, 1% or 0.01."
    ),
]

NO_RECIPE = "it was not created by `gristmill run --run-dir`"


def error_options(on_error: str, max_errors: str) -> dict[str, Any]:
    """The options of `Pipeline.run` that say what becomes of records that fail."""
    known = ("quarantine", "raise")
    if on_error not in known:
        raise RecipeError(f"--on-error {on_error}: must be quarantine or raise.{did_you_mean(on_error, known)}")
    return {"on_error": on_error, "max_errors": parse_max_errors(max_errors)}


def parse_max_errors(text: str) -> float | None:
    """`50` records, a share of `1%` or `0.01`, or `none` for no limit."""
    if text.lower() == "none":
        return None
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    share = re.fullmatch(r"([0-9]*\.?[0-9]+)(%?)", text)
    value = float(share[1]) / (100 if share[2] else 1) if share else 2.0
    if value > 1:
        raise RecipeError(
            f"--max-errors {text}: write a number of records such as 50, a share such as 1% or 0.01, or none"
        )
    return value


def load_with_settings(recipe: str, settings: list[str] | None) -> Recipe:
    from gristmill.recipes import load_recipe, parse_settings

    allow_local_modules()
    return load_recipe(recipe, parse_settings(settings or []))


def recipe_of_run(run_dir: str, otherwise: str = NO_RECIPE, settings: list[str] | None = None) -> Recipe:
    """The recipe that a run was started with; `otherwise` says what to do when there is none."""
    from gristmill.core.records.run_record_store import RecordStore

    text = RecordStore(run_dir).get("recipe.yaml")
    if text is None:
        raise InputError(f"{run_dir} has no recipe.yaml: {otherwise}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_bytes(text)
        return load_with_settings(str(path), settings)


def side_output_options(run_dir: str) -> dict[str, Any]:
    """The options of `Pipeline.run` for what a run has kept beside its output: going on, it keeps that too."""
    from gristmill.core.records.run_record_store import RecordStore

    plan = RecordStore(run_dir).read("plan.json") or {}
    places = {"rejected": (plan.get("rejects") or {}).get("place"), "scores": (plan.get("scores") or {}).get("place")}
    return {name: place for name, place in places.items() if place}


def allow_local_modules() -> None:
    """`package.module:ClassName` is looked for in the current directory too, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def make_executor(recipe: Recipe, name: str | None, workers: int | None, verbose: bool = False) -> Executor | None:
    params: dict[str, Any] = {} if workers is None else {"num_workers": workers}
    executor = recipe.executor(name, **params)
    if verbose and executor is not None:
        executor.show_engine_logs()
    return executor


def run_recipe(
    recipe: Recipe,
    executor: Executor | None,
    run_dir: str | None,
    quiet: bool = False,
    as_json: bool = False,
    metrics_port: str | None = None,
    estimate: bool = False,
    shard: str | None = None,
    **options: Any,
) -> Result:
    """Run a recipe and print a summary. `options` are those of `Pipeline.run`, and `traces`."""
    from gristmill.cli import console_output
    from gristmill.cli.print_estimate import print_estimate, print_estimate_accuracy
    from gristmill.core.executor import SilentObserver
    from gristmill.observe import default_progress

    if shard is not None:
        from gristmill.core.records.sharded_run import open_shard

        if estimate:
            raise RecipeError("--estimate tells of the whole input: leave it or --shard out")
        part = open_shard(shard, run_dir)
        run_dir, options = part.directory, {**options, "shard": part}
    if as_json:
        return _run_with_events(recipe, executor, run_dir, metrics_port, estimate, **options)
    estimated = _estimate(recipe, executor, run_dir) if estimate else None
    if estimated and not quiet:
        print_estimate(estimated)
    observer = SilentObserver() if quiet else default_progress()
    result, place = _run(recipe, executor, run_dir, observer, metrics_port, **options)
    if not quiet:
        console_output.print_summary(result, run_dir, place[0] if place else run_dir)
        if estimated:
            print_estimate_accuracy(estimated, result.summary().seconds)
    elif failed := console_output.quarantine_line(result):
        print_error(failed)
    return result


def _estimate(recipe: Recipe, executor: Executor | None, run_dir: str | None) -> Estimate:
    """Estimate the run, and save the estimate beside the report for comparison."""
    from gristmill.cli.print_estimate import make_estimate
    from gristmill.core.records.run_record_store import RecordStore
    from gristmill.observe.estimate import ESTIMATE_FILE

    estimated = make_estimate(recipe, executor)
    place = (run_dir, {}) if run_dir else recipe.build().records_directory()
    if place:
        RecordStore(*place).write(ESTIMATE_FILE, estimated.facts())
    return estimated


def _run_with_events(
    recipe: Recipe,
    executor: Executor | None,
    run_dir: str | None,
    metrics_port: str | None,
    estimate: bool,
    **options: Any,
) -> Result:
    """Run a recipe, with events on standard output and nothing else there."""
    from gristmill.cli import console_output
    from gristmill.observe.events import Events, stdout_for_events

    with stdout_for_events() as write:
        events = Events(write)
        try:
            if estimate:
                events.tell("estimate", **_estimate(recipe, executor, run_dir).facts())
            result, _ = _run(recipe, executor, run_dir, events, metrics_port, **options)
        except BaseException as error:
            _emit_failure(events, error)
            raise
        events.tell("finish", **console_output.summary_json(result, run_dir))
    return result


def _emit_failure(events: Events, error: BaseException) -> None:
    stage = error.stage if isinstance(error, StageError) else None
    known = isinstance(error, GristmillError)
    message = str(error).partition("\n\nTraceback")[0] if known else describe_error(error)
    where = {"stage": stage} if isinstance(stage, str) else {}
    with contextlib.suppress(OSError):  # the reader of the events may have closed the pipe
        events.tell("failed", error=message, type=type(error).__name__, **where)


def _run(
    recipe: Recipe,
    executor: Executor | None,
    run_dir: str | None,
    observer: Observer,
    metrics_port: str | None,
    traces: str | None = None,
    **options: Any,
) -> tuple[Result, tuple[str, Mapping[str, Any]] | None]:
    """What the run gave, and the place beside the output where its records are, if it has no directory."""
    from gristmill.core.records.run_record_store import RecordStore

    pipeline = recipe.build()
    _check_output(recipe, pipeline, bool(options.get("scores") or options.get("rejected")))
    if run_dir:
        RecordStore(run_dir).put("recipe.yaml", recipe.to_yaml().encode())
    place = None if run_dir else pipeline.records_directory()
    if not run_dir and not place and (options.get("scores") or options.get("rejected")):
        raise RecipeError("--scores and --rejected need a directory; this recipe writes no output: add --run-dir")
    if place:  # without a run directory the report lies beside the output
        options = {"report": place[0], "storage_options": place[1], **options}
    try:
        with _terminable(), _with_exporters(observer, metrics_port, traces) as watchers:
            return pipeline.run(executor, run_dir=run_dir, observer=watchers, **options), place
    except KeyboardInterrupt as stop:
        stop.add_note(_how_to_go_on(executor, run_dir))
        raise
    finally:
        if place:
            _save_recipe_beside_output(recipe, place)


def _how_to_go_on(executor: Executor | None, run_dir: str | None) -> str:
    """The command with which an interrupted run goes on."""
    if not run_dir:
        return "Without --run-dir, the next run starts from the beginning"
    options = [] if executor is None else [f" --executor {type(executor).__name__}"]
    if (workers := getattr(executor, "num_workers", None)) is not None:
        options.append(f" --workers {workers}")
    return f"To go on: gristmill resume {shlex.quote(run_dir)}{''.join(options)}"


def _check_output(recipe: Recipe, pipeline: Pipeline, side_outputs: bool) -> None:
    """Refuse a recipe whose rows would go nowhere. A stage of the user may write them itself."""
    from gristmill.core.batch import Batch
    from gristmill.core.function_stage import task_types
    from gristmill.core.plan.planner import decompose
    from gristmill.core.stage_roles import CommitRole

    stages = decompose(pipeline.stages)
    if side_outputs or any(isinstance(stage, CommitRole) for stage in stages):
        return
    gives = task_types(stages[-1])[1]
    if type(stages[-1]).__module__.startswith("gristmill.") and gives is not None and issubclass(gives, Batch):
        raise RecipeError(
            f"{recipe.place} has no writer, so that its rows would be lost: end it with one, such as "
            "`- JsonlWriter: {path: out}`. To look at some rows, use `gristmill preview`"
        )


@contextlib.contextmanager
def _with_exporters(observer: Observer, port: str | None, traces: str | None) -> Iterator[Observer]:
    """The observer, and with it an endpoint for metrics and one that sends spans, if there are to be any."""
    from gristmill.observe import MetricsEndpoint, Several, Traces

    with contextlib.ExitStack() as stack:
        if port is not None:
            host, _, number = port.rpartition(":")
            if not number.isdecimal() or int(number) > 65535:
                raise RecipeError(
                    f"--metrics-port {port}: write a port up to 65535, such as 9464, or an address such as 0.0.0.0:9464"
                )
            endpoint = stack.enter_context(MetricsEndpoint(int(number), *([host] if host else [])))
            observer = Several(observer, endpoint)
        if traces is not None:
            if not traces.startswith(("http://", "https://")):
                raise RecipeError(f"--traces {traces}: write the address of a collector, such as http://localhost:4318")
            observer = Several(observer, stack.enter_context(Traces(traces)))
        yield observer


def _save_recipe_beside_output(recipe: Recipe, place: tuple[str, Mapping[str, Any]]) -> None:
    """Save the recipe beside the output: replaying quarantined records of a run without a run directory needs it."""
    from gristmill.core.records.run_record_store import RecordStore

    with contextlib.suppress(OSError):
        store = RecordStore(*place)
        if store.get("plan.json") is not None:
            store.put("recipe.yaml", recipe.to_yaml().encode())


class _Terminated(KeyboardInterrupt):
    """SIGTERM. A SystemExit would be taken for a failure of a stage."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does: workers are stopped and the terminal is restored."""

    def stop(*_: object) -> NoReturn:
        raise _Terminated

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def exit_on_error(verbose: bool | None = None) -> Iterator[None]:
    """Errors are messages, not tracebacks, unless `verbose`. A command without that option shows those of defects."""
    try:
        with _warnings_as_messages():
            yield
    except GristmillError as error:
        message = str(error)
        if isinstance(error, StageError) and error.details and not verbose:
            message = message.removesuffix(f"\n\n{error.details}") + "\n(-v shows the traceback)"
        print_error(f"error: {with_options(message)}")
        raise typer.Exit(2 if isinstance(error, RecipeError | PlanError) else 1) from None
    except KeyboardInterrupt as error:
        number = signal.SIGTERM if isinstance(error, _Terminated) else signal.SIGINT
        notes = "".join(f". {note}" for note in getattr(error, "__notes__", ()))
        print_error(("terminated" if number == signal.SIGTERM else "interrupted") + notes)
        raise typer.Exit(128 + number) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again at its end
        raise typer.Exit(1) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if verbose is not False:
            raise
        print_error(f"error: {explain_storage_error(error)}\n(-v shows the traceback)")
        raise typer.Exit(1) from None


@contextlib.contextmanager
def _warnings_as_messages() -> Iterator[None]:
    """Warnings of runs are one line, without the place in the code."""
    before = warnings.formatwarning

    def format_warning(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if issubclass(category, RuntimeWarning | UserWarning):
            return f"warning: {printable(str(message))}\n"
        return before(message, category, filename, lineno, line)

    warnings.formatwarning = format_warning
    try:
        yield
    finally:
        warnings.formatwarning = before


def with_options(message: str) -> str:
    """A message with the options of the command line in place of the parameters of `Pipeline.run`."""
    message = re.sub(r"\bmax_errors=(?:\.\.\.|(?=[0-9]))", lambda found: _OPTIONS[found[0]], message)
    return re.sub(r"\brun_dir=\.\.\.|(?<=same )run_dir\b|(?<=its )run_dir\b", "--run-dir", message)


_OPTIONS = {"max_errors=...": "--max-errors", "max_errors=": "--max-errors "}


def print_error(message: str) -> None:
    """A message on standard error. It may hold text from data."""
    safe = "\n".join(printable(line) for line in message.split("\n"))
    head, mark, rest = safe.partition(":")
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    typer.echo(typer.style(head, fg="red", bold=True) + mark + rest if coloured else safe, err=True)
