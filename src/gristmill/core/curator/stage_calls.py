"""Stages as code written for NeMo Curator calls them: specs for Ray and Xenna, `validate_input`, metrics.

Stage authors need none of this: the planner checks columns before a run, and `count` is what `_log_metric` is for.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.core.stage import ProcessingStage
    from gristmill.core.task import Task

SPECS = ("ray_stage_spec", "xenna_stage_spec")
KEPT_IF_NONE = ("name", "resources", "batch_size")
"""Settings that None means no change for; None is a value of the others."""


_PART_NAMES: Mapping[str, str] = {
    "file_partitioning": "list_files",
    "jsonl_reader": "read_jsonl",
    "parquet_reader": "read_parquet",
    "jsonl_writer": "write_jsonl",
    "parquet_writer": "write_parquet",
}


def own_part_names(changes: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The changes of `with_`, by the names that the parts of a composite have here."""
    known = {old: new for old, new in _PART_NAMES.items() if old not in names and new in names}
    return {known.get(name, name): change for name, change in changes.items()}


class StageCalls:
    """Members of NeMo Curator's stages."""

    _specs: Mapping[str, Mapping[str, Any]] = {}

    def ray_stage_spec(self) -> dict[str, Any]:
        """What `with_` was given. Placement follows `resources` and `num_workers`; this has no effect."""
        return dict(self._specs.get("ray_stage_spec", {}))

    def xenna_stage_spec(self) -> dict[str, Any]:
        """What `with_` was given. Placement follows `resources` and `num_workers`; this has no effect."""
        return dict(self._specs.get("xenna_stage_spec", {}))

    def num_workers_per_node(self) -> float | None:
        """None: `num_workers` is the number for all nodes."""
        return None

    def validate_input(self: Any, task: Task[Any]) -> bool:
        """Whether the task has the attributes and columns of `inputs()`."""
        attributes, columns = self.inputs()
        known = set(task.get_columns()) if hasattr(task, "get_columns") else set()
        missing_columns = [name for name in columns if name not in known and not hasattr(task.data, name)]
        return all(hasattr(task, name) for name in attributes) and not missing_columns

    def get_config(self: Any) -> dict[str, Any]:
        """The settings of the stage."""
        return {name: getattr(self, name) for name in ("name", "resources", "batch_size")}

    def supports_batch_processing(self) -> bool:
        """True: every stage may be given several tasks."""
        return True

    def _log_metric(self: Any, name: str, value: float) -> None:
        """Adds to the counter `name` of the stage, which the summary and the report show."""
        self.count(name, value)

    def _log_metrics(self: Any, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.count(name, value)

    @contextmanager
    def _time_metric(self: Any, name: str) -> Iterator[None]:
        """Adds the seconds that the block takes to the counter `name`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.count(name, time.perf_counter() - began)


def take_specs(stage: ProcessingStage[Any, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """What is left for `with_` to set, after the specs have been noted on the stage."""
    given = {name: dict(settings[name] or {}) for name in SPECS if name in settings}
    if given:
        stage._specs = {
            **stage._specs,
            **{name: {**stage._specs.get(name, {}), **spec} for name, spec in given.items()},
        }
    unchanged = [name for name in KEPT_IF_NONE if name in settings and settings[name] is None]
    return {name: value for name, value in settings.items() if name not in SPECS and name not in unchanged}
