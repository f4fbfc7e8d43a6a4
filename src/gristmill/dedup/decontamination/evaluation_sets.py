"""Reads benchmarks, the evaluation sets that training data must not contain, from JSON lines or Parquet.

An item is a row; its text is that of some columns, joined, with all text inside of lists and objects.

A file or directory is one benchmark, named after it. Each file of a glob is a benchmark, named by its path below the
directory where the pattern begins; parts of one file (`test-00000-of-00002`) are one benchmark. A glob with a `name` is
one benchmark. So names do not depend on which other files exist.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from os import PathLike, fspath
from typing import Any

from gristmill.core.arrow.table_conversion import POSITION, table_to_rows
from gristmill.core.errors import InputError, did_you_mean, shorten
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.core.task import FileSlice, digest
from gristmill.io.formats.jsonl import read_jsonl
from gristmill.io.formats.parquet import read_parquet
from gristmill.io.read.file_listing import InputFile, list_files
from gristmill.io.storage.file_input import GLOB_CHARACTERS, BadRecord, FileInput

PARQUET = (".parquet", ".pq")
JSONL = (".jsonl", ".json", ".ndjson")
EXTENSIONS = (*JSONL, *PARQUET, *(f"{name}{packed}" for name in JSONL for packed in (".gz", ".zst")))
KEYS = ("path", "name", "text_fields", "id_field")
_PART = re.compile(r"(.*[^-_.])[-_.]\d{5}-of-\d{5}(?:-[0-9a-f]{16})?", re.ASCII)


@fast_dataclass(frozen=True)
class Benchmark:
    """The path of an evaluation set, and the columns that hold its text."""

    path: str
    name: str
    text_fields: tuple[str, ...]
    id_field: str | None = None
    named: bool = True
    """Whether the user has given the name. If not, each file of a glob is a benchmark."""
    files: tuple[tuple[str, str], ...] = ()
    """The path and name of each file, once they have been listed."""


@fast_dataclass
class BenchmarkItems:
    """The items of all benchmarks, one benchmark after the other."""

    texts: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """How many items each benchmark has."""
    stamp: str = ""
    """Changes when a text does."""


def benchmarks_of(stage: str, given: Sequence[Any], text_fields: Sequence[str]) -> list[Benchmark]:
    """Benchmarks from the paths or mappings that the user has given."""
    if isinstance(given, str | PathLike | Mapping):
        raise TypeError(f"{stage}: benchmarks must be a list, as in benchmarks=[{given!r}]")
    found = [_benchmark(stage, one, text_fields) for one in given]
    if not found:
        raise ValueError(f"{stage}: benchmarks is empty: list the evaluation sets to look for")
    if twice := _same_name(found):
        raise ValueError(f"{stage}: {twice}")
    return found


def _same_name(benchmarks: Sequence[Benchmark]) -> str | None:
    """An error message if two benchmarks have the same name."""
    names = Counter(one.name for one in benchmarks)
    name, times = names.most_common(1)[0]
    if times == 1:
        return None
    return f'two benchmarks are named {name!r}: give one another name, as in {{"path": ..., "name": "{name}_2"}}'


def _benchmark(stage: str, given: Any, text_fields: Sequence[str]) -> Benchmark:
    if isinstance(given, str | PathLike):
        given = {"path": given}
    if not isinstance(given, Mapping) or not isinstance(given.get("path"), str | PathLike):
        raise TypeError(f'{stage}: a benchmark is a path, or {{"path": ..., "text_fields": [...]}}, not {given!r}')
    for key in given:
        if key not in KEYS:
            raise ValueError(
                f"{stage}: a benchmark has no {key!r}.{did_you_mean(key, KEYS)} Its keys: {', '.join(KEYS)}"
            )
    fields = given.get("text_fields", text_fields)
    fields = (fields,) if isinstance(fields, str) else tuple(fields)
    if not fields:
        raise ValueError(f"{stage}: text_fields is empty: name the columns that hold the text of the benchmark")
    path = fspath(given["path"])
    name = given.get("name") or (path if GLOB_CHARACTERS & set(path) else _stem(_base(path))) or path
    return Benchmark(path, str(name), fields, given.get("id_field"), named=bool(given.get("name")))


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _stem(name: str) -> str:
    """The name of a file without its extension, and without the number of a part."""
    extensions = sorted(EXTENSIONS, key=len, reverse=True)
    name = next((name[: -len(end)] for end in extensions if name.lower().endswith(end)), name)
    part = _PART.fullmatch(name)
    return part[1] if part else name


def list_benchmarks(benchmarks: Sequence[Benchmark], storage_options: Mapping[str, Any]) -> list[Benchmark]:
    """Benchmarks with their files; a glob without a name becomes one for each file."""
    listed: list[Benchmark] = []
    for benchmark in benchmarks:
        listed += [benchmark] if benchmark.files else _listed(benchmark, storage_options)
    if error := _same_name(listed):
        raise InputError(error)
    return listed


def _listed(benchmark: Benchmark, storage_options: Mapping[str, Any]) -> list[Benchmark]:
    try:
        files = list_files(benchmark.path, EXTENSIONS, storage_options)
    except InputError as error:
        raise InputError(f"benchmark {benchmark.name!r}: {error}") from error
    groups: dict[str, list[InputFile]] = {}
    for file in files:
        one_of_several = GLOB_CHARACTERS & set(benchmark.path) and not benchmark.named
        groups.setdefault(_stem(file.name) if one_of_several else benchmark.name, []).append(file)
    return [
        replace(benchmark, name=name, files=tuple((file.path, file.name) for file in members))
        for name, members in groups.items()
    ]


def read_items(benchmarks: Sequence[Benchmark], storage_options: Mapping[str, Any]) -> BenchmarkItems:
    """The items of benchmarks whose files were listed. Raises InputError for a benchmark without text."""
    items = BenchmarkItems()
    for benchmark in benchmarks:
        before = len(items.texts)
        for name, text in _read(benchmark, storage_options):
            items.ids.append(name)
            items.texts.append(text)
        if not any(map(str.strip, items.texts[before:])):
            raise InputError(
                f"benchmark {benchmark.name!r} is empty: {benchmark.path} has no text in {_columns(benchmark)}"
            )
        items.sizes.append(len(items.texts) - before)
    items.stamp = digest([one.name for one in benchmarks] + items.ids + items.texts)
    return items


def _read(benchmark: Benchmark, storage_options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    wanted = [*benchmark.text_fields, *([benchmark.id_field] if benchmark.id_field else [])]
    missing, columns = set(wanted), dict[str, None]()
    for path, file in benchmark.files:
        for number, row in enumerate(_rows(benchmark, path, storage_options), 1):
            missing.difference_update(row)
            columns.update(dict.fromkeys(row))
            name = row.get(benchmark.id_field) if benchmark.id_field else None
            text = " ".join(part for column in benchmark.text_fields for part in _texts(row.get(column)))
            yield f"{file}:{number}" if name is None else str(name), text
    if columns:
        _check_columns(benchmark, sorted(missing), list(columns))


def _check_columns(benchmark: Benchmark, missing: Sequence[str], columns: Sequence[str]) -> None:
    if missing:
        known = [name for name in columns if name != POSITION]
        near = did_you_mean(missing[0], known)
        raise InputError(
            f"benchmark {benchmark.name!r}: {benchmark.path} has no column {missing[0]!r}.{near} "
            f'Its columns: {shorten(known, 12)}. List those with its text: {{"path": ..., "text_fields": [...]}}'
        )


def _rows(benchmark: Benchmark, path: str, storage_options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    def refuse(record: BadRecord) -> None:
        raise InputError(f"benchmark {benchmark.name!r}: {path} cannot be read at {record.position}: {record.reason}")

    source = FileInput(FileSlice(path), storage_options, on_bad=refuse)
    read = read_parquet if path.lower().endswith(PARQUET) else read_jsonl
    for table in read(source):
        yield from table_to_rows(table)


def _texts(value: Any) -> Iterator[str]:
    """All texts and numbers in a value, as text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _columns(benchmark: Benchmark) -> str:
    return shorten([repr(name) for name in benchmark.text_fields], 5)
