"""Decontaminate: drops, cuts or marks documents that contain questions or answers of evaluation sets.

It needs no exchange: each worker reads the benchmarks once and looks all words up in a table (`ngram_overlap.py`). The
run counts what was found of each benchmark, and rejected rows name the item that they contain.

Gives up copies in other words or another language, items of fewer words than `min_words`, and knowledge of which runs
of words are common in the corpus, as opposed to the benchmarks. Each worker holds the runs of all items, about 100
bytes for each of their words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import VERDICT
from gristmill.core.batch import Batch
from gristmill.core.deciding_stage import DecidingStage, Decision
from gristmill.core.errors import InputError, PlanError, shorten
from gristmill.core.stage import Columns, CompositeStage, ProcessingStage, WorkerMetadata
from gristmill.core.stage_roles import ReportingRole
from gristmill.dedup.columns.arrow_numpy import flags
from gristmill.dedup.columns.batch_texts import texts_of, with_texts
from gristmill.dedup.decontamination.evaluation_sets import (
    Benchmark,
    BenchmarkItems,
    benchmarks_of,
    list_benchmarks,
    read_items,
)
from gristmill.dedup.decontamination.ngram_overlap import ItemMatch, OverlapIndex, OverlapRules, words_of

DOCUMENT, SPAN, MARK = ACTIONS = ("document", "span", "mark")
BENCHMARK, ITEM, SHARE, MATCH = COLUMNS = (
    "contaminated_by", "contaminated_item", "contaminated_share", "contaminated_match"
)  # fmt: skip
"""The benchmark and the item that a row contains, the share of the runs of the item that were found, and the first."""

_TYPES = {BENCHMARK: pa.string(), ITEM: pa.string(), SHARE: pa.float64(), MATCH: pa.string()}
_LONGEST, _WORD = 300, 60
_COUNTED = "item\0"
"""The prefix of counters for single items; the number of the item follows."""

_KEPT, _DROPPED = "keep", "drop"
_MANY = 0.1
"""A run warns if at least this share of the items of a benchmark can hardly be found."""


def _shown(shares: Iterable[tuple[str, int, int]]) -> str:
    """A list of benchmarks, each with a number of its items."""
    return shorten([f"benchmark {name!r} has {count:,} of {size:,} items" for name, count, size in shares], 5)


class BenchmarkIndex:
    """The benchmarks and the index of their items, shared by the stages of one `Decontaminate`."""

    def __init__(
        self, benchmarks: Sequence[Benchmark], rules: OverlapRules, storage_options: Mapping[str, Any]
    ) -> None:
        self.benchmarks, self.rules, self.storage_options = list(benchmarks), rules, storage_options
        self.stamp = ""
        """A hash of the texts of all items, so that a resumed run with other benchmarks starts over."""
        self._sizes: list[int] = []
        self._short: list[int] = []
        self._common: list[int] = []

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_read"}

    @property
    def items(self) -> BenchmarkItems:
        return self._read[0]

    @property
    def index(self) -> OverlapIndex:
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[BenchmarkItems, OverlapIndex]:
        return self._load()

    def _load(self) -> tuple[BenchmarkItems, OverlapIndex]:
        self.benchmarks = list_benchmarks(self.benchmarks, self.storage_options)
        items = read_items(self.benchmarks, self.storage_options)
        return items, OverlapIndex(make_array(items.texts, pa.string()), self.rules)

    def measure_benchmarks(self) -> None:
        """Read all benchmarks once, when planning, and count items that cannot be found. Raises if none can."""
        items, index = self._load()
        ends = list(accumulate(items.sizes, initial=0))
        self.stamp, self._sizes = items.stamp, items.sizes
        self._short = [int(index.too_short[start:end].sum()) for start, end in pairwise(ends)]
        self._common = [int(index.too_common[start:end].sum()) for start, end in pairwise(ends)]
        if sum(self._short) == len(items.texts):
            problem = f"{self._unsearchable_items(range(len(ends) - 1))}, and the longest has {index.words.max():,}"
            raise InputError(f"there is nothing to look for: {problem}. {self._suggested_fix}")

    def run_warning(self) -> str | None:
        """A warning about benchmarks many of whose items cannot be found, or hardly."""
        sizes = list(enumerate(self._sizes))
        problems = []
        if short := [number for number, size in sizes if self._short[number] >= _MANY * size]:
            problems.append(f"{self._unsearchable_items(short)}, which are not looked for. {self._suggested_fix}")
        if common := [number for number, size in sizes if self._common[number] >= _MANY * size]:
            shares = ((self.benchmarks[one].name, self._common[one], self._sizes[one]) for one in common)
            problems.append(
                f"{_shown(shares)} of which most words were not looked for, because more than "
                f"max_items={self.rules.max_items} items have them. Raise max_items, or list in text_fields only "
                "columns that distinguish items"
            )
        return ". ".join(problems) or None

    def _unsearchable_items(self, which: Iterable[int]) -> str:
        shares = ((self.benchmarks[one].name, self._short[one], self._sizes[one]) for one in which)
        return f"{_shown(shares)} with fewer than min_words={self.rules.min_words} words"

    @property
    def _suggested_fix(self) -> str:
        fuzzy = self.rules.fuzzy_threshold is not None
        lower = f", and fuzzy_ngram={self.rules.fuzzy_ngram}, which must be less" if fuzzy else ""
        return f"List more columns in text_fields, such as that of the answers, or lower min_words{lower}"

    def benchmark_of(self, item: int) -> int:
        """The number of the benchmark that an item belongs to."""
        return int(np.searchsorted(np.cumsum(self._sizes or self.items.sizes), item, "right"))

    def count(self, stage: ProcessingStage[Any, Any], items: Sequence[int]) -> None:
        """Count a document that contains some items; `benchmark_counts` sums up the counters."""
        for number in sorted({self.benchmark_of(item) for item in items}):
            stage.count(f"{self.benchmarks[number].name}_documents")
        for item in items:
            stage.count(f"{_COUNTED}{item}")

    def benchmark_counts(self, counts: Mapping[str, float]) -> dict[str, float]:
        """The counters for display: what was found of each benchmark, from the counters of its items."""
        shown = {name: value for name, value in counts.items() if not name.startswith(_COUNTED)}
        items = [int(name.removeprefix(_COUNTED)) for name in counts if name.startswith(_COUNTED)]
        found = (
            np.bincount([self.benchmark_of(item) for item in items], minlength=len(self.benchmarks)) if items else None
        )
        for number, benchmark in enumerate(self.benchmarks):
            items_found = 0 if found is None else int(found[number])
            size = self._sizes[number] if self._sizes else 0
            shown.setdefault(f"{benchmark.name}_documents", 0)
            shown[f"{benchmark.name}_items_found"] = items_found
            shown[f"{benchmark.name}_items"] = size
            shown[f"{benchmark.name}_share_of_items"] = round(items_found / size, 6) if size else 0.0
            if self._short and self._short[number]:
                shown[f"{benchmark.name}_items_too_short"] = self._short[number]
            if self._common and self._common[number]:
                shown[f"{benchmark.name}_items_too_common"] = self._common[number]
        return shown


class Decontaminate(CompositeStage[Batch, Batch]):
    """Drops, cuts or marks documents that contain items of evaluation sets.

    `benchmarks` lists JSONL or Parquet files or directories, on any file system, or globs, of which each file is a
    benchmark. A benchmark whose text is not in `text_fields` is given as {"path": ..., "text_fields": ["question",
    "answer"], "name": ..., "id_field": ...}. The columns of an item are joined. A document contains an item if `ngram`
    words in a row are in both, and at least the share `min_overlap` of all such runs of the item; or, to find items
    with changed words, if it has the share `fuzzy_threshold` of the item's runs of `fuzzy_ngram` words (None turns this
    off). Items of fewer than `ngram` words must occur as a whole, and those of fewer than `min_words` are left out.
    Runs that more than `max_items` items have do not count.

    `action` is "document", to drop such documents; "span", to cut out the found words with `context` characters on
    either side, up to the next word border, and text between two cuts if it is shorter than `min_piece`; or "mark", to
    add the columns `contaminated_by`, `contaminated_item`, `contaminated_share` and `contaminated_match`. With "span",
    documents with more than `max_spans` cuts, and those of which nothing is left, are dropped. Rejected rows have the
    same columns. The run counts for each benchmark the documents that contain it, and its items that were found.
    """

    folds = True

    def __init__(
        self,
        benchmarks: Sequence[str | PathLike[str] | Mapping[str, Any]],
        text_field: str = "text",
        ngram: int = 13,
        text_fields: Sequence[str] = ("text",),
        action: str = DOCUMENT,
        *,
        min_overlap: float = 0.0,
        min_words: int = 8,
        fuzzy_threshold: float | None = 0.6,
        fuzzy_ngram: int = 5,
        max_items: int | None = 10,
        context: int = 200,
        min_piece: int = 200,
        max_spans: int = 10,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if action not in ACTIONS:
            raise ValueError(f"Decontaminate: action is {action!r}, must be one of {', '.join(ACTIONS)}")
        for name, value in (("context", context), ("min_piece", min_piece), ("max_spans", max_spans)):
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"Decontaminate: {name} is {value!r}, must be a whole number, 0 or more")
        self.benchmarks, self.text_field, self.text_fields, self.action = benchmarks, text_field, text_fields, action
        self.ngram, self.min_overlap, self.min_words = ngram, min_overlap, min_words
        self.fuzzy_threshold, self.fuzzy_ngram, self.max_items = fuzzy_threshold, fuzzy_ngram, max_items
        self.context, self.min_piece, self.max_spans = context, min_piece, max_spans
        self.storage_options = storage_options
        self._rules = self._checked()
        self._benchmarks = benchmarks_of("Decontaminate", benchmarks, text_fields)

    def _checked(self) -> OverlapRules:
        try:
            return OverlapRules(
                self.ngram, self.min_overlap, self.min_words, self.fuzzy_ngram, self.fuzzy_threshold, self.max_items
            )
        except ValueError as error:
            raise ValueError(f"Decontaminate: {error}") from None

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        index = BenchmarkIndex(self._benchmarks, self._rules, self.storage_options or {})
        find = FindContamination(self, index)
        return [find] if self.action == MARK else [find, DropContaminated(self, index)]


class FindContamination(ProcessingStage[Batch, Batch], ReportingRole):
    """Finds items in each document and records them in columns; with "span" it cuts them out."""

    takes_empty = True

    def __init__(self, parent: Decontaminate, benchmark_index: BenchmarkIndex) -> None:
        super().__init__()
        self.name = parent.name if parent.action == MARK else f"{parent.name}_find"
        self.text_field, self.action, self.benchmark_index = parent.text_field, parent.action, benchmark_index
        self.context, self.min_piece, self.max_spans = parent.context, parent.min_piece, parent.max_spans

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_field]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], list(COLUMNS) if self.action == MARK else []

    def check(self) -> None:
        try:
            self.benchmark_index.measure_benchmarks()
        except PlanError as error:
            raise type(error)(f"stage {self.name!r}: {error}") from error

    def run_warning(self, stats: Any) -> str | None:
        warning = self.benchmark_index.run_warning()
        return warning and f"stage {self.name!r}: {warning}"

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self.benchmark_index.index  # noqa: B018  (reads the benchmarks)

    def process(self, task: Batch) -> Batch:
        table, count = task.data, task.num_items
        texts = texts_of(self, table, self.text_field) if count else make_array([], pa.string())
        found = self.benchmark_index.index.matches(texts) if count else []
        rows = {row: list(matches) for row, matches in groupby(found, key=lambda match: match.row)}
        spans = {row: _spans(texts[row].as_py(), matches) for row, matches in rows.items()}
        if self.action == MARK:
            for matches in rows.values():
                self.benchmark_index.count(self, [match.item for match in matches])
            return task.with_data(self._with_findings(table, texts, rows, spans, replace=True))
        left: dict[int, str] = {}
        if self.action == SPAN and rows:
            left = {row: self._without(texts[row].as_py(), places) for row, places in spans.items()}
            new = make_array([left.get(row) or None for row in range(count)], pa.string())
            table = with_texts(table, self.text_field, new, flags(new.is_valid()))
        verdicts = {row: _verdict(bool(left.get(row)), matches) for row, matches in rows.items()}
        table = table.append_column(VERDICT, make_array(map(verdicts.get, range(count)), pa.string()))
        return task.with_data(self._with_findings(table, texts, rows, spans, replace=False))

    def displayed_counts(self, counts: Mapping[str, float]) -> dict[str, float]:
        return self.benchmark_index.benchmark_counts(counts) if self.action == MARK else dict(counts)

    def _with_findings(
        self,
        table: pa.Table,
        texts: pa.Array,
        rows: Mapping[int, list[ItemMatch]],
        spans: Mapping[int, list[tuple[int, int]]],
        replace: bool,
    ) -> pa.Table:
        """The table with columns for what was found in each row; `replace` replaces columns of the same names."""
        values: dict[str, list[Any]] = {name: [None] * table.num_rows for name in COLUMNS}
        for row, matches in rows.items():
            best = matches[0]
            values[BENCHMARK][row] = self.benchmark_index.benchmarks[self.benchmark_index.benchmark_of(best.item)].name
            values[ITEM][row] = self.benchmark_index.items.ids[best.item]
            values[SHARE][row] = best.share
            start, end = spans[row][0]
            values[MATCH][row] = texts[row].as_py()[start : min(end, start + _LONGEST)]
        for name, column in values.items():
            array = make_array(column, _TYPES[name])
            if name not in table.column_names:
                table = table.append_column(name, array)
            elif replace:
                table = table.set_column(table.column_names.index(name), name, array)
        return table

    def _without(self, text: str, spans: Sequence[tuple[int, int]]) -> str:
        """The text without some spans and their context; empty if there are too many spans."""
        wide = _merged([_widened(text, start - self.context, end + self.context) for start, end in spans])
        if len(wide) > self.max_spans:
            return ""
        self.count("spans_cut", len(wide))
        starts, ends = [0, *(end for _, end in wide)], [*(start for start, _ in wide), len(text)]
        head, *between, tail = (text[start:end].strip() for start, end in zip(starts, ends, strict=True))
        pieces = [head, *(piece for piece in between if len(piece) >= self.min_piece), tail]
        return "\n\n".join(filter(None, pieces))


class DropContaminated(DecidingStage[Batch], ReportingRole):
    """Drops documents by the verdicts of `FindContamination`, and counts what was found in all documents."""

    takes_empty = True

    def __init__(self, parent: Decontaminate, benchmark_index: BenchmarkIndex) -> None:
        super().__init__()
        self.name, self.benchmark_index = parent.name, benchmark_index

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], []

    def decide(self, batch: Batch) -> Decision:
        """Scores are the shares of items that were found, one score for each benchmark. Also counts what was found."""
        table, names = batch.data, [benchmark.name for benchmark in self.benchmark_index.benchmarks]
        shares: dict[str, list[float | None]] = {name: [None] * table.num_rows for name in self.thresholds()}
        keep = [True] * table.num_rows
        for row, verdict in enumerate(table.column(VERDICT).to_pylist()):
            if verdict:
                action, *matches = verdict.split()
                found = [match.split(":") for match in matches]
                keep[row], items = action == _KEPT, [int(item) for item, _, _ in found]
                self.benchmark_index.count(self, items)
                name = names[self.benchmark_index.benchmark_of(items[0])]
                shares[_fuzzy_score(name) if int(found[0][2]) else name][row] = float(found[0][1])
        scores = {name: make_array(values, pa.float64()) for name, values in shares.items()}
        return Decision(make_array(keep, pa.bool_()), scores)

    def thresholds(self) -> dict[str, str]:
        """For each benchmark, the threshold for copies and the one for items with changed words."""
        rules, found = self.benchmark_index.rules, dict[str, str]()
        for benchmark in self.benchmark_index.benchmarks:
            found[benchmark.name] = f"min_overlap={rules.min_overlap}"
            if rules.fuzzy_threshold is not None:
                found[_fuzzy_score(benchmark.name)] = f"fuzzy_threshold={rules.fuzzy_threshold}"
        return found

    def apply(self, batch: Batch, decision: Decision) -> Batch:
        kept = batch.keep(decision.keep)
        names = kept.data.column_names
        return kept.with_data(kept.data.select(names[: names.index(VERDICT)]))

    def displayed_counts(self, counts: Mapping[str, float]) -> dict[str, float]:
        return self.benchmark_index.benchmark_counts(counts)


def _verdict(keep: bool, matches: Sequence[ItemMatch]) -> str:
    """Whether a row is kept and which items it contains, as text for `DropContaminated`."""
    found = (f"{match.item}:{match.share}:{int(match.fuzzy)}" for match in matches)
    return " ".join([_KEPT if keep else _DROPPED, *found])


def _fuzzy_score(benchmark: str) -> str:
    """The name of the score for items with changed words."""
    return f"{benchmark} (fuzzy)"


# -- spans of a text -----------------------------------------------------------------------------------------


def _spans(text: str, matches: Sequence[ItemMatch]) -> list[tuple[int, int]]:
    """The spans of a text that the found runs of words cover."""
    words = words_of(text)
    return _merged([(words[first][0], words[end - 1][1]) for match in matches for first, end in match.words])


def _merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _widened(text: str, start: int, end: int) -> tuple[int, int]:
    """A span extended to word borders, if these are near: not all scripts have spaces."""
    start, end = max(start, 0), min(end, len(text))
    before, after = re.search(r"\S*\Z", text[max(start - _WORD, 0) : start]), re.match(r"\S*", text[end : end + _WORD])
    return start - len(before[0] if before else ""), end + len(after[0] if after else "")
