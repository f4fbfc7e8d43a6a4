"""Tasks as code written for NeMo Curator makes them: `DocumentBatch("name", frame, _metadata=..., _stage_perf=...)`.

What is given up: a task class of the user's own that has more positional fields than `data` takes its name by keyword.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any


class TaskType(type):
    """The type of all task classes. Its call also takes the arguments that NeMo Curator's tasks have."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 2 or "_metadata" in kwargs or "_stage_perf" in kwargs:
            args, kwargs = _own_arguments(cls, args, dict(kwargs))
        return super().__call__(*args, **kwargs)

    @property
    def __signature__(cls) -> Any:
        """What `help` shows: the fields of the class, and not the arguments of `__call__`."""
        import inspect

        own = inspect.signature(getattr(cls, "__init__"))  # noqa: B009  mypy: an instance may have another one
        return own.replace(parameters=list(own.parameters.values())[1:])


def _own_arguments(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments as our constructors name them."""
    code = getattr(getattr(cls, "__init__"), "__code__", None)  # noqa: B009  mypy: an instance may have another one
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code else ()
    if "_metadata" in kwargs and "_metadata" not in own:
        kwargs["metadata"] = kwargs.pop("_metadata")
    if "_stage_perf" not in own:  # measured by the run, not by tasks
        kwargs.pop("_stage_perf", None)
    positional = [field.name for field in fields(cls) if field.init and not field.kw_only]
    if len(args) == 2 and isinstance(args[0], str) and positional == ["data"] and "dataset_name" not in kwargs:
        kwargs["dataset_name"], args = args[0], args[1:]
    return args, kwargs


class TaskNames:
    """Members of NeMo Curator's tasks."""

    __slots__ = ()

    @property
    def _metadata(self) -> Any:
        return self.__dict__["metadata"]

    @_metadata.setter
    def _metadata(self, metadata: dict[str, Any]) -> None:
        self.__dict__["metadata"] = metadata

    @property
    def _stage_perf(self) -> list[Any]:
        """Always empty: a run measures its stages itself (`result.summary()`)."""
        return []

    @_stage_perf.setter
    def _stage_perf(self, perf: Any) -> None:
        pass

    def add_stage_perf(self, perf_stats: Any) -> None:
        """No effect: a run measures its stages itself (`result.summary()`)."""

    def validate(self) -> bool:
        """Whether the payload is as it should be. Called by nobody here; constructors check."""
        return True
