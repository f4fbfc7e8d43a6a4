"""Benchmarks: evaluation sets that training data must not have, read from JSON lines or Parquet on any file system.

An item is a row; its text is that of some columns, joined. Lists and objects count with all the text in them.

A file or a directory is one benchmark, and has its name. The files of a glob are a benchmark each, with the name that a
file has below the directory where the pattern begins; parts of one (`test-00000-of-00002`) are together. With a `name`
of its own a glob is one benchmark. So the names do not depend on what else there is.
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
    """Where an evaluation set is, and which of its columns are its text."""

    path: str
    name: str
    text_fields: tuple[str, ...]
    id_field: str | None = None
    named: bool = True
    """Whether the name was given. If it was not, and the path is a glob, there is one for each file."""
    files: tuple[tuple[str, str], ...] = ()
    """Each file, and its name, as soon as they were listed."""


@fast_dataclass
class BenchmarkItems:
    """The items of all benchmarks, one behind the other."""

    texts: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """How many items each benchmark has."""
    stamp: str = ""
    """Changes when a text does."""


def benchmarks_of(stage: str, given: Sequence[Any], text_fields: Sequence[str]) -> list[Benchmark]:
    """What was given, path or mapping, as benchmarks; a wrong one is an error that says what would be right."""
    if isinstance(given, str | PathLike | Mapping):
        raise TypeError(f"{stage}: benchmarks must be a list, as in benchmarks=[{given!r}]")
    found = [_benchmark(stage, one, text_fields) for one in given]
    if not found:
        raise ValueError(f"{stage}: benchmarks is empty: give the evaluation sets to look for")
    if twice := _same_name(found):
        raise ValueError(f"{stage}: {twice}")
    return found


def _same_name(benchmarks: Sequence[Benchmark]) -> str | None:
    """What is wrong with the names, if something is."""
    names = Counter(one.name for one in benchmarks)
    name, times = names.most_common(1)[0]
    if times == 1:
        return None
    return f'two benchmarks are called {name!r}: name them, as in {{"path": ..., "name": "{name}_2"}}'


def _benchmark(stage: str, given: Any, text_fields: Sequence[str]) -> Benchmark:
    if isinstance(given, str | PathLike):
        given = {"path": given}
    if not isinstance(given, Mapping) or not isinstance(given.get("path"), str | PathLike):
        raise TypeError(f'{stage}: a benchmark is a path, or {{"path": ..., "text_fields": [...]}}, not {given!r}')
    for key in given:
        if key not in KEYS:
            raise ValueError(
                f"{stage}: a benchmark has no {key!r}.{did_you_mean(key, KEYS)} There are: {', '.join(KEYS)}"
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
    """A file's name without its extension, and without the number of a part."""
    extensions = sorted(EXTENSIONS, key=len, reverse=True)
    name = next((name[: -len(end)] for end in extensions if name.lower().endswith(end)), name)
    part = _PART.fullmatch(name)
    return part[1] if part else name


def list_benchmarks(benchmarks: Sequence[Benchmark], storage_options: Mapping[str, Any]) -> list[Benchmark]:
    """Benchmarks with their files; of a glob without a name, one for each file."""
    found: list[Benchmark] = []
    for benchmark in benchmarks:
        found += [benchmark] if benchmark.files else _listed(benchmark, storage_options)
    if twice := _same_name(found):
        raise InputError(twice)
    return found


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
        replace(benchmark, name=name, files=tuple((file.path, file.name) for file in some))
        for name, some in groups.items()
    ]


def read_items(benchmarks: Sequence[Benchmark], storage_options: Mapping[str, Any]) -> BenchmarkItems:
    """The items of benchmarks whose files were listed. One that has none is an error."""
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
    missing, there = set(wanted), dict[str, None]()
    for path, file in benchmark.files:
        for number, row in enumerate(_rows(benchmark, path, storage_options), 1):
            missing.difference_update(row)
            there.update(dict.fromkeys(row))
            name = row.get(benchmark.id_field) if benchmark.id_field else None
            text = " ".join(part for column in benchmark.text_fields for part in _texts(row.get(column)))
            yield f"{file}:{number}" if name is None else str(name), text
    if there:
        _check_columns(benchmark, sorted(missing), list(there))


def _check_columns(benchmark: Benchmark, missing: Sequence[str], there: Sequence[str]) -> None:
    if missing:
        known = [name for name in there if name != POSITION]
        near = did_you_mean(missing[0], known)
        raise InputError(
            f"benchmark {benchmark.name!r}: {benchmark.path} has no column {missing[0]!r}.{near} "
            f'There are: {shorten(known, 12)}. Name those with its text: {{"path": ..., "text_fields": [...]}}'
        )


def _rows(benchmark: Benchmark, path: str, storage_options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    def refuse(record: BadRecord) -> None:
        raise InputError(f"benchmark {benchmark.name!r}: {path} cannot be read at {record.position}: {record.reason}")

    source = FileInput(FileSlice(path), storage_options, on_bad=refuse)
    read = read_parquet if path.lower().endswith(PARQUET) else read_jsonl
    for table in read(source):
        yield from table_to_rows(table)


def _texts(value: Any) -> Iterator[str]:
    """All text in a value."""
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
