"""Reporter: watches a run, and writes report.json and report.html when it is over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gristmill.report.facts import Timeline, gather
from gristmill.report.page import page

if TYPE_CHECKING:
    from gristmill.core.executor import Progress
    from gristmill.core.plan import Plan
    from gristmill.core.run import Run
    from gristmill.core.store import Store

PAGE, FACTS = "report.html", "report.json"


class Reporter:
    """Of one run."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._timeline = Timeline()

    def saw(self, progress: Progress) -> None:
        self._timeline.saw(progress)

    def write(self, plan: Plan, run: Run, progress: Progress, error: BaseException | None) -> None:
        facts = gather(plan, run, progress, self._timeline, error)
        self._store.put(FACTS, json.dumps(facts, default=str, indent=1).encode())
        self._store.put(PAGE, page(facts).encode("utf-8", "replace"))
