"""Write output in two steps, so that it does not depend on which worker wrote it, when, or in which blocks.

    write     each batch becomes a fragment: a temporary file named after its task
    commit    the fragments of one partition are joined, in row order, into its final files

Either step can be repeated at any point: names derive from the task, files appear atomically, and fragments are removed
only when the final files are in place. An `OutputFormat` defines how rows become bytes. The price is that all output
is written twice, unless a single uncompressed fragment can be renamed into its final file.
"""

from __future__ import annotations

import io
import re
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from gristmill.core.arrow.table_conversion import MIXED, POSITION, unify_schemas
from gristmill.core.batch import Batch, row_mask, unread_rows
from gristmill.core.errors import ColumnError, InputError, cannot_write, did_you_mean, shorten
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.records.sharded_run import refuse_shards
from gristmill.core.stage import ProcessingStage
from gristmill.core.stage_roles import CommitStage, WriterRole
from gristmill.core.task import (
    AttachedFile,
    GatherTask,
    OutputPart,
    Task,
    WrittenFile,
    WrittenFiles,
    digest,
    pack_attached,
)
from gristmill.io.storage.output_directory import FileSizes, OutputDirectory, reserve_space
from gristmill.io.write.file_compaction import JOINED_NAME, JoinedFiles, RowSpan
from gristmill.io.write.hub_file_names import HubFileNames
from gristmill.io.write.manifest import remove_manifest, write_manifest
from gristmill.io.write.output_schema import (
    AS_READ,
    OutputColumns,
    columns_of,
    conform_outputs,
    encode_schema,
    file_schema,
    unite_columns,
)
from gristmill.io.write.shared_fragments import SMALL_BATCH_BYTES, SharedFragmentFile, adjacent_joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from gristmill.core.stage_roles import Directory
    from gristmill.io.storage.checksum import NewFile

WRITE_MODES = ("ignore", "overwrite", "error", "append")
REWRITTEN_SUFFIX = ".rewritten"


@fast_dataclass
class Fragment(Task[str]):
    """A batch that was written to the temporary file `data`. If it has no rows there is no file, only a schema."""

    start: int | None = field(default=None, kw_only=True, repr=False)
    """Where it begins in a file that it shares with others (`shared_fragments.py`); None for a file of its own."""

    rows: int = field(kw_only=True)
    size: int = field(kw_only=True)
    schema: pa.Schema = field(kw_only=True, repr=False)
    added: frozenset[str] = field(default=frozenset(), kw_only=True, repr=False)
    """Columns added by stages after the reader: they come last, even if other blocks have more input columns."""
    wide: frozenset[str] = field(default=frozenset(), kw_only=True, repr=False)
    """Integer columns with values that a float cannot hold."""
    seen: tuple[str, ...] = field(default=(), kw_only=True, repr=False)
    """All columns of the batch, to be listed in the message if a requested field is missing."""
    checksum: str = field(default="", kw_only=True, repr=False)

    @property
    def num_items(self) -> int:
        return self.rows


