"""Tee: send every row along all of several branches, such as Parquet and packed tokens of the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gristmill.core.batch import Batch
from gristmill.core.branching.branch_stages import Branch, BranchingStage, SplittingStage
from gristmill.core.stage import ProcessingStage

if TYPE_CHECKING:
    from gristmill.core.stage import Columns


class Tee(BranchingStage):
    """Sends each row along all of several branches, each of which ends with a writer to a directory of its own.

    `to` holds the branches: each is a writer, or a list of stages of which the last is one. A list of branches gets the
    names "1", "2" ...; a mapping names them. What comes before the Tee is done once, and what was decoded or counted
    there is shared. Each output is the same, byte for byte, as if its branch ran alone. A Tee is the last stage of a
    pipeline, or of a branch.
    """

    def __init__(self, to: Sequence[Branch] | Mapping[str, Branch]) -> None:
        super().__init__()
        self.to = to
        if isinstance(to, str | ProcessingStage) or not isinstance(to, Mapping | Sequence) or len(to) < 2:
            raise TypeError(
                "Tee: to must hold two branches or more, as in to=[JsonlWriter('out/rows'), ParquetWriter('out/table')]"
            )
        named = to.items() if isinstance(to, Mapping) else enumerate(to, 1)
        self.set_branches({str(name): branch for name, branch in named})

    def splitter(self) -> SplittingStage:
        return CopyToBranches(list(self._branches))


class CopyToBranches(SplittingStage):
    """Yields each batch once for each branch. The rows are not copied."""

    name = "Tee"
    takes_empty = True

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = list(names)

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def process(self, task: Batch) -> list[Batch]:
        return [self.on_branch(task, name) for name in self.names]
