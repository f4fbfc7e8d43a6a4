"""Which additions of an index are a run's own: it is not compared with them, and what it adds takes their place.

    again   made of the same rows, as far as they are compared, of the same files: what the run was compared with then
            it is compared with now, and so it gives the same
    own     made by a run with the same directory, of files that are all there and as they were; there may be more now

A file is as it was if it has the same size and time, or if all that is compared of it is the same. Files that have
other content are new ones, and an addition with another name is another snapshot, whatever it was made of.

What is given up: an addition is replaced as a whole or not at all. If some of its files are as they were and others are
not, the run stops.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gristmill.core.errors import PlanError
from gristmill.core.task import digest
from gristmill.dedup.index import Addition
from gristmill.io.partitions import Listing

_PATH, _STAMP = 16, 24
"""Where the parts of what is told of a file end: its path, its size and time, and then its content."""
_UNKNOWN = "-" * 8


@dataclass(frozen=True)
class Made:
    """What an addition is made of, as far as it can be told again."""

    source: str = ""
    """A hash of all that is compared, and of the names of the files; none if nothing tells."""
    origins: tuple[str, ...] = ()
    """What is told of each file, for a run with a directory."""
    run: str = ""

    @classmethod
    def of(cls, rows: Listing, stamps: Mapping[str, str], run: str) -> Made:
        """`stamps` are the input files, and what changes with each of them, as far as that is known."""
        contents: dict[str, int | None] = {}
        for files, content in zip(rows.origins, rows.contents, strict=True):
            if len(files) == 1:
                contents[files[0]] = content
        stamps = stamps or {path: "" for files in rows.origins for path in files}
        known = [content for content in rows.contents if content is not None]
        where = sorted(stamps) or ([run] if run else [])
        tells = where and len(known) == len(rows.contents)
        source = digest([f"{sum(known) % 2**64:016x}", *where], 16) if tells else ""
        some = [path for path in stamps if contents.get(path) != 0] if run else []  # the others have added nothing
        return cls(source, tuple(sorted(_told(path, stamps[path], contents.get(path)) for path in some)), run)


def _told(path: str, stamp: str, content: int | None) -> str:
    changes = (stamp, "" if content is None else f"{content:016x}")
    return digest([path], 8) + "".join(digest([change], 4) if change else _UNKNOWN for change in changes)


def _is_same(before: str, now: str | None) -> bool:
    if now is None:
        return False
    parts = ((before[start:end], now[start:end]) for start, end in ((_PATH, _STAMP), (_STAMP, None)))
    return any(one == other != _UNKNOWN for one, other in parts)


def is_named(addition: Addition) -> bool:
    """Whether somebody has given it a name."""
    return addition.snapshot != f"v{addition.since}"


def own_additions(
    who: str, made: Made, additions: Sequence[Addition], snapshot: str | None
) -> tuple[list[Addition], bool]:
    """Those that a run, which names what it adds `snapshot`, adds in the place of; and whether it is a run again."""
    mine = [one for one in additions if snapshot in (None, one.snapshot) or not is_named(one)]
    if again := [one for one in mine if made.source and one.source == made.source]:
        return again, True
    now = {told[:_PATH]: told for told in made.origins}
    own, doubtful = [], []
    for one in mine if made.run else ():
        if one.run != made.run or not any(told[:_PATH] in now for told in one.origins):
            continue
        same = [_is_same(told, now.get(told[:_PATH])) for told in one.origins]
        if all(same):
            own.append(one)
        elif snapshot in (None, one.snapshot):  # else it has a name now, and so is another one
            doubtful.append((one, any(same)))
    if not own:
        _tell(who, doubtful)
    return own, False


def _tell(who: str, doubtful: Sequence[tuple[Addition, bool]]) -> None:
    for addition, in_part in doubtful:
        if in_part:
            raise PlanError(
                f"{who}: of the files that this run_dir has added as {addition.snapshot!r}, some are as they were and "
                "others have changed or are gone, and an addition cannot be replaced in part. To add the input as a "
                "snapshot of its own, name it, DedupIndex(..., snapshot='...'), and write to another directory: rows "
                "that were added before are then dropped"
            )
    if doubtful:
        names = ", ".join(repr(addition.snapshot) for addition, _ in doubtful)
        warnings.warn(
            f"{who}: files that this run_dir has added as {names} have other content now. They are taken as a new "
            "snapshot, of which rows that were added before are dropped. To say that it is one, and to be told no "
            "more, name it: DedupIndex(..., snapshot='...')",
            RuntimeWarning,
            stacklevel=2,
        )
