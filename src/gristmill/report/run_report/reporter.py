"""Observes a run, and writes report.json and report.html when it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gristmill.core.executor import ReportWriter
from gristmill.report.run_report.recording_previews import with_previews
from gristmill.report.run_report.report_html import report_page
from gristmill.report.run_report.report_json import WorkerTimeline, gather_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from gristmill.core.executor import Progress
    from gristmill.core.plan.planner import Plan
    from gristmill.core.records.run_directory import Run
    from gristmill.core.records.run_record_store import RecordStore

REPORT_HTML, REPORT_JSON, RECIPE = "report.html", "report.json", "recipe.yaml"
MAX_PAGE_BYTES = 3_000_000


class RunReporter(ReportWriter):
    """Of one run."""

    def __init__(self, store: RecordStore, recipe: Callable[[Plan], str | None] | None = None) -> None:
        """`recipe` writes a plan as a recipe, for runs whose directory has none."""
        self._store, self._recipe = store, recipe
        self._timeline = WorkerTimeline()

    def update(self, progress: Progress) -> None:
        self._timeline.update(progress)

    def write(self, plan: Plan, run: Run, progress: Progress, error: BaseException | None) -> None:
        facts = gather_facts(plan, run, progress, self._timeline, error)
        if self._store.get(RECIPE) is None and (recipe := self._written_as_recipe(plan, facts)):
            facts["recipe"] = recipe
        self._store.put(REPORT_JSON, json.dumps(facts, default=str, indent=1).encode())
        self._store.put(REPORT_HTML, page_within_limit(with_previews(facts, plan.all_stages)))

    def _written_as_recipe(self, plan: Plan, facts: dict[str, Any]) -> str | None:
        """The pipeline as a recipe: from the report of an earlier attempt if nothing has changed, which is quicker."""
        earlier = self._store.read(REPORT_JSON) or {}
        if earlier.get("recipe") and earlier.get("plan") == facts["plan"]:
            return str(earlier["recipe"])
        return self._recipe(plan) if self._recipe else None


def page_within_limit(facts: dict[str, Any]) -> bytes:
    """The page, with fewer samples of each kind if it would be too large."""
    shown = report_page(facts).encode("utf-8", "replace")
    for most in (6, 3, 1, 0):
        if len(shown) < MAX_PAGE_BYTES:
            break
        stages = [{**stage, "samples": stage.get("samples", [])[:most]} for stage in facts["stages"]]
        facts = {**facts, "stages": stages, "quarantine": facts["quarantine"][:most]}
        shown = report_page(facts).encode("utf-8", "replace")
    return shown