class OutputFormat(ABC):
    """How rows become files: the base class of all output formats.

    A format provides `name`, `extension`, `extensions`, `write_fragment` and `join`; everything else has a default.
    Formats are usually frozen dataclasses, whose fields take the place of these properties.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the format: stages are called `write_{name}` and `commit_{name}`."""

    @property
    @abstractmethod
    def extension(self) -> str:
        """The extension of the files to write, with its dot."""

    @property
    @abstractmethod
    def extensions(self) -> tuple[str, ...]:
        """Every extension that files of this format may have, to recognise the files of earlier runs."""

    @property
    def companion_extensions(self) -> tuple[str, ...]:
        """Extensions of the files that `join` creates after each main file, such as an index of it."""
        return ()

    @property
    def target_file_size(self) -> int | None:
        """The size at which a new file is begun. Files are numbered unless this is None."""
        return None

    @property
    def can_join(self) -> bool:
        """Whether `join_files` is there. With a target size, small files of several sources are then joined."""
        return False

    @property
    def split(self) -> str | None:
        """The name of a split, if files are named as on the Hugging Face hub (`hub_file_names.py`)."""
        return None

    @property
    def one_schema(self) -> bool:
        """Whether all files of an output have the same columns, each of one type."""
        return False

    @property
    def nested(self) -> str:
        """With `one_schema`: what becomes of nested values, `STRUCTS`, `AS_JSON` or `AS_READ`."""
        return AS_READ

    @property
    def copies_lines(self) -> bool:
        """Whether JSON lines of the input can be copied as they are, without parsing them (`io/read/reread.py`)."""
        return False

    @property
    def shares_fragments(self) -> bool:
        """Whether small fragments may share a file: `join` reads them with `open_fragment`."""
        return False

    @abstractmethod
    def write_fragment(self, table: pa.Table, file: BinaryIO) -> None:
        """Write one batch to a temporary file, in any encoding that `join` can read."""

    @abstractmethod
    def join(self, fragments: Sequence[Fragment], schema: pa.Schema, parts: OutputFiles) -> None:
        """Write the rows of all fragments, in order and with the columns of `schema`, to files from `parts.create()`.

        The bytes must depend on the rows alone, not on how they are split into fragments.
        """

    def names_attached(self, target: OutputDirectory, stem: str) -> Sequence[str]:
        """The files that `join` has created in folders of the output for a source, as far as its main file tells."""
        return ()

    def rewrite(self, old: BinaryIO, own: pa.Schema, new: BinaryIO, schema: pa.Schema) -> None:
        """With `one_schema`: write the rows of a file, which has the columns `own`, with the columns of `schema`."""
        raise NotImplementedError

    def measure(self, file: BinaryIO) -> tuple[int, int]:
        """With `can_join`: the rows of a file, and its bytes that count towards the target size."""
        raise NotImplementedError

    def join_files(
        self, spans: Sequence[RowSpan], target: OutputDirectory, new: BinaryIO, schema: pa.Schema | None
    ) -> None:
        """With `can_join`: write the rows of all spans, in order, to one file. The bytes must depend on them alone.
        With `one_schema`, `schema` has the columns of all of them."""
        raise NotImplementedError


class WriteFragments(ProcessingStage[Batch, Fragment], WriterRole):
    """Writes each batch to a temporary file."""

    takes_empty = True

    def __init__(
        self, target: OutputDirectory, form: OutputFormat, fields: Sequence[str] | None = None, mode: str = "ignore"
    ) -> None:
        self.name = f"write_{form.name}"
        self.target, self.form, self.fields, self.mode = target, form, fields, mode
        self._run = "direct"
        self._shared = SharedFragmentFile()

    def check(self) -> None:
        self.target.check()
        if self.mode == "error" and (existing := data_files(self.target, self.form)):
            raise InputError(
                f"stage {self.name!r}: {self.target.url} already has {shorten(existing)}. Choose another directory, or "
                'mode="overwrite" to delete them, "append" to add to them, "ignore" to replace those of the same name'
            )

    def output_directory(self) -> str | None:
        return self.target.url

    def prepare_run(self, memory: dict[str, Any]) -> None:
        resumed = "run" in memory
        self.target.create_directory()
        self.target.remove_stale_files(everything=self.mode == "overwrite" and not resumed, also=memory.get("run"))
        if self.mode == "overwrite" and not resumed:
            for name in data_files(self.target, self.form):
                self.target.remove(self.target.file(name))
            remove_manifest(self.target)
        self._run = memory["run"] = self.target.begin_run()

    def process(self, task: Batch) -> Fragment:
        unread = unread_rows(task) if self.fields is None and self.form.copies_lines else None
        rows = unread.columns if unread else task.data
        table, added = columns_to_write(rows, self.fields)
        path, start, size, checksum = self._write_rows(task, table, unread)
        columns = columns_of(table, added, self.form.nested)
        return Fragment(
            path,
            rows=task.num_items,
            size=size,
            checksum=checksum,
            start=start,
            schema=columns.schema,
            added=added,
            wide=columns.wide,
            seen=tuple(name for name in rows.column_names if name != POSITION),
            dataset_name=task.dataset_name,
            metadata=dict(task.metadata),
        )

    def _write_rows(self, task: Batch, table: pa.Table, unread: Any) -> tuple[str, int | None, int, str]:
        """Write the rows of a batch; the path, where they begin in a shared file, their size and checksum."""
        path = self.target.temporary(self._run, safe_file_name(task.lineage.id) or "batch")
        if not task.num_items:
            return path, None, 0, ""
        follows = self.form.shares_fragments and self.target.local and self._shared.follows(task.lineage.source)
        shares = follows and (unread.size if unread else table.nbytes) <= SMALL_BATCH_BYTES
        with _write_errors_named(self.name, path):
            if shares:
                content = io.BytesIO()
                self._fill(content, task, table, unread)
                return *self._shared.append(path, content.getbuffer()), len(content.getbuffer()), ""
            with self.target.create(path) as file:
                self._fill(file, task, table, unread)
        return path, None, file.size, file.checksum

    def _fill(self, file: BinaryIO, task: Batch, table: pa.Table, unread: Any) -> None:
        if unread:
            copy_unread_lines(unread, row_mask(task), file)
        else:
            self.form.write_fragment(table, file)


