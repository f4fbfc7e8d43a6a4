"""Some texts before and after they were rewritten, among the records of a run, for its report.

Which ones is decided by a hash of where they come from, so that they do not depend on workers. Each worker writes its
own file anew when it has found others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.core.records.run_record_store import RecordStore, to_json_line
from gristmill.core.task import digest

FOLDER = "rewritten"
MOST, CHARS = 8, 2_000
"""How many pairs are kept, and how much of each text."""


class BeforeAfterSamples:
    """The samples of one worker."""

    def __init__(self, stage: str, url: str, storage_options: Mapping[str, Any]) -> None:
        self.stage = stage
        self._store = RecordStore(url, storage_options)
        self._name = f"{FOLDER}/{time.time_ns():020}-{os.urandom(4).hex()}.jsonl"
        self._kept: dict[str, dict[str, Any]] = {}

    def add(self, sources: Sequence[str | None], before: Sequence[str | None], after: Sequence[str | None]) -> None:
        """Look at the rows of a batch; those without a text afterwards do not count."""
        known = set(self._kept)
        for source, old, new in zip(sources, before, after, strict=True):
            if new is not None and old is not None:
                key = digest([source or old], 8)
                pair = {"before": _clipped(old), "after": _clipped(new)}
                self._kept[key] = {"key": key, "stage": self.stage, "source": source, **pair}
        self._kept = dict(sorted(self._kept.items())[:MOST])
        if set(self._kept) != known:
            self._store.write_lines(self._name, map(to_json_line, self._kept.values()))


def read_samples(store: RecordStore) -> list[dict[str, Any]]:
    """The samples of a run: of each stage the first ones, by their hashes."""
    by_key = {(line["stage"], line["key"]): line for line in store.lines(FOLDER)}
    stages = dict.fromkeys(stage for stage, _ in by_key)
    found: list[dict[str, Any]] = []
    for stage in stages:
        found += [by_key[key] for key in sorted(by_key) if key[0] == stage][:MOST]
    return found


def _clipped(text: str) -> str:
    return text if len(text) <= CHARS else f"{text[:CHARS]}…"
