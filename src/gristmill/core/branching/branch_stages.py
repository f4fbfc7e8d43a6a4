"""Stages that end a pipeline in several branches, each with its own stages and writer, in one pass.

The plan stays linear: the stages of all branches are in it one after the other, and tasks of other branches bypass them
(`Lineage.branch`, `PlannedStage.branch`), so that counts, quarantine, rejected rows and retries work as for any stage.
One stage commits all branches: a source is done, and entered in the ledger, when all its branches are committed.

A branch cannot have stages that gather, other than its writer. Where a stage of a branch has workers of its own, tasks
of the other branches are sent through them too, which costs traffic.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from gristmill.core.batch import Batch
from gristmill.core.plan.planner import decompose
from gristmill.core.stage import CompositeStage, ProcessingStage, SourceStage
from gristmill.core.stage_roles import CommitStage, GatherRole, output_directory_of
from gristmill.core.task import GatherTask, WrittenFile, WrittenFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gristmill.core.stage_roles import Directory

Stage = ProcessingStage[Any, Any]
Branch = Stage | Sequence[Stage]


class BranchingStage(CompositeStage[Batch, WrittenFiles]):
    """Ends a pipeline in branches. A subclass names them (`set_branches`) and says which rows go where (`splitter`)."""

    is_base: ClassVar[bool] = True

    def set_branches(self, branches: Mapping[str, Branch]) -> None:
        """Check the branches and keep them, decomposed."""
        owner = type(self).__name__
        self._branches = {name: _branch_stages(owner, name, branch) for name, branch in branches.items()}
        places: dict[str, str] = {}
        for name, stages in self._branches.items():
            for place in filter(None, map(output_directory_of, stages)):
                if other := places.get(place.rstrip("/")):
                    raise ValueError(
                        f"{owner}: branches {other!r} and {name!r} both write to {place}: give each its own directory"
                    )
                places[place.rstrip("/")] = name

    @abstractmethod
    def splitter(self) -> SplittingStage:
        """The stage that divides or copies each batch."""

    def decompose(self) -> list[Stage]:
        parts: list[Stage] = [self.splitter()]
        commits: dict[str, CommitStage] = {}
        for name, stages in self._branches.items():
            *before, commit = map(copy.copy, stages)
            assert isinstance(commit, CommitStage)
            commits[name] = commit
            for stage in before:
                stage.name = f"{name}/{stage.name}"
                inner = stage._planned.branch
                stage._planned = replace(stage._planned, branch=f"{name}/{inner}" if inner else name)
            parts += before
        return [*parts, CommitBranches(commits)]


class SplittingStage(ProcessingStage[Batch, Batch]):
    """The first part of a `BranchingStage`: yields a batch for each branch, some of them without rows."""

    is_base: ClassVar[bool] = True

    @staticmethod
    def on_branch(batch: Batch, name: str) -> Batch:
        branch = f"{batch.lineage.branch}/{name}" if batch.lineage.branch else name
        return batch.named(replace(batch.lineage, branch=branch))


def _branch_stages(owner: str, name: str, branch: Branch) -> list[Stage]:
    """The stages of a branch, with a writer's commit as the last."""
    given = [branch] if isinstance(branch, ProcessingStage) else branch
    if not name or "/" in name:
        raise ValueError(f"{owner}: a branch cannot be called {name!r}: its name must be some text without a slash")
    if not isinstance(given, list | tuple) or not all(isinstance(stage, ProcessingStage) for stage in given):
        raise TypeError(
            f"{owner}: branch {name!r} is {given!r}, must be a writer, or a list of stages that ends with one"
        )
    stages = decompose(given)
    if not stages or not isinstance(stages[-1], CommitStage):
        raise ValueError(f"{owner}: branch {name!r} must end with a writer, such as JsonlWriter('out/{name}')")
    for stage in stages[:-1]:
        if isinstance(stage, GatherRole | SourceStage):
            what = "lists input" if isinstance(stage, SourceStage) else "gathers whole sources"
            raise ValueError(  # noqa: TRY004  it is a stage, in the wrong place
                f"{owner}: stage {stage.name!r} of branch {name!r} {what}: put it before the {owner}"
            )
    return stages


