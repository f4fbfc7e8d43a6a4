"""Finds the additions of an index that a run has made itself: it is not compared with them, and replaces them.

    repeated   The addition was made of the same content and files, or by the same run with the same output, of files
               that have since been renamed or moved. The run is compared with what it was compared with then, and so
               gives the same result.
    own        The addition was made by a run with the same directory, of files that are all present and unchanged;
               there may be more files now. Or it has the same snapshot name, and some files in common.

A file is unchanged if it has the same size and time, or if all compared content of it is the same. An addition with
another snapshot name is another snapshot, whatever it was made of.

All other runs over files that were added before stop with an error: compared with their own earlier rows, they would
drop them from the output. A run also stops if it has the directory and output of a run that made another addition: that
output would be replaced, while the index still has its rows.

Gives up replacing a part of an addition, or one that was made without a run directory. A run directory with its output
can make only one addition to an index.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

from gristmill.core.errors import PlanError
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.task import digest
from gristmill.dedup.index.dedup_index import IndexAddition, canonical_url
from gristmill.io.exchange.exchange import ShuffleFileListing

_PATH, _STAMP = 16, 24
"""Where the parts of a fingerprint end: the hash of the path, that of size and time, and then that of the content."""
_UNKNOWN = "-" * 8

OriginReader = Callable[[IndexAddition], Sequence[str]]


@fast_dataclass(frozen=True)
class AdditionOrigin:
    """What an addition was made of: fingerprints by which a later run recognises the same input."""

    source: str = ""
    """A hash of all compared content and of the paths of the files; empty if unknown."""
    origins: tuple[str, ...] = ()
    """The fingerprint of each file that has rows to compare."""
    paths: frozenset[str] = frozenset()
    """Hashes of the paths of all files."""
    run: str = ""
    mark: str = ""

    @classmethod
    def of(cls, rows: ShuffleFileListing, stamps: Mapping[str, str], run: str, mark: str) -> AdditionOrigin:
        """`stamps` maps each input file to its size and time, or to an empty text if they are unknown."""
        contents: dict[str, int | None] = {}
        for files, content in zip(rows.origins, rows.contents, strict=True):
            if len(files) == 1:
                contents[files[0]] = content
        stamps = stamps or {path: "" for files in rows.origins for path in files}
        known = [content for content in rows.contents if content is not None]
        where = sorted(stamps) or ([run] if run else [])
        is_known = where and len(known) == len(rows.contents)
        source = digest([f"{sum(known) % 2**64:016x}", *where], 16) if is_known else ""
        prints = {path: _fingerprint(path, stamp, contents.get(path)) for path, stamp in stamps.items()}
        origins = sorted(prints[path] for path in prints if contents.get(path) != 0)  # the others have no rows to add
        return cls(source, tuple(origins), frozenset(one[:_PATH] for one in prints.values()), run, mark)


def _fingerprint(path: str, stamp: str, content: int | None) -> str:
    parts = (stamp, "" if content is None else f"{content:016x}")
    return digest([path], 8) + "".join(digest([part], 4) if part else _UNKNOWN for part in parts)


def _is_same(before: str, now: str | None) -> bool:
    """Whether a file is unchanged, by its fingerprints."""
    if now is None:
        return False
    parts = ((before[start:end], now[start:end]) for start, end in ((_PATH, _STAMP), (_STAMP, None)))
    return any(one == other != _UNKNOWN for one, other in parts)


def _is_less(before: str, now: str | None) -> bool:
    """Whether a file may lack content that it had then."""
    if now is None or _UNKNOWN in (before[_STAMP:], now[_STAMP:]):
        return not _is_same(before, now)
    return before[_STAMP:] != now[_STAMP:]


# -- finding them --------------------------------------------------------------------------------------------


def find_own_additions(
    who: str, origin: AdditionOrigin, additions: Sequence[IndexAddition], snapshot: str | None, origins: OriginReader
) -> tuple[list[IndexAddition], bool]:
    """The additions that a run replaces, and whether it repeats the first of them.

    `snapshot` is the name that the user has given to what the run adds, if any. Raises PlanError if the run would drop
    rows because of its own earlier addition, or replace the output of another one.
    """
    candidates = [one for one in additions if snapshot in (None, one.snapshot) or not one.named]
    files = _RunFiles(origin, origins)
    repeated = [one for one in candidates if files.are_same_files_as(one)]
    own = [one for one in candidates if one not in repeated and files.are_partly_from_run(one, snapshot)]
    repeats = bool(repeated) and not any(one.name in repeated[0].base for one in own)
    replaced = [*repeated, *own] if repeats else [*own, *repeated]
    others = [one for one in candidates if one not in replaced]
    _refuse_name(who, [one for one in others if not files.replaces_output_of(one)], snapshot)
    if snapshot is None and (
        not repeats or repeated[0].named
    ):  # an unnamed repeat may share files with other snapshots
        _refuse_files(who, others, files)
    lost = [one for one in additions if one not in replaced and files.replaces_output_of(one)]
    _refuse_run(who, lost, snapshot, files)
    names = sorted({one.snapshot for one in replaced if one.named})
    if snapshot is None and len(names) > 1:
        raise PlanError(
            f"{who}: files of this input were added as {' and as '.join(map(repr, names))}. Say which of them this run "
            "is: DedupIndex(..., snapshot='...')"
        )
    _warn(who, own, [one for one in additions if one not in replaced], files)
    return replaced, repeats


class _RunFiles:
    """The files of a run, compared with those that additions were made of."""

    def __init__(self, origin: AdditionOrigin, origins: OriginReader) -> None:
        self.origin, self._origins = origin, origins
        self._now = {line[:_PATH]: line for line in origin.origins}

    def are_of_same_run(self, one: IndexAddition) -> bool:
        """Whether an addition was made by a run with the same directory."""
        return bool(self.origin.run and one.run) and canonical_url(one.run) == self.origin.run

    def replaces_output_of(self, one: IndexAddition) -> bool:
        """Whether this run replaces the output of the run that made an addition."""
        return bool(one.mark) and one.mark == self.origin.mark

    def are_same_files_as(self, one: IndexAddition) -> bool:
        """Whether an addition was made of all of them; if by the same run, files may have been renamed since."""
        if self.origin.source and one.source == self.origin.source:
            return True
        if not self.replaces_output_of(one):
            return False
        before, now = (sorted(line[_STAMP:] for line in lines) for lines in (self._origins(one), self.origin.origins))
        return bool(now) and before == now and _UNKNOWN not in now

    def are_partly_from_run(self, one: IndexAddition, snapshot: str | None) -> bool:
        """Whether an addition was made by a run with the same directory, of some of them."""
        if not self.are_of_same_run(one):
            return False
        if one.snapshot == snapshot:
            return self.share_files_with(one) or not (one.origins or self.origin.paths)
        return bool(one.origins) and all(self.unchanged_files(one))

    def share_files_with(self, one: IndexAddition) -> bool:
        return any(line[:_PATH] in self.origin.paths for line in self._origins(one))

    def unchanged_files(self, one: IndexAddition) -> list[bool]:
        """Whether each file of an addition is unchanged."""
        return [_is_same(line, self._now.get(line[:_PATH])) for line in self._origins(one)]

    def lack_rows_of(self, one: IndexAddition) -> bool:
        """Whether content that was compared then may be missing now."""
        return any(_is_less(line, self._now.get(line[:_PATH])) for line in self._origins(one))

    @property
    def are_grouped(self) -> bool:
        """Whether several files were read as one partition, so that the content of each is unknown."""
        return any(line.endswith(_UNKNOWN) for line in self.origin.origins)

    def include_files_beyond(self, one: IndexAddition) -> bool:
        """Whether there are files that an addition was not made of."""
        return bool(self._now.keys() - {line[:_PATH] for line in self._origins(one)})


# -- errors and warnings--------------------------------------------------------------------------------------


def _refuse_name(who: str, others: Sequence[IndexAddition], snapshot: str | None) -> None:
    for one in others:
        if one.snapshot == snapshot:
            raise PlanError(
                f"{who}: it already has a snapshot {snapshot!r}, which was made of other rows{_by(one)}. "
                f"{_how_to_replace(one)} Or give this one another name, and another output directory"
            )


def _refuse_files(who: str, others: Sequence[IndexAddition], files: _RunFiles) -> None:
    for one in others:
        if files.share_files_with(one):
            raise PlanError(
                f"{who}: files of this input were added before, as {one.snapshot!r}{_by(one)}, and "
                f"{_change(one, files)}. {_how_to_replace(one)} To add the input as another snapshot, without the rows "
                "that were added before, name it, DedupIndex(..., snapshot='...'), and give it a run_dir and an output "
                "directory of its own"
            )


def _refuse_run(who: str, others: Sequence[IndexAddition], snapshot: str | None, files: _RunFiles) -> None:
    for one in others:
        what, name = "of other input", "another name, " if one.snapshot == snapshot else ""
        fix = f"Or include the input of {one.snapshot!r} too, at its earlier paths"
        if files.are_grouped:
            fix += "; files that were moved are recognised only if each partition is one file"
        if snapshot not in (None, one.snapshot):
            what, fix = "which is another snapshot", _how_to_replace(one)
        raise PlanError(
            f"{who}: the run in {one.run} has made {one.snapshot!r}, {what}. Continuing would remove its output, while "
            "the index has its rows and drops all copies. No output was changed. Give this run "
            f"{name}another run_dir (the cache_path of a workflow) and another output directory. {fix}"
        )


def _by(one: IndexAddition) -> str:
    return f" by the run in {one.run}" if one.run else ""


def _change(one: IndexAddition, files: _RunFiles) -> str:
    same = files.unchanged_files(one)
    if all(same):
        return (
            "there are more files now"
            if files.include_files_beyond(one)
            else "the rows that the pipeline makes of them have changed"
        )
    if any(same):
        return "some of them are unchanged, while others have changed or are missing"
    return "their content has changed"


def _how_to_replace(one: IndexAddition) -> str:
    if not one.run:
        return (
            "It was added without a run_dir, so no run can replace it: to correct it, rebuild the index with a run_dir."
        )
    return (
        f"To correct it and its output, use its name, DedupIndex(..., snapshot={one.snapshot!r}), and "
        f"run_dir={one.run!r} (the cache_path of a workflow), with all of its files."
    )


def _warn(who: str, own: Sequence[IndexAddition], others: Sequence[IndexAddition], files: _RunFiles) -> None:
    """Warn of additions that lack rows because an addition that they were compared with is replaced."""
    for one in own:
        after = [other.snapshot for other in others if one.name in other.base]
        if after and files.lack_rows_of(one):
            warnings.warn(
                f"{who}: {one.snapshot!r} is replaced, and may have lost rows that later additions were compared with. "
                f"Repeat the runs that added {', '.join(map(repr, after))}, so that they keep rows that are new now",
                RuntimeWarning,
                stacklevel=2,
            )
