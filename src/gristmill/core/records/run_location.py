"""Where the records of a run are: beside its output, never in it, so that the folder of an output holds only data.

    out/data            rows, and nothing else
    out/data.run        its manifest, temporary files, and the records of the run, unless that has a `run_dir`

A run with several outputs keeps its records beside the first of them; each output has its own manifest. Where the
records of a run are elsewhere, plan.json beside an output is a link to them.
"""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import PlanError
from gristmill.core.records.run_record_store import RecordStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RECORDS_SUFFIX = ".run"
MANIFEST = "manifest.json"
PLAN = "plan.json"
LINK, BESIDE = "run", "beside"
"""In plan.json: where the records of the run are instead; the directories beside its outputs."""


def records_beside(output: str) -> str:
    """The directory for the records of an output. A symbolic link stands for the directory it points to."""
    url = directory_url(output)
    if "://" not in url:
        path = Path(url)
        url = str(path.resolve() if ".." in path.parts or path.is_symlink() else path)
        if url == path.anchor:
            raise _no_room(url, "the root of the file system")
        return url + RECORDS_SUFFIX
    protocol, _, rest = url.partition("://")
    if protocol == "hf":  # what is beside a folder of a repository is published with it
        raise PlanError(f"cannot write to {url}: write to a directory or a bucket, then `gristmill push` it there")
    if not rest or ("/" not in rest and protocol != "memory"):
        raise _no_room(url, "a whole bucket")
    return url + RECORDS_SUFFIX


def output_of(records: str) -> str | None:
    """The output that a directory of records is beside; None if it is not named like one."""
    url = directory_url(records)
    return url.removesuffix(RECORDS_SUFFIX) if url.endswith(RECORDS_SUFFIX) else None


def directory_url(url: str) -> str:
    """The URL of a directory without a slash at its end; a local path is absolute, since workers may have another
    working directory."""
    if "://" in url and not url.startswith(("file://", "local://")):
        protocol, _, path = url.partition("://")
        return f"{protocol}://{path.rstrip('/')}"
    return str(Path(url.removeprefix("file://").removeprefix("local://")).expanduser().absolute())


def _no_room(url: str, what: str) -> PlanError:
    return PlanError(
        f"cannot write to {url}: it is {what}, and the records of a run are written beside its output. "
        f"Write to a folder in it, such as {url.rstrip('/')}/data"
    )


# -- links -------------------------------------------------------------------------------------------------


def link_to(place: str, other: str) -> str:
    """How records in `place` name the directory `other`: by a relative path if they are neighbours, so that a folder
    with both can be moved."""
    if posixpath.dirname(place) == posixpath.dirname(other) and "://" not in posixpath.basename(other):
        return f"../{posixpath.basename(other)}"
    return other


def _follow(place: str, link: str) -> str:
    return f"{posixpath.dirname(place)}/{link[3:]}" if link.startswith("../") else link


def find_run(where: str, storage_options: Mapping[str, Any] | None = None) -> RecordStore | None:
    """The records of a run, given its directory or one of its outputs; None if there are none."""
    for place in _places(where):
        store = RecordStore(place, storage_options)
        plan = store.read(PLAN)
        if plan is not None and LINK in plan:
            store = RecordStore(_follow(place, plan[LINK]), storage_options)
            plan = store.read(PLAN)
        if plan is not None:
            return store
    return None


def find_outputs(where: str, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """The finished outputs, that is those with a manifest: of the run in a directory, or the one in it."""
    for place in _places(where):
        store = RecordStore(place, storage_options)
        plan = store.read(PLAN) or {}
        if place != where.rstrip("/"):  # beside the output that was given
            beside = [place]
        else:
            beside = [_follow(place, link) for link in plan.get(BESIDE) or ()] or [place]
        done = [one for one in beside if RecordStore(one, storage_options).get(MANIFEST) is not None]
        if outputs := [output for output in map(output_of, done) if output]:
            return outputs
    return []


def _places(where: str) -> list[str]:
    """Where records may be: in this directory, or beside it."""
    here = where.rstrip("/") or "/"
    if "://" not in here and Path(here).is_file():  # an output that is a single file
        return [records_beside(here)]
    try:
        return [here, records_beside(here)]
    except PlanError:
        return [here]


def run_place(where: str, storage_options: Mapping[str, Any] | None = None) -> str:
    """The directory of the run that has written an output; or `where` itself, if it is that, or not known."""
    found = find_run(where, storage_options)
    return found.url if found else where


# -- checks ------------------------------------------------------------------------------------------------


def refuse_records_inside(option: str, place: str | os.PathLike[str], outputs: Iterable[str]) -> None:
    """Raise a PlanError if a directory for records lies in an output, or is one."""
    here = directory_url(os.fspath(place))
    for output in outputs:
        root = directory_url(output)
        if f"{here}/".startswith(f"{root}/"):
            beside = records_beside(root)
            raise PlanError(
                f"{option}={os.fspath(place)!r} lies in the output {output}, which holds only data. "
                f"Choose a directory outside of it, such as {beside}"
            )