class CommitBranches(CommitStage):
    """Commits what the writers of all branches have written for one source."""

    name = "commit_branches"

    def __init__(self, commits: Mapping[str, CommitStage]) -> None:
        super().__init__()
        self.commits = dict(commits)

    def check(self) -> None:
        for commit in self.commits.values():
            commit.check()

    def prepare_run(self, memory: dict[str, Any]) -> None:
        for name, commit in self.commits.items():
            commit.prepare_run(memory.setdefault(name, {}))

    def process(self, task: GatherTask) -> WrittenFiles:
        parts: dict[str, list[Any]] = {name: [] for name in self.commits}
        for fragment in task.data:
            name, _, rest = fragment.lineage.branch.partition("/")
            parts[name].append(fragment.named(replace(fragment.lineage, branch=rest)))
        outputs: dict[str, Any] = {
            name: self.commits[name].process(GatherTask(fragments).named(task.lineage))
            for name, fragments in parts.items()
            if fragments
        }
        return WrittenFiles(
            [path for output in outputs.values() for path in output.data],
            rows=sum(output.rows for output in outputs.values()),
            written=tuple(file for name, output in outputs.items() for file in _with_branch(name, output)),
            dataset_name=task.data[0].dataset_name if task.data else "",
            metadata=dict(task.data[0].metadata) if task.data else {},
        )

    def has_files(self, files: Sequence[WrittenFile]) -> bool:
        return all(commit.has_files(_files_of_branch(name, files)) for name, commit in self.commits.items())

    def discard_files(self, files: Sequence[WrittenFile]) -> None:
        for name, commit in self.commits.items():
            commit.discard_files(_files_of_branch(name, files))

    def keeps_removed(self) -> bool:
        return all(commit.keeps_removed() for commit in self.commits.values())

    def outputs_recorded(self) -> None:
        for commit in self.commits.values():
            commit.outputs_recorded()

    def records_directories(self) -> Sequence[Directory]:
        return [place for commit in self.commits.values() for place in commit.records_directories()]

    def check_shards(self) -> None:
        for commit in self.commits.values():
            commit.check_shards()

    def join_outputs(self, outputs: Sequence[WrittenFiles]) -> Sequence[WrittenFiles]:
        return self._on_branches(outputs, lambda commit, given: commit.join_outputs(given))

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> Sequence[WrittenFiles] | None:
        return self._on_branches(list(outputs), lambda commit, given: commit.complete(given, info))

    def _on_branches(
        self,
        everything: Sequence[WrittenFiles],
        step: Callable[[CommitStage, list[WrittenFiles]], Sequence[WrittenFiles] | None],
    ) -> list[WrittenFiles]:
        """The outputs after a last step of each branch."""
        files_now: list[list[WrittenFile]] = [[] for _ in everything]
        for name, commit in self.commits.items():
            own = [(number, _of_branch(name, output)) for number, output in enumerate(everything)]
            present = [(number, output) for number, output in own if output.written]
            given = [output for _, output in present]
            for (number, _), output in zip(present, step(commit, given) or given, strict=True):
                files_now[number] += _with_branch(name, output)
        return [output.with_written(tuple(files)) for output, files in zip(everything, files_now, strict=True)]


def _with_branch(name: str, output: WrittenFiles) -> list[WrittenFile]:
    """The files of a branch, with its name, and with the rows that it has of the source unless branches of it have."""
    inner = any(file.branch for file in output.written)
    return [
        replace(file, branch=f"{name}/{file.branch}", rows=file.rows)
        if inner
        else replace(file, branch=name, rows=0 if number else output.rows)
        for number, file in enumerate(output.written)
    ]


def _of_branch(name: str, output: WrittenFiles) -> WrittenFiles:
    """What a source has written on a branch, as its commit knows it."""
    files = _files_of_branch(name, output.written)
    part = WrittenFiles([file.path for file in files], rows=sum(file.rows for file in files), written=files)
    return part.named(output.lineage)


def _files_of_branch(name: str, files: Sequence[WrittenFile]) -> tuple[WrittenFile, ...]:
    """Those of the files that belong to a branch, as its commit knows them."""
    return tuple(
        replace(file, branch=file.branch.partition("/")[2]) for file in files if file.branch.partition("/")[0] == name
    )
