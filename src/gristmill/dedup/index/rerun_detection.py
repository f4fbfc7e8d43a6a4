"""Which additions of an index are a run's own: it is not compared with them, and what it adds takes their place.

    again   made of the same rows, as far as they are compared, of the same files, or by the same run, with the same
            output, of files that have other names or places now: what the run was compared with then it is compared
            with now, and so it gives the same
    own     made by a run with the same directory, of files that are all there and as they were, and there may be more
            now; or by a run with the same directory that gave the same name to some of these files, as they were then

A file is as it was if it has the same size and time, or if all that is compared of it is the same. An addition with
another name is another snapshot, whatever it was made of. All other runs over files that were added before stop: to be
compared with them would take what was kept then out of the output. So do those that go on with the directory and the
output of a run that has made any other addition: that output would go, while the index has its rows.

What is given up: an addition is replaced as a whole or not at all, and only by a run that has a directory; and such a
directory with its output is for one addition to an index.
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
"""Where the parts of what is told of a file end: its path, its size and time, and then its content."""
_UNKNOWN = "-" * 8

OriginReader = Callable[[IndexAddition], Sequence[str]]


@fast_dataclass(frozen=True)
class AdditionOrigin:
    """What an addition is made of, as far as it can be told again."""

    source: str = ""
    """A hash of all that is compared, and of the names of the files; none if nothing tells."""
    origins: tuple[str, ...] = ()
    """What is told of each file that has rows to compare."""
    paths: frozenset[str] = frozenset()
    """Hashes of the paths of all files."""
    run: str = ""
    mark: str = ""

    @classmethod
    def of(cls, rows: ShuffleFileListing, stamps: Mapping[str, str], run: str, mark: str) -> AdditionOrigin:
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
        told = {path: _told(path, stamp, contents.get(path)) for path, stamp in stamps.items()}
        origins = sorted(told[path] for path in told if contents.get(path) != 0)  # the others have added nothing
        return cls(source, tuple(origins), frozenset(one[:_PATH] for one in told.values()), run, mark)


def _told(path: str, stamp: str, content: int | None) -> str:
    changes = (stamp, "" if content is None else f"{content:016x}")
    return digest([path], 8) + "".join(digest([change], 4) if change else _UNKNOWN for change in changes)


def _is_same(before: str, now: str | None) -> bool:
    if now is None:
        return False
    parts = ((before[start:end], now[start:end]) for start, end in ((_PATH, _STAMP), (_STAMP, None)))
    return any(one == other != _UNKNOWN for one, other in parts)


def _is_less(before: str, now: str | None) -> bool:
    """Whether a file may lack something that was compared then."""
    if now is None or _UNKNOWN in (before[_STAMP:], now[_STAMP:]):
        return not _is_same(before, now)
    return before[_STAMP:] != now[_STAMP:]


# -- which they are ------------------------------------------------------------------------------------------


def find_own_additions(
    who: str, made: AdditionOrigin, additions: Sequence[IndexAddition], snapshot: str | None, origins: OriginReader
) -> tuple[list[IndexAddition], bool]:
    """Those that a run, which names what it adds `snapshot`, adds in the place of; and whether it is a run again: then
    the first is the one that it repeats."""
    mine = [one for one in additions if snapshot in (None, one.snapshot) or not one.named]
    files = _RunFiles(made, origins)
    again = [one for one in mine if files.are_same_files_as(one)]
    own = [one for one in mine if one not in again and files.are_partly_from_run(one, snapshot)]
    repeats = bool(again) and not any(one.name in again[0].base for one in own)
    replaced = [*again, *own] if repeats else [*own, *again]
    others = [one for one in mine if one not in replaced]
    _refuse_name(who, [one for one in others if not files.replaces_output_of(one)], snapshot)
    if snapshot is None and (not repeats or again[0].named):  # which may stand beside others of its files
        _refuse_files(who, others, files)
    gone = [one for one in additions if one not in replaced and files.replaces_output_of(one)]
    _refuse_run(who, gone, snapshot, files)
    names = sorted({one.snapshot for one in replaced if one.named})
    if snapshot is None and len(names) > 1:
        raise PlanError(
            f"{who}: files of this input were added as {' and as '.join(map(repr, names))}. Name the one that this run "
            "is: DedupIndex(..., snapshot='...')"
        )
    _warn(who, own, [one for one in additions if one not in replaced], files)
    return replaced, repeats


class _RunFiles:
    """The files of a run, beside those that additions were made of."""

    def __init__(self, made: AdditionOrigin, origins: OriginReader) -> None:
        self.made, self._origins = made, origins
        self._now = {told[:_PATH]: told for told in made.origins}

    def are_of_same_run(self, one: IndexAddition) -> bool:
        """Whether an addition was made by a run with the same directory."""
        return bool(self.made.run and one.run) and canonical_url(one.run) == self.made.run

    def replaces_output_of(self, one: IndexAddition) -> bool:
        """Whether what was written for an addition is removed when these are written."""
        return bool(one.mark) and one.mark == self.made.mark

    def are_same_files_as(self, one: IndexAddition) -> bool:
        """Whether an addition was made of all of them, whatever they were called when the same run made it."""
        if self.made.source and one.source == self.made.source:
            return True
        if not self.replaces_output_of(one):
            return False
        before, now = (sorted(told[_STAMP:] for told in some) for some in (self._origins(one), self.made.origins))
        return bool(now) and before == now and _UNKNOWN not in now

    def are_partly_from_run(self, one: IndexAddition, snapshot: str | None) -> bool:
        """Whether an addition was made by a run with the same directory, of some of them."""
        if not self.are_of_same_run(one):
            return False
        if one.snapshot == snapshot:
            return self.share_files_with(one) or not (one.origins or self.made.paths)
        return bool(one.origins) and all(self.unchanged_files(one))

    def share_files_with(self, one: IndexAddition) -> bool:
        return any(told[:_PATH] in self.made.paths for told in self._origins(one))

    def unchanged_files(self, one: IndexAddition) -> list[bool]:
        """For each file of an addition, whether it is as it was."""
        return [_is_same(told, self._now.get(told[:_PATH])) for told in self._origins(one)]

    def lack_rows_of(self, one: IndexAddition) -> bool:
        """Whether something that was compared then may not be there any more."""
        return any(_is_less(told, self._now.get(told[:_PATH])) for told in self._origins(one))

    @property
    def are_grouped(self) -> bool:
        return any(told.endswith(_UNKNOWN) for told in self.made.origins)

    def include_files_beyond(self, one: IndexAddition) -> bool:
        """Whether there are files that an addition was not made of."""
        return bool(self._now.keys() - {told[:_PATH] for told in self._origins(one)})


# -- what is told --------------------------------------------------------------------------------------------


def _refuse_name(who: str, others: Sequence[IndexAddition], snapshot: str | None) -> None:
    for one in others:
        if one.snapshot == snapshot:
            raise PlanError(
                f"{who}: it has a snapshot {snapshot!r} already, which was made of other rows{_by(one)}. "
                f"{_replacing(one)} Or give this one another name, and another output directory"
            )


def _refuse_files(who: str, others: Sequence[IndexAddition], files: _RunFiles) -> None:
    for one in others:
        if files.share_files_with(one):
            raise PlanError(
                f"{who}: files of this input were added before, as {one.snapshot!r}{_by(one)}, and "
                f"{_change(one, files)}. {_replacing(one)} To add the input as another snapshot, of which rows that "
                "were added before are dropped, name it, DedupIndex(..., snapshot='...'), and give it a run_dir and "
                "an output directory of its own"
            )


def _refuse_run(who: str, others: Sequence[IndexAddition], snapshot: str | None, files: _RunFiles) -> None:
    for one in others:
        what, name = "of other input", "another name, " if one.snapshot == snapshot else ""
        way_out = f"Or give it the input of {one.snapshot!r} too, where that was"
        if files.are_grouped:
            way_out += "; files that were moved are only known again if each partition is one"
        if snapshot not in (None, one.snapshot):
            what, way_out = "which is another snapshot", _replacing(one)
        raise PlanError(
            f"{who}: the run in {one.run} has made {one.snapshot!r}, {what}. To go on would remove what it has "
            "written, while the index has that and drops all copies. No output was changed. Give this run "
            f"{name}another run_dir (the cache_path of a workflow) and another output directory. {way_out}"
        )


def _by(one: IndexAddition) -> str:
    return f" by the run in {one.run}" if one.run else ""


def _change(one: IndexAddition, files: _RunFiles) -> str:
    same = files.unchanged_files(one)
    if all(same):
        return (
            "there are others now" if files.include_files_beyond(one) else "what is compared of them is not what it was"
        )
    if any(same):
        return "some are as they were, while others have changed or are gone"
    return "they have other content now"


def _replacing(one: IndexAddition) -> str:
    if not one.run:
        return (
            "It was added without a run_dir, so that no run can replace it: to correct it, make the index anew, with "
            "a run_dir."
        )
    return (
        f"To correct what was added, and its output, give its name, DedupIndex(..., snapshot={one.snapshot!r}), and "
        f"run_dir={one.run!r} (the cache_path of a workflow), with all of its files."
    )


def _warn(who: str, own: Sequence[IndexAddition], others: Sequence[IndexAddition], files: _RunFiles) -> None:
    """Tell which additions lack rows because of others that are replaced."""
    for one in own:
        after = [other.snapshot for other in others if one.name in other.base]
        if after and files.lack_rows_of(one):
            warnings.warn(
                f"{who}: {one.snapshot!r} is replaced, and may have lost rows. What was added after it was compared "
                f"with them: repeat the runs that added {', '.join(map(repr, after))}, and they keep what is now new",
                RuntimeWarning,
                stacklevel=2,
            )
