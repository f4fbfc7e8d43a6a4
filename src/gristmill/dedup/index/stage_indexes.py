"""The indexes of one stage: which additions its rows are compared with, and what the run adds to which index.

The driver decides this once, when all rows have been read; the decision holds for all rounds of the stage.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

from gristmill.core.errors import PlanError
from gristmill.core.run.run_segments import SEGMENTS_FOLDER
from gristmill.core.stage import ProcessingStage
from gristmill.core.stage_roles import RecordsLocation, output_directory_of
from gristmill.core.task import digest
from gristmill.dedup.index.dedup_index import (
    DedupIndex,
    IndexAddition,
    IndexVersion,
    canonical_url,
    check_index_matches,
)
from gristmill.dedup.index.index_files import IndexFileReader
from gristmill.dedup.index.rerun_detection import AdditionOrigin, find_own_additions
from gristmill.io.exchange.exchange import MAX_PARTITIONS, ShuffleFileListing
from gristmill.io.read.file_partitions import FilePartitioningStage
from gristmill.io.storage.output_directory import OutputDirectory

READ_BYTES = 256 * 2**20
"""Bytes of an index for each partition, if the number of partitions is not given."""


class StageIndexes:
    """The indexes that the rows of a stage are compared with (`against`), and the one they are added to (`extend`).

    With `prefix_ids` ids of rows of an index are prefixed by their snapshot: ids that are made of file names may be
    the same in several snapshots.
    """

    def __init__(
        self,
        stage: str,
        kind: str,
        parameters: Mapping[str, Any],
        against: Sequence[str | DedupIndex],
        extend: str | DedupIndex | None,
        prefix_ids: bool = False,
    ) -> None:
        self.prefix_ids = prefix_ids
        self.stage, self.kind, self.parameters = stage, kind, parameters
        self.extends = None if extend is None else _open_index(extend)
        self._given = [*map(_open_index, against), *([self.extends] if self.extends else [])]
        self.indexes = [
            index
            for number, index in enumerate(self._given, 1)
            if not any(index.is_at(later) for later in self._given[number:])
        ]
        self._compared_additions: list[tuple[DedupIndex, IndexAddition]] | None = None
        self._last: IndexVersion | None = None
        self._own_additions: list[IndexAddition] = []
        self._is_rerun = False
        self._name, self._run, self._origin = "", "", AdditionOrigin()
        self._identity, self._outputs = "", list[str]()
        self._files: Mapping[str, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        left_out: dict[str, Any] = {
            "_compared_additions": None,
            "_last": None,
            "_own_additions": [],
            "_origin": AdditionOrigin(),
            "_files": {},
        }
        return {**self.__dict__, **left_out}  # only the driver uses them, and they may be large

    def check(self) -> None:
        """Raise if an index does not exist, or was made by another kind of stage or with other parameters."""
        if self.extends is not None and self.extends.version is not None:
            raise PlanError(f"stage {self.stage!r}: extend always adds to the last version: leave out its version")
        for index in self.indexes:
            self._refuse_versions(index)
            version = index.read() if index is self.extends else index.there()
            if version is not None:
                check_index_matches(self.stage, index, version, self.kind, self.parameters)

    def _refuse_versions(self, index: DedupIndex) -> None:
        versions = {one.version for one in self._given if one.is_at(index)}
        if len(versions) > 1:
            given = " and as ".join(
                "the last" if one is None else f"version {one}" for one in sorted(versions, key=str)
            )
            raise PlanError(
                f"stage {self.stage!r}: the index at {index.url} is given as {given}: give it once. Rows are "
                "always compared with the last version of the index that they extend"
            )

    def partitions(self) -> int:
        """The least number of partitions that the size of the indexes calls for.

        A power of two, so that a run that is resumed after an index has grown rarely has another number of partitions.
        """
        versions = [index.read() for index in self.indexes]
        wanted = sum(version.size for version in versions if version) // READ_BYTES
        return min(1 << wanted.bit_length(), MAX_PARTITIONS) if wanted else 1

    def load_run_identity(self, memory: dict[str, Any]) -> None:
        """Load or create the identity of this run, which tells it from other runs with a directory of the same name."""
        self._identity = memory.setdefault("identity", os.urandom(8).hex())  # no "token", which records hide

    def set_run_directory(self, url: str, lasting: RecordsLocation) -> None:
        """Store the directory of the run, if the user has set one: without one, what is kept is temporary."""
        has_one = lasting is not None and url.startswith(f"{lasting[0]}/{SEGMENTS_FOLDER}/")
        self._run = canonical_url(OutputDirectory(lasting[0]).url) if lasting and has_one else ""

    def see_pipeline(self, stages: Sequence[ProcessingStage[Any, Any]], others: Iterable[StageIndexes]) -> None:
        """Store the input files and output directories of the pipeline; refuse an index that other stages use too."""
        for other in others:
            if other is not self:
                self._refuse_sharing(other)
        self._outputs = sorted(canonical_url(url) for stage in stages if (url := output_directory_of(stage)))
        if self.extends is not None and isinstance(stages[0], FilePartitioningStage):
            files = stages[0].files()
            self._files = {file.path: f"{file.size} {file.stamp}" if file.stamp else "" for file in files}

    def _refuse_sharing(self, other: StageIndexes) -> None:
        if self.extends and any(self.extends.is_at(index) for index in other.indexes):
            raise PlanError(
                f"stages {self.stage!r} and {other.stage!r} share the index at {self.extends.url}, which "
                f"{self.stage!r} extends: the other stage would find the rows that this run adds. Give each stage an "
                "index of its own"
            )

    # -- when all rows have been read-----------------------------------------------------------------------

    def choose_additions(self, rows: ShuffleFileListing) -> None:
        """Choose the additions that the rows of a run are compared with, once for all of its rounds."""
        if self._compared_additions is not None:
            return
        compared: list[tuple[DedupIndex, IndexAddition]] = []
        for index in reversed(self.indexes):  # the one to extend first: `_refuse_copies` needs its own additions
            version = index.read() or IndexVersion()
            if version.number:  # it may have changed since `check`
                check_index_matches(self.stage, index, version, self.kind, self.parameters)
            if index is self.extends:
                additions = self._additions_of_others(index, version, rows)
            else:
                additions = version.additions
                self._refuse_copies(index, additions)
            compared = [*((index, addition) for addition in additions), *compared]
        self._compared_additions = compared

    def _additions_of_others(
        self, index: DedupIndex, version: IndexVersion, rows: ShuffleFileListing
    ) -> Sequence[IndexAddition]:
        """The additions of other runs. If this run repeats one, those that it was compared with then."""
        additions = version.additions
        mark = digest([self._identity, *self._outputs]) if self._run and self._outputs else ""
        self._last, self._origin = version, AdditionOrigin.of(rows, self._files, self._run, mark)
        who = f"stage {self.stage!r}, the index at {index.url}"
        self._own_additions, self._is_rerun = find_own_additions(
            who, self._origin, additions, index.snapshot or None, index.origins
        )
        base = self._own_additions[0].base if self._is_rerun else ()
        return [one for one in additions if (one.name in base if self._is_rerun else one not in self._own_additions)]

    def _refuse_copies(self, index: DedupIndex, additions: Sequence[IndexAddition]) -> None:
        own = {one.name for one in self._own_additions}
        for one in additions:
            if one.name in own and self.extends:
                raise PlanError(
                    f"stage {self.stage!r}: the index at {index.url} has rows that this run has added to the one at "
                    f"{self.extends.url} before ({one.snapshot!r}), so all of them would be dropped. If they are the "
                    "same index, or one is a copy of the other, leave it out of against"
                )

    @property
    def compared_additions(self) -> Sequence[tuple[DedupIndex, IndexAddition]]:
        assert self._compared_additions is not None, "rows are read before they are compared"
        return self._compared_additions

    def stamp(self, rows: str) -> str:
        """A hash of what partitions depend on. Names of snapshots count, since the cluster table shows them."""
        return digest([rows, *(f"{addition.name} {addition.snapshot}" for _, addition in self.compared_additions)], 16)

    def files(self) -> list[IndexFileReader]:
        """The files of all additions that rows are compared with."""
        return [
            IndexFileReader(index.data(addition.name), file, addition.snapshot)
            for index, addition in self.compared_additions
            for file in addition.files
        ]

    # -- adding --------------------------------------------------------------------------------------------

    def name_addition(self, rows: ShuffleFileListing, verdicts: ShuffleFileListing, partitions: int) -> str:
        """The name of what this run adds.

        The number of partitions is part of it: another number makes other files, and files of an addition that is in
        a version are never rewritten.
        """
        self.choose_additions(rows)
        origin = [rows.moved_rows_stamp, verdicts.stamp, f"{partitions}"]
        self._name = digest([*origin, *(addition.name for _, addition in self.compared_additions)], 8)
        return self._name

    @property
    def addition_target(self) -> OutputDirectory:
        """The directory that this run writes its addition to."""
        assert self.extends is not None
        return self.extends.data(self._name)

    def publish(self, addition: IndexAddition) -> None:
        """Publish the next version, with what this run has added, unless a version has it already."""
        index, last = self.extends, self._last
        assert index is not None
        assert last is not None
        now = index.read() or IndexVersion()
        own = {one.name for one in self._own_additions}
        same = next((one for one in now.additions if one.name == self._name), None)
        if same is not None:
            if same.name not in own:  # another run has added the same rows since these were compared
                raise self._conflict_error(index, now)
            if own == {same.name} and (new := self._with_snapshot_name(self._with_origin(same), now)) != same:
                self._write(now, [new if one is same else one for one in now.additions])
            return
        if not addition.documents and not own and now.number:
            return
        base = tuple(one.name for of, one in self.compared_additions if of is index)
        rest = [one for one in now.additions if one.name not in own]
        gone = own - {one.name for one in now.additions}
        if gone or (not self._is_rerun and tuple(one.name for one in rest) != base):
            raise self._conflict_error(index, now)
        for position, one in enumerate(rest):  # additions that were compared with a replaced one now name the new one
            names = dict.fromkeys(self._name if name in own else name for name in one.base)
            rest[position] = replace(one, base=tuple(names))
        mine = self._with_origin(replace(addition, name=self._name, since=now.number + 1, base=base))
        self._write(now, [*rest, self._with_snapshot_name(mine, now)] if addition.documents else rest)

    def _with_origin(self, mine: IndexAddition) -> IndexAddition:
        """An addition with the origin of its rows."""
        assert self.extends is not None
        source, first = self._origin.source, self._own_additions[0] if self._is_rerun else None
        if first and first.source == source:  # its run directory stays that of the first run
            return replace(mine, source=source, run=first.run, mark=first.mark, origins=first.origins)
        return replace(mine, source=source, origins=self.extends.write_origins(self._origin.origins))

    def _with_snapshot_name(self, mine: IndexAddition, now: IndexVersion) -> IndexAddition:
        """An addition with the snapshot name and the directory of this run, unless it has them already."""
        assert self.extends is not None
        given = self.extends.snapshot or next((one.snapshot for one in self._own_additions if one.named), None)
        taken, default = {one.snapshot for one in now.additions}, f"v{now.number + 1}"
        free = next(name for name in chain([default], (f"{default}.{n}" for n in count(1))) if name not in taken)
        snapshot = given or (self._own_additions[0].snapshot if self._own_additions else free)
        run, mark = mine.run or self._origin.run, mine.mark or self._origin.mark
        return replace(mine, snapshot=snapshot, named=given is not None, run=run, mark=mark)

    def _write(self, now: IndexVersion, additions: Sequence[IndexAddition]) -> None:
        assert self.extends is not None
        try:
            self.extends.publish(IndexVersion(now.number + 1, self.kind, self.parameters, tuple(additions)))
        except FileExistsError as error:
            raise self._conflict_error(self.extends, self.extends.read() or now) from error

    def _conflict_error(self, index: DedupIndex, now: IndexVersion) -> PlanError:
        others = [one.snapshot for one in now.additions if one.since > (self._last or now).number]
        return PlanError(
            f"stage {self.stage!r}: the index at {index.url} is at version {now.number}, because another run has "
            f"added to it ({', '.join(others) or 'nothing new'}), but these rows were compared with version "
            f"{(self._last or now).number}. Nothing is lost: start the run again to compare them with the last "
            "version. With the same run_dir, it resumes from there"
        )


def _open_index(index: str | DedupIndex) -> DedupIndex:
    return index if isinstance(index, DedupIndex) else DedupIndex(index)
