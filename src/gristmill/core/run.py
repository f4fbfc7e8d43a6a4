"""Run: the directory of one run, on any fsspec URL. It holds the plan and, at the end, the counts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from gristmill.core.executor import Progress
    from gristmill.core.plan import Plan


class Run:
    """Where a run keeps its records; without a directory it keeps none."""

    def __init__(self, url: str | Path | None = None) -> None:
        self.url = str(url).rstrip("/") if url else None

    @property
    def scratch(self) -> str | None:
        """A local directory for results that do not fit in memory."""
        return self.url if self.url and "://" not in self.url else None

    def begin(self, plan: Plan) -> None:
        self._write(
            "plan.json", {"name": plan.name, "stages": [stage.name for stage in plan.stages], "text": str(plan)}
        )

    def end(self, progress: Progress) -> None:
        stages = [{"name": name, **asdict(stats)} for name, stats in progress.stages]
        self._write("metrics.json", {"seconds": progress.seconds, "stages": stages})

    def _write(self, name: str, content: dict[str, Any]) -> None:
        if self.url is None:
            return
        import fsspec

        system, path = fsspec.core.url_to_fs(self.url)
        system.makedirs(path, exist_ok=True)
        with system.open(f"{path}/{name}", "wb") as file:
            file.write(orjson.dumps(content, option=orjson.OPT_INDENT_2))
