"""Reporter: watches a run, and writes report.json and report.html when it is over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gristmill.report.attempts import Diary
from gristmill.report.facts import Timeline, gather
from gristmill.report.page import page

if TYPE_CHECKING:
    from gristmill.core.executor import Progress
    from gristmill.core.plan import Plan
    from gristmill.core.run import Run
    from gristmill.core.store import Store

PAGE, FACTS = "report.html", "report.json"
MOST_BYTES = 3_000_000


class Reporter:
    """Of one run."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._timeline = Timeline()
        self._diary = Diary(store)

    def saw(self, progress: Progress) -> None:
        self._timeline.saw(progress)
        self._diary.saw(progress)

    def write(self, plan: Plan, run: Run, progress: Progress, error: BaseException | None) -> None:
        self._diary.write(progress)
        facts = gather(plan, run, progress, self._timeline, error, self._diary.earlier(plan, run))
        self._store.put(FACTS, json.dumps(facts, default=str, indent=1).encode())
        self._store.put(PAGE, small_page(facts))


def small_page(facts: dict[str, Any]) -> bytes:
    """The page, with fewer samples of each kind if it would be too large."""
    shown = page(facts).encode("utf-8", "replace")
    for most in (6, 3, 1, 0):
        if len(shown) < MOST_BYTES:
            break
        stages = [{**stage, "samples": stage.get("samples", [])[:most]} for stage in facts["stages"]]
        facts = {**facts, "stages": stages, "quarantine": facts["quarantine"][:most]}
        shown = page(facts).encode("utf-8", "replace")
    return shown