def copy_unread_lines(unread: Any, rows: pa.BooleanArray | None, file: BinaryIO) -> None:
    """Copy the lines of the rows that are left, all if `rows` is None, from the input file."""
    reserve_space(file, unread.size * (unread.num_rows if rows is None else rows.true_count) // max(unread.num_rows, 1))
    unread.write(file, rows)


class CommitFiles(CommitStage):
    """Joins the fragments of one partition into its final files."""

    def __init__(
        self, target: OutputDirectory, form: OutputFormat, fields: Sequence[str] | None = None, mode: str = "ignore"
    ) -> None:
        self.name = f"commit_{form.name}"
        self.target, self.form, self.fields, self.mode = target, form, fields, mode
        self._generation = ""
        self._sizes: FileSizes | None = None

    @cached_property
    def _hub_names(self) -> HubFileNames | None:
        return HubFileNames(self.target, self.form.split, self.form.extension) if self.form.split else None

    @cached_property
    def _joined(self) -> JoinedFiles | None:
        return JoinedFiles(self.target, self.form) if self.form.can_join else None

    def prepare_run(self, memory: dict[str, Any]) -> None:
        if self._hub_names:
            self._hub_names.begin(resumed=memory.setdefault("split", "") == self.form.split)
            memory["split"] = self.form.split
        if self._joined:
            self._joined.begin(resumed="joins" in memory)
            memory["joins"] = True
        if self.mode == "append" and "generation" not in memory:
            memory["generation"] = next_generation(data_files(self.target, self.form))
        self._generation = memory.get("generation", "")

    def has_files(self, files: Sequence[WrittenFile]) -> bool:
        if self._sizes is None:
            self._sizes = FileSizes(self.target)
        sizes, hub_names = self._sizes, self._hub_names
        if hub_names:
            return all(hub_names.find(file, sizes.in_folder("")) for file in files)
        return all(
            sizes.of(file.path.rpartition("/")[2]) == file.size
            and all(sizes.of(one.name) == one.size for one in file.attached_files())
            for file in files
        )

    def discard_files(self, files: Sequence[WrittenFile]) -> None:
        if self._hub_names:
            sizes = self.target.sizes()
            found = [self._hub_names.find(file, sizes) for file in files]
            files = [file for file in found if file]
        for file in files:
            if not file.path.startswith(self.target.file("")):  # never delete files of other directories
                continue
            for one in file.attached_files():
                if ".." not in one.name.split("/"):
                    self.target.remove(self.target.file(one.name))
            if self._joined and file.part and file.part.whole:
                self._joined.drop(file)
            elif not self._hub_names or self._is_unchanged(file):  # else the name is another file's now
                self.target.remove(file.path)

    def _is_unchanged(self, file: WrittenFile) -> bool:
        try:
            return self.target.checksum_problem(file.path, file.checksum) is None
        except FileNotFoundError:
            return False

    def check_shards(self) -> None:
        if self.mode != "ignore":
            why = f"mode={self.mode!r} depends on the files of the others"
            raise refuse_shards(self, why, "Leave mode out, and write to an empty directory")
        if self.form.split:
            raise refuse_shards(self, "split= numbers all files", "Leave it out, and give it to a run over this output")
        if self._joined and self.form.target_file_size is not None:
            why = "target_file_size= joins files of all inputs"
            raise refuse_shards(self, why, "Leave it out, and give it to a run over this output")

    def keeps_removed(self) -> bool:
        return not self.form.split and (not self._joined or self.form.target_file_size is None)

    def records_directories(self) -> Sequence[Directory]:
        return [(self.target.records, self.target.storage_options)]

    def temporary_directory(self) -> tuple[str, Mapping[str, Any]]:
        return self.target.temporary(self.target.new_temporary_name()), self.target.storage_options

    def join_outputs(self, outputs: Sequence[WrittenFiles]) -> Sequence[WrittenFiles]:
        done = self._hub_names.found(outputs) if self._hub_names else list(outputs)
        if self.form.one_schema:
            done = conform_outputs(self.target, self.form, self.fields, done)
        return self._joined.join(done) if self._joined else done

    def complete(self, outputs: Iterable[WrittenFiles], info: Mapping[str, Any]) -> Sequence[WrittenFiles] | None:
        done = list(outputs)
        self.target.end_run()
        if self._hub_names:
            done = self._hub_names.rename(done)
        write_manifest(self.target, done, info)
        return done

    def outputs_recorded(self) -> None:
        if self._joined:
            self._joined.recorded()
        if self._hub_names:
            self._hub_names.forget()

    def process(self, task: GatherTask) -> WrittenFiles:
        everything: list[Any] = task.data
        fragments = [fragment for fragment in everything if fragment.size]
        stem = self.stem(task)
        run = task.data[0].data.rpartition("/")[0].rpartition("/")[2] if task.data else ""
        parts = OutputFiles(self.target, run, stem, self.form)
        with _write_errors_named(self.name, self.target.file(stem + self.form.extension)):
            if fragments and not self.target.exists(fragments[0].data):
                files = self._earlier_commit(parts)
            else:
                if fragments:
                    self.form.join(list(adjacent_joined(fragments)), self._schema(task.data), parts)
                files = parts.move_into_place()
            written = self._with_columns(parts.written(files, fragments), everything)
            temporary = dict.fromkeys(fragment.data for fragment in fragments)
            for path in [*parts.rewritten, *temporary]:
                self.target.remove(path)
            self.target.remove_drafts(run, [*files, *temporary, *(path + REWRITTEN_SUFFIX for path in temporary)])
        return WrittenFiles(
            files,
            rows=sum(fragment.rows for fragment in fragments),
            written=written,
            storage_options=self.target.storage_options,
            dataset_name=task.data[0].dataset_name if task.data else "",
            metadata=dict(task.data[0].metadata) if task.data else {},
        )

    def stem(self, task: GatherTask) -> str:
        """The name of the files of a source, without number and extension."""
        return partition_name(task) + self._generation

    def _earlier_commit(self, parts: OutputFiles) -> list[str]:
        """The files of an earlier attempt, which removed the fragments: that is its last step, so it was complete."""
        files = parts.files_in_place()
        if not files:
            raise FileNotFoundError(f"the fragments in {self.target.temporary()} were deleted by another process")
        return files

    def _with_columns(self, files: tuple[WrittenFile, ...], fragments: Sequence[Any]) -> tuple[WrittenFile, ...]:
        """The files with a record of their columns, if those of all sources are to be the same."""
        if not self.form.one_schema or not files:
            return files
        columns, layout = self._columns(fragments).encoded(), encode_schema(self._schema(fragments))
        return tuple(replace(file, columns=columns, layout=layout) for file in files)

    def _columns(self, fragments: Sequence[Any]) -> OutputColumns:
        parts = [OutputColumns(fragment.schema, fragment.added, fragment.wide) for fragment in fragments]
        return unite_columns(parts, self.form.nested)

    def _schema(self, fragments: Sequence[Any]) -> pa.Schema:
        one = self.form.one_schema
        schema = file_schema(self._columns(fragments), None, self.form.nested) if one else joint_schema(fragments)
        if self.fields is None:
            return schema
        missing = [name for name in self.fields if name not in schema.names]
        if missing:
            known = list(dict.fromkeys(name for fragment in fragments for name in fragment.seen))
            raise ColumnError(
                f"stage {self.name!r}: no row has {', '.join(map(repr, missing))}, named in fields=[...]. "
                f"There are: {shorten(known, 12)}.{did_you_mean(missing[0], known)}"
            )
        return pa.schema([schema.field(name) for name in self.fields])


class OutputFiles:
    """The final files of one partition while they are written: one, or numbered ones if files have a target size.

    A format with `companion_extensions` creates one file of each after each of its main files.
    """

    def __init__(self, target: OutputDirectory, run: str, stem: str, form: OutputFormat) -> None:
        self.target, self.run, self.stem, self.form = target, run, stem, form
        self.rewritten: list[str] = []
        self.drafts: list[str | None] = []
        self._created: dict[str, NewFile] = {}
        self._attached: dict[str, AttachedFile] = {}
        self._numbered = form.target_file_size is not None
        self._extensions = (form.extension, *form.companion_extensions)

    def create(self) -> AbstractContextManager[NewFile]:
        """Open the next file for writing."""
        name = self._name(len(self.drafts))
        path = self.target.temporary(self.run, name) if self.target.local else self.target.file(name)
        self.drafts.append(path if self.target.local else None)
        return self._create(path)

    @contextmanager
    def attach(self, name: str) -> Iterator[NewFile]:
        """Open a file in a folder of the output. It is recorded with the main file."""
        with self.target.create(self.target.file(*name.split("/"))) as file:
            yield file
        self._attached[name] = AttachedFile(name, file.size, file.checksum)

    def rewrite(self, fragment: Fragment) -> tuple[str, AbstractContextManager[NewFile]]:
        """Open a temporary file that replaces a fragment."""
        path = fragment.data + ("" if fragment.start is None else f".{fragment.start}") + REWRITTEN_SUFFIX
        self.rewritten.append(path)
        return path, self._create(path)

    @contextmanager
    def _create(self, path: str) -> Iterator[NewFile]:
        with self.target.create(path) as file:
            yield file
        self._created[path] = file

    def adopt_fragment(self, path: str) -> bool:
        """Use a temporary file as the next file without copying it. False if it cannot be renamed: not a local one."""
        if self.target.local:
            self.drafts.append(path)
        return self.target.local

    def move_into_place(self) -> list[str]:
        """Remove the files that an earlier run left of this partition, and move the new ones into place."""
        names = [self._name(index) for index in range(len(self.drafts))]
        for name in self._earlier(len(names)):
            self.target.remove(self.target.file(name))
        for draft, name in zip(self.drafts, names, strict=True):
            if draft is not None:
                self.target.replace(draft, name)
        return [self.target.file(name) for name in names]

    def written(self, files: Sequence[str], fragments: Sequence[Fragment]) -> tuple[WrittenFile, ...]:
        """Size and checksum of the files in place. Only files of an earlier attempt are read for them."""
        written = self._main_files(files, fragments)
        attached = self._attached.values() if self.drafts else self.attached_earlier()
        return (replace(written[0], attached=pack_attached(attached)), *written[1:]) if written else ()

    def attached_earlier(self) -> list[AttachedFile]:
        """The files that an earlier attempt attached, as they are now."""
        names = self.form.names_attached(self.target, self.stem)
        paths = {name: self.target.file(*name.split("/")) for name in names}
        there = {name: path for name, path in paths.items() if self.target.exists(path)}
        return [AttachedFile(name, self.target.size(path), self.target.checksum(path)) for name, path in there.items()]

    def _main_files(self, files: Sequence[str], fragments: Sequence[Fragment]) -> tuple[WrittenFile, ...]:
        if not self.drafts:
            found = (WrittenFile(path, self.target.size(path), self.target.checksum(path)) for path in files)
            return tuple(self._with_part(file, None) for file in found)
        known: dict[str, Fragment | NewFile] = {fragment.data: fragment for fragment in fragments}
        known |= self._created
        sources = [known[draft or path] for path, draft in zip(files, self.drafts, strict=True)]
        return tuple(
            self._with_part(WrittenFile(path, one.size, one.checksum), one)
            for path, one in zip(files, sources, strict=True)
        )

    def _with_part(self, file: WrittenFile, made: Fragment | NewFile | None) -> WrittenFile:
        """The file with what is to be known of it if it is joined with others."""
        if not self.form.can_join or not self._numbered:
            return file
        if made is None:
            with self.target.open(file.path) as old:
                rows, content = self.form.measure(old)
        else:
            rows, content = made.rows, made.size if isinstance(made, Fragment) else made.content
        return replace(file, part=OutputPart(file.path.rpartition("/")[2], file.checksum, content, rows))

    def files_in_place(self) -> list[str]:
        """The files that an earlier attempt moved into place."""
        names = self._numbered_files(0) if self._numbered else [self.stem + self.form.extension]
        return [path for path in map(self.target.file, names) if self.target.exists(path)]

    def _earlier(self, count: int) -> list[str]:
        """Old files of the partition that are not replaced by new ones. The last comes first: numbered files are found
        by counting up, so a gap left by an interrupted removal would hide those after it."""
        unnumbered = self.stem + self.form.extension
        numbered = self._numbered_files(count if self._numbered else 0)
        return numbered[::-1] + ([unnumbered] if self._numbered or not count else [])

    def _numbered_files(self, first: int) -> list[str]:
        names: list[str] = []
        while self.target.exists(self.target.file(name := self._number(first + len(names)))):
            names.append(name)
        return names

    def _number(self, index: int) -> str:
        number, kind = divmod(index, len(self._extensions))
        return f"{self.stem}-{number:05}{self._extensions[kind]}"

    def _name(self, index: int) -> str:
        return self._number(index) if self._numbered else self.stem + self.form.extension


# -- columns -----------------------------------------------------------------------------------------------


def columns_to_write(table: pa.Table, fields: Sequence[str] | None) -> tuple[pa.Table, frozenset[str]]:
    """The table without the framework's columns, and the names of the columns that stages added to the reader's."""
    names = table.column_names
    # Readers put POSITION last, so whatever follows it was added by a stage.
    end_of_input = names.index(POSITION) if POSITION in names else len(names)
    added = frozenset(names[end_of_input:])
    wanted = names if fields is None else [name for name in fields if name in names]
    wanted = [name for name in wanted if name != POSITION]
    table = table.select(wanted)
    schema = pa.schema([(column.name, _unencoded_type(column.type)) for column in table.schema])
    return table if schema.equals(table.schema, check_metadata=True) else table.cast(schema), added


def _unencoded_type(kind: pa.DataType) -> pa.DataType:
    """The type without dictionary or run-length encoding, which depends on how rows are split into batches."""
    encoded = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
    return kind.value_type if encoded else kind


def joint_schema(fragments: Sequence[Fragment]) -> pa.Schema:
    """The columns of all fragments, as if they were one block: in order of first appearance, added ones last."""
    read = [pa.schema([f for f in fragment.schema if f.name not in fragment.added]) for fragment in fragments]
    added = [pa.schema([f for f in fragment.schema if f.name in fragment.added]) for fragment in fragments]
    wide = frozenset[str]().union(*(fragment.wide for fragment in fragments))
    return pa.schema(
        [
            (f.name, MIXED if f.name in wide and pa.types.is_floating(f.type) else f.type)
            for f in unify_schemas(read + added)
        ]
    )


# -- names -------------------------------------------------------------------------------------------------


def partition_name(task: GatherTask) -> str:
    """The name that the reader gave the partition, or the id of its source task."""
    named = task.data[0].metadata.get("partition") if task.data else None
    return safe_file_name(str(named)) if named else f"task-{safe_file_name(task.lineage.source)}"


def safe_file_name(name: str) -> str:
    """The name reduced to characters that every file system takes; if any was replaced, a hash keeps it unique.

    It starts with a letter or digit, since readers, ours included, skip names that start with `.` or `_`.
    """
    clean = re.sub(r"[^\w.-]", "_", name)
    clean = clean.lstrip("._-").encode()[:120].decode(errors="ignore") or "x"
    return clean if clean == name else f"{clean}-{digest([name], 4)}"


def data_files(target: OutputDirectory, form: OutputFormat) -> list[str]:
    """All files in the directory that have an extension of the format."""
    return [name for name in target.names() if name.endswith(form.extensions) and not name.startswith("_")]


def next_generation(names: Sequence[str]) -> str:
    """A suffix that no file has yet: empty for the first run, then `-g2` and so on."""
    if not names:
        return ""
    matches = [re.search(rf"-g(\d+)(-\d{{5}})?({JOINED_NAME})?\.[a-z.]+$", name) for name in names]
    return f"-g{max(int(match[1]) if match else 1 for match in matches) + 1}"


@contextmanager
def _write_errors_named(stage: str, path: str) -> Iterator[None]:
    """Name the stage and the file in errors of the operating system."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error, stage) from error
