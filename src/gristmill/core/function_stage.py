"""Stages made of a function, and what the annotations of a stage's `process` say of its tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_origin, overload

from gristmill.core.deciding_stage import DecidingStage
from gristmill.core.resources import Resources
from gristmill.core.stage import Answer, ProcessingStage, SourceStage, check_settings
from gristmill.core.task import EmptyTask, Task


class FunctionStage(ProcessingStage[Any, Any]):
    """A stage made from a function by `@processing_stage`."""

    def __init__(self, function: Callable[[Any], Answer[Any]]) -> None:
        super().__init__()
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__

    def process(self, task: Any) -> Answer[Any]:
        return self.function(task)

    def __call__(self, task: Any) -> Answer[Any]:
        return self.function(task)


@overload
def processing_stage(function: Callable[[Any], Any], /) -> FunctionStage: ...


@overload
def processing_stage(
    *,
    name: str | None = None,
    resources: Resources | Mapping[str, Any] | None = None,
    batch_size: int | None = None,
) -> Callable[[Callable[[Any], Any]], FunctionStage]: ...


def processing_stage(
    function: Callable[[Any], Any] | None = None,
    /,
    *,
    name: str | None = None,
    resources: Resources | Mapping[str, Any] | None = None,
    batch_size: int | None = None,
) -> FunctionStage | Callable[[Callable[[Any], Any]], FunctionStage]:
    """Make a stage from a function of one task that returns a task, several, or None to drop it."""

    def decorate(function: Callable[[Any], Any]) -> FunctionStage:
        needed = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        if len(needed) != 1:
            raise TypeError(f"@processing_stage: {function.__name__} must take one argument, the task")
        stage = FunctionStage(function)
        if name is not None:
            stage.name = name
        if resources is not None:
            stage.resources = resources if isinstance(resources, Resources) else Resources(**resources)
        if batch_size is not None:
            stage.batch_size = batch_size
        check_settings(stage)
        return stage

    return decorate if function is None else decorate(function)


def task_types(stage: ProcessingStage[Any, Any]) -> tuple[type | None, type | None]:
    """The task types that a stage declares to take and give; None where it does not say."""
    if isinstance(stage, FunctionStage):
        hints = inspect.signature(stage.function, eval_str=False)
        first = next(iter(hints.parameters.values())).annotation
        return _task_type(first), _task_type(hints.return_annotation)
    for owner in type(stage).__mro__:
        for base in getattr(owner, "__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, ProcessingStage):
                args = get_args(base)
                if len(args) == 2:
                    return _task_type(args[0]), _task_type(args[1])
                if len(args) == 1 and issubclass(origin, SourceStage):
                    return EmptyTask, _task_type(args[0])
                if len(args) == 1 and origin is DecidingStage:
                    return _task_type(args[0]), _task_type(args[0])
    return None, None


def _task_type(hint: Any) -> type | None:
    origin = get_origin(hint) or hint
    return origin if isinstance(origin, type) and issubclass(origin, Task) else None
