"""FilesWorkflow: the base of workflows, which reads files and writes files.

A run replaces files of the same name in its output directory. It does not start if there are other files of the same
format, since readers of the directory could not tell them from its output; `output_mode` allows it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Self

from gristmill.core.errors import InputError, PlanError, did_you_mean, shorten
from gristmill.core.executor import Executor, default_format_stages
from gristmill.core.pipeline import Pipeline
from gristmill.core.stage import ProcessingStage
from gristmill.core.task import FileGroupTask
from gristmill.io.formats.format_detection import (
    JSONL_EXTENSIONS,
    PARQUET_EXTENSIONS,
    extension_of,
    with_compressed_extensions,
)
from gristmill.io.read.file_listing import Paths, list_files
from gristmill.io.write.commit import WRITE_MODES, data_files, safe_file_name

if TYPE_CHECKING:
    from gristmill.core.result import Result

FILETYPES = ("jsonl", "parquet")


class FilesWorkflow:
    """A workflow that reads input files and writes output files."""

    unused: ClassVar[Sequence[str]] = ()
    """Parameters of NeMo Curator that are accepted and have no effect, such as the sizes of GPU memory pools."""

    def __init__(
        self,
        input_path: Paths | None,
        output_path: str | os.PathLike[str] | None,
        cache_path: str | os.PathLike[str] | None = None,
        input_filetype: str | None = None,
        input_blocksize: int | str | None = None,
        input_file_extensions: Sequence[str] | None = None,
        output_filetype: str | None = None,
        output_mode: str | None = None,
        read_kwargs: Mapping[str, Any] | None = None,
        write_kwargs: Mapping[str, Any] | None = None,
        cache_kwargs: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        unknown = {name: value for name, value in unknown.items() if name not in self.unused}
        if unknown:
            known = [*signature(type(self)).parameters, *list(signature(FilesWorkflow).parameters)[3:]]
            hint = did_you_mean(wrong := next(iter(unknown)), known)
            raise TypeError(f"{self.name} has no parameter {wrong!r}.{hint}")
        if output_path is None:
            raise TypeError(f"{self.name} needs output_path, the directory to write to")
        self.input_path, self.output_path = input_path, os.fspath(output_path)
        self.cache_path = None if cache_path is None else os.fspath(cache_path)
        self.input_filetype, self.input_blocksize = input_filetype, input_blocksize
        self.input_file_extensions, self.output_filetype = input_file_extensions, output_filetype
        self.read_kwargs, self.write_kwargs = dict(read_kwargs or {}), dict(write_kwargs or {})
        self.cache_kwargs = dict(cache_kwargs or {})
        self.output_fields: Sequence[str] | None = None
        for what, given in (("input_filetype", input_filetype), ("output_filetype", output_filetype)):
            if given is not None and given not in FILETYPES:
                raise ValueError(f"{self.name}: {what} is {given!r}, must be 'jsonl' or 'parquet'")
        self.output_mode: str | None = self.write_kwargs.pop("mode", output_mode)
        if output_mode not in (None, self.output_mode):
            raise ValueError(f"{self.name}: output_mode is {output_mode!r}, but write_kwargs has another mode")
        if self.output_mode not in (None, *WRITE_MODES):
            modes = ", ".join(map(repr, WRITE_MODES))
            raise ValueError(f"{self.name}: output_mode is {self.output_mode!r}, must be one of {modes}, or None")

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def output_options(self) -> dict[str, Any]:
        return dict(self.write_kwargs.get("storage_options") or {})

    def filetype(self) -> str:
        """The format of the input: `input_filetype`, or by the extensions of its files."""
        if self.input_filetype:
            return self.input_filetype
        lines = with_compressed_extensions(JSONL_EXTENSIONS)
        options = self.read_kwargs.get("storage_options") or {}
        try:
            files = list_files(self.paths(), self.input_file_extensions or [*lines, *PARQUET_EXTENSIONS], options)
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from error
        kinds = {"parquet" if extension_of(file.path) in PARQUET_EXTENSIONS else "jsonl" for file in files}
        if len(kinds) > 1:
            raise PlanError(
                f"{self.name}: the input has JSON lines and Parquet files: choose one with input_filetype=..."
            )
        return kinds.pop()

    def paths(self) -> Paths:
        if self.input_path is None:
            raise PlanError(f"{self.name} has no input: set input_path, or call run(initial_tasks=...)")
        return self.input_path

    def with_tasks(self, tasks: Iterable[Any]) -> Self:
        """This workflow with the files of tasks as its input."""
        tasks = list(tasks)
        if wrong := [task for task in tasks if not isinstance(task, FileGroupTask)]:
            raise TypeError(
                f"{self.name}: initial_tasks has a {type(wrong[0]).__name__}, must be a list of FileGroupTask"
            )
        workflow = copy(self)
        workflow.input_path = [path for task in tasks for path in task.data]
        return workflow

    def reader(self, kind: str) -> Any:
        return default_format_stages(kind)[0](
            self.paths(),
            blocksize=self.input_blocksize,
            file_extensions=self.input_file_extensions,
            read_kwargs=self.read_kwargs,
            **self.reader_settings(),
        )

    def reader_settings(self) -> dict[str, Any]:
        """More parameters of the reader."""
        return {}

    def writer(self, kind: str) -> ProcessingStage[Any, Any]:
        options = {name: value for name, value in self.write_kwargs.items() if name != "storage_options"}
        compression = options.pop("compression", None)
        writer: ProcessingStage[Any, Any] = default_format_stages(self.output_filetype or kind)[1](
            self.output_path,
            write_kwargs=options,
            mode=self.output_mode or "ignore",
            compression=compression,
            storage_options=self.output_options,
            fields=self.output_fields,
        )
        return writer

    def write_rest(self, kind: str, stages: Sequence[Any], executor: Executor | None, settings: Any) -> Result:
        """Write the rows that the stages keep."""
        reader, writer = self.reader(kind), self.writer(kind)
        stages = [reader, *stages, writer]
        if self.output_mode is None and (others := self._unrelated_files(reader, writer)):
            Pipeline(
                self.name, stages=stages
            ).plan()  # may raise a better error, as when the input is in that directory
            raise InputError(
                f"{self.name}: {self.output_path} has {shorten(others)}, which this run does not write: their rows "
                "would not be compared with its output. Choose another directory, or output_mode='overwrite' to delete "
                "all files of the format in it first, 'ignore' to leave files with other names, 'append' to leave all"
            )
        return self.run_stages(stages, executor, settings)

    def _unrelated_files(self, reader: Any, writer: Any) -> list[str]:
        """Files in the output directory that this run does not write."""
        write, listing = writer.decompose()[0], reader.decompose()[0]
        files = data_files(write.target, write.form)
        if not files:
            return []
        ours = {f"{safe_file_name(name)}{write.form.extension}" for name in listing.partitions()} | self._done_before()
        return [name for name in files if name not in ours]

    def _done_before(self) -> set[str]:
        """Output files of the run that is resumed; it may remove some of them itself."""
        return set()

    def run_stages(self, stages: Sequence[Any], executor: Executor | None, settings: Mapping[str, Any]) -> Result:
        pipeline = Pipeline(self.name, stages=stages)
        options = self.cache_kwargs.get("storage_options")
        return pipeline.run(executor, run_dir=self.cache_path, storage_options=options, **settings)
