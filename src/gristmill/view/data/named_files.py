"""Which of the files that the ledger of a run names are opened: a directory of records may come from somebody else.

Those in the place that was named, in the folder that the records of the run are in, in the working directory, and in
outputs whose own records lead to this run. All others only when the user says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from gristmill.core.errors import GristmillError
from gristmill.core.records.run_location import BESIDE, PLAN, directory_url, find_run, output_of
from gristmill.core.records.run_record_store import RecordStore


class NamedFiles:
    """The files that may be opened, by their paths. With `follow`, all."""

    def __init__(
        self, place: str, records: RecordStore | None, storage_options: Mapping[str, Any], follow: bool = False
    ) -> None:
        self.follow = follow
        folders = [directory_url(place), os.getcwd()]  # noqa: PTH109
        if records is not None:
            folders += [directory_url(records.url).rpartition("/")[0], *_linked_outputs(records, storage_options)]
        self._folders = {_resolved(folder) for folder in folders}

    def __contains__(self, path: str) -> bool:
        if self.follow:
            return True
        if "::" in path or "\0" in path or ("://" in path and ".." in path.split("/")):
            return False
        found = _resolved(path)
        return any(found == folder or found.startswith(f"{folder.rstrip('/')}/") for folder in self._folders if folder)

    def note(self, count: int) -> str:
        """Why files are not shown."""
        return (
            f"{count:,} files are not shown: they are in other places than this run. View the output itself, or "
            "start with --follow-paths if you trust the run."
            if count
            else ""
        )


def _resolved(path: str) -> str:
    """A path without links; of a URL, nothing is asked. A whole bucket or host is no folder."""
    if "://" not in path or path.startswith(("file://", "local://")):
        return os.path.realpath(directory_url(path))
    scheme, _, rest = path.partition("://")
    return f"{scheme}://{rest.lstrip('/')}" if rest.strip("/") else ""


def _linked_outputs(records: RecordStore, storage_options: Mapping[str, Any]) -> list[str]:
    """The outputs on this machine that say themselves that they are of this run."""
    found = []
    for beside in (records.read(PLAN) or {}).get(BESIDE) or ():
        output = output_of(str(beside)) if "://" not in str(beside) and str(beside).startswith("/") else None
        try:
            run = find_run(output, storage_options) if output else None
        except (GristmillError, OSError):
            continue
        if output and run is not None and _resolved(run.url) == _resolved(records.url):
            found.append(output)
    return found
