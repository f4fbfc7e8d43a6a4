"""What `plan --estimate` and `run --estimate` print before and after a run."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from gristmill.cli.console_output import console

if TYPE_CHECKING:
    from gristmill.core.executor import Executor
    from gristmill.core.stage_roles import EndpointForecast
    from gristmill.observe.estimate import Estimate
    from gristmill.recipes import Recipe


def make_estimate(recipe: Recipe, executor: Executor | None) -> Estimate:
    """From some seconds of the recipe's pipeline, run in this process. The run itself gives the warnings."""
    from gristmill.core.executor import default_executor
    from gristmill.executors.local.local_executor import LocalExecutor
    from gristmill.observe.estimate import estimate

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return estimate(recipe.build(), executor or default_executor(), LocalExecutor(num_workers=0))


def print_estimate(estimate: Estimate) -> None:
    """What each stage will do, and what the whole will take."""
    out = console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("stage", overflow="fold")
    for title in ("rows in", "kept", "CPU", "share"):
        table.add_column(title, justify="right", no_wrap=True)
    for stage in estimate.stages:
        share = stage.seconds / estimate.cpu_seconds if estimate.cpu_seconds else 0.0
        rows = (f"{stage.rows_in:,}" if stage.rows_in else "", f"{stage.kept:,}" if stage.kept else "")
        table.add_row(Text(stage.name), *rows, format_duration(stage.seconds), f"{share:.0%}")
    out.print(table)
    workers = f"{estimate.workers} worker{'' if estimate.workers == 1 else 's'}"
    out.print(f"about {format_duration(estimate.seconds)} with {workers}{_left_out(estimate)}", style="bold")
    out.print(
        f"memory: about {format_bytes(estimate.memory_bytes)}, {format_bytes(estimate.worker_bytes)} for each worker"
    )
    more = ""
    if estimate.temporary_bytes:
        more = f", plus {format_bytes(estimate.temporary_bytes)} of temporary files during the run"
    out.print(f"disk: about {format_bytes(estimate.output_bytes)} of output{more}")
    for name, forecast in estimate.endpoints.items():
        out.print(Text(f"{name}: {describe_forecast(forecast)}"), soft_wrap=True)
    for note in estimate.notes:
        out.print(Text(note, "yellow"), soft_wrap=True)
    sampled = f"{estimate.sampled_share:.2%}" if estimate.sampled_share < 0.1 else f"{estimate.sampled_share:.0%}"
    out.print(f"from {sampled} of {format_bytes(estimate.input_bytes)} of input", style="dim")


def _left_out(estimate: Estimate) -> str:
    """What the time does not include: that of answers is not part of it, known or not."""
    asking = [forecast for forecast in estimate.endpoints.values() if forecast.requests]
    if not asking:
        return ""
    unknown = any(forecast.seconds is None for forecast in asking)
    return ", without the time of answers" + (", which is not known" if unknown else ", see below")


def describe_forecast(forecast: EndpointForecast) -> str:
    """What a stage will ask of a model, in a sentence."""
    limit = "at most " if forecast.at_most else ""
    tokens = f"{forecast.prompt_tokens:,} tokens in, {limit}{forecast.answer_tokens:,} out"
    cost = "not known (no price of the model)" if forecast.cost is None else f"{limit}{forecast.cost:,.2f}"
    time = (
        "not known before there are answers"
        if forecast.seconds is None
        else f"about {format_duration(forecast.seconds)}"
    )
    return f"{forecast.requests:,} requests to {forecast.model}, {tokens}; cost {cost}; time {time}"


def print_estimate_accuracy(estimate: Estimate, seconds: float) -> None:
    """How good the estimate was."""
    estimated = f"{format_duration(estimate.seconds)}{_left_out(estimate).removesuffix(', see below')}"
    console().print(f"estimated {estimated}; took {format_duration(seconds)}", style="dim")


def format_duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `5 h 10 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def format_bytes(nbytes: float) -> str:
    """`12 MB`, `3.4 GB`."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}" if nbytes < 10 * unit else f"{nbytes / unit:,.0f} {name}"
    return f"{nbytes:.0f} bytes"
