"""Writers of JSON lines and Parquet: one file per partition of the input, or files of a target size."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gristmill.core.stage import CompositeStage, ProcessingStage
from gristmill.core.task import WrittenFiles
from gristmill.io.formats.declared_schema import Schema, SetColumnTypes
from gristmill.io.formats.pandas_options import without_write_options
from gristmill.io.storage.file_input import parse_size
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write import jsonl_format, parquet_format
from gristmill.io.write.commit import WRITE_MODES, CommitFiles, OutputFormat, WriteFragments
from gristmill.io.write.hub_file_names import check_split
from gristmill.io.write.output_schema import AS_JSON, STRUCTS
from gristmill.samples.argument_checks import check_choice, check_output_path, check_positive
from gristmill.samples.batch import DocumentBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class _Writer(CompositeStage[DocumentBatch, WrittenFiles]):
    """Base of the writers. A format overrides `_format`."""

    _catalogue_kind = "writer"

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        write_kwargs: Mapping[str, Any] | None = None,
        mode: str = "ignore",
        target_file_size: int | str | None = None,
        compression: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        schema: Schema | None = None,
        file_extension: str | None = None,
        split: str | None = None,
    ) -> None:
        self.schema, self.file_extension, self.split = schema, file_extension, split
        self.path, self.fields, self.write_kwargs, self.mode = path, fields, write_kwargs, mode
        self.target_file_size, self.compression, self.storage_options = target_file_size, compression, storage_options
        check_output_path(self.name, path)
        check_choice(self.name, "mode", mode, WRITE_MODES)
        if isinstance(fields, str):
            raise TypeError(f'{self.name}: fields must be a list of names, as in fields=["{fields}"]')
        check_split(self.name, split, mode)
        self._format()  # so that a wrong option is an error now, not in the run
        self._set_types()

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        fields = None if self.fields is None else list(self.fields)
        form, target = self._format(), OutputDirectory(self.path, self._storage_options())
        write, commit = WriteFragments(target, form, fields, self.mode), CommitFiles(target, form, fields, self.mode)
        return [*self._set_types(), write, commit]

    def _set_types(self) -> list[ProcessingStage[Any, Any]]:
        return [] if self.schema is None else [SetColumnTypes(self.schema)]

    def _format(self) -> OutputFormat:
        raise NotImplementedError

    def _storage_options(self) -> dict[str, Any]:
        return {**(self.write_kwargs or {}).get("storage_options", {}), **(self.storage_options or {})}

    def _extension(self, usual: str) -> str:
        """The extension of files before that of a compression, with a dot."""
        return usual if self.file_extension is None else "." + self.file_extension.lstrip(".")

    def _size(self) -> int | None:
        return None if self.target_file_size is None else parse_size(self.target_file_size)

    def _options(self, known: Iterable[str]) -> dict[str, Any]:
        options = without_write_options(self.name, self.write_kwargs or {}, [*known, "storage_options"])
        options.pop("storage_options", None)
        for name in options:
            check_choice(self.name, "an option in write_kwargs", name, known)
        return options


class JsonlWriter(_Writer):
    """Writes one JSON object per line, with the columns of the rows or only the `fields`, in that order.

    `mode` is what to do with files that are in the directory already: "ignore" replaces those of the same name,
    "overwrite" deletes all JSON lines files in it, "append" keeps them and chooses new names, "error" raises an error.
    `compression` is "gzip", "zstd" or None. `file_extension` takes the place of "jsonl".
    `write_kwargs={"force_ascii": True}` writes other characters as `\\u00e9`. With `target_file_size`, large files are
    split, and small ones of consecutive inputs are joined when all are written; it is the size before compression.

    `schema` sets the types of columns, as in `{"id": "string", "tags": ["string"]}`. Values of other types are
    converted; rows with one that cannot be converted without loss go to quarantine. With `one_schema`, all files have
    the same columns, and those that are not in `schema` have one type each, found over the whole output.

    With `split="train"`, files are named as on the Hugging Face hub, in the order of the input:
    `train-00000-of-00012.jsonl`. They get these names when all of them are written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        write_kwargs: Mapping[str, Any] | None = None,
        mode: str = "ignore",
        target_file_size: int | str | None = None,
        compression: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        schema: Schema | None = None,
        one_schema: bool = False,
        file_extension: str | None = None,
        split: str | None = None,
    ) -> None:
        self.one_schema = one_schema
        files = (target_file_size, compression, storage_options, schema, file_extension, split)
        super().__init__(path, fields, write_kwargs, mode, *files)

    def _format(self) -> OutputFormat:
        options = self._options(["sort_keys", "compression_level", "compression", "force_ascii"])
        compression = options.pop("compression", None)
        compression = self.compression or (None if compression == "infer" else compression)
        if compression is not None:
            names = [name for name in jsonl_format.EXTENSION_BY_COMPRESSION if name]
            check_choice(self.name, "compression", compression, names)
        if "compression_level" in options and compression != "gzip":
            raise ValueError(f"{self.name}: compression_level needs compression='gzip'")
        return jsonl_format.JsonlFormat(
            compression,
            target_file_size=self._size(),
            one_schema=self.one_schema,
            plain_extension=self._extension(".jsonl"),
            split=self.split,
            **options,
        )


class ParquetWriter(_Writer):
    """Writes Parquet files, compressed with zstd unless `compression` names another codec ("none" for none).

    The other parameters are those of `JsonlWriter`; `write_kwargs` are those of `pyarrow.parquet.ParquetWriter`,
    and `row_group_size` is the largest number of rows in a row group.

    All files have one schema. The type of a column that is not in `schema` is found over the whole output: integers
    beside floats become floats, structs get the fields of all, and what has no other type in common becomes text.
    Nested values of JSON become structs and lists; with `nested="json"` they stay JSON text, of type `arrow.json`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        write_kwargs: Mapping[str, Any] | None = None,
        mode: str = "ignore",
        target_file_size: int | str | None = None,
        compression: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        schema: Schema | None = None,
        nested: str = STRUCTS,
        file_extension: str | None = None,
        split: str | None = None,
    ) -> None:
        self.nested = nested
        check_choice(self.name, "nested", nested, (STRUCTS, AS_JSON))
        files = (target_file_size, compression, storage_options, schema, file_extension, split)
        super().__init__(path, fields, write_kwargs, mode, *files)

    def _format(self) -> OutputFormat:
        options = self._options([*parquet_format.PARQUET_OPTIONS, "compression", "row_group_size"])
        codec = options.pop("compression", None)
        codec = self.compression or codec or "zstd"
        check_choice(self.name, "compression", codec, ["zstd", "snappy", "gzip", "lz4", "brotli", "none"])
        rows = options.pop("row_group_size", parquet_format.ROW_GROUP_ROWS)
        check_positive(self.name, "row_group_size", rows)
        extension = self._extension(".parquet")
        return parquet_format.ParquetFormat(
            codec,
            rows,
            self._size(),
            options,
            self.nested,
            extension=extension,
            extensions=(extension,),
            split=self.split,
        )
