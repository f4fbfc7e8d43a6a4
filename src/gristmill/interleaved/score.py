"""Filters of text, pictures and sound over the items of documents.

    InterleavedEach     runs one filter on each item of its kind, and drops the items, or the documents
    InterleavedModify   runs modifiers on the texts of items, one by one

Filters are those of the modalities, and nothing of theirs changes: the items of a batch become rows of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, ClassVar

import pyarrow as pa

from gristmill.audio.batch import AudioBatch
from gristmill.audio.filters import AudioFilter
from gristmill.audio.score import AudioScoreFilter
from gristmill.core.arrow.array_building import as_one_array, literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.deciding_stage import Decision, FilteringStage, FilterStep, Measures, Rule, StepDecision, all_hold
from gristmill.core.stage import Columns, ProcessingStage
from gristmill.image.batch import ImageBatch
from gristmill.image.filters import ImageFilter
from gristmill.image.score import ImageScoreFilter
from gristmill.interleaved.batch import InterleavedBatch, as_interleaved
from gristmill.interleaved.item_bytes import ItemBytes, NotDownloaded, bytes_of
from gristmill.interleaved.item_columns import (
    AUDIO,
    IMAGE,
    TEXT,
    documents_of,
    item_counts,
    item_field,
    keep_items,
    lists_of,
    of_kind,
    sums_of,
    with_fields,
    without_own_placeholders,
)
from gristmill.interleaved.placeholders import ITEMS_COLUMN, TEXT_COLUMN
from gristmill.samples.argument_checks import check_choice, check_count
from gristmill.samples.batch import BadSample, DocumentBatch
from gristmill.samples.decode import share_decoded
from gristmill.samples.filters import RangeFilter
from gristmill.text.document_filter import DocumentFilter
from gristmill.text.document_modifier import DocumentModifier
from gristmill.text.score import Modify, ScoreFilter

ITEM, DOCUMENT = ON_DROP = ("item", "document")
JUDGED_AT_ONCE = 64
"""Pictures and recordings that are in memory at a time."""

LOWEST, HIGHEST = "lowest", "highest"
ItemVerdicts = list[tuple[Any, bool]]
"""For each item of a kind its score, and whether it is kept. One that cannot be read has a BadSample as its score."""


class InterleavedEach(FilteringStage[DocumentBatch]):
    """Runs a filter on each item of its kind: an ImageFilter on pictures, an AudioFilter on sound, others on texts.

    An item that the filter drops leaves its document (`on_drop="item"`), or takes the document with it ("document").
    Documents with fewer than `min_items` items of the kind left are dropped. An item whose bytes cannot be read is
    dropped and counted (`on_bad_item="item"`), or its document goes to quarantine ("document"), as does one with an
    item that was not downloaded. With `invert`, items that the filter keeps are dropped. `storage_options` are for the
    files that items are in.
    """

    takes_empty = True

    def __init__(
        self,
        filter_obj: ImageFilter | AudioFilter | DocumentFilter,
        on_drop: str = ITEM,
        on_bad_item: str = ITEM,
        invert: bool = False,
        min_items: int = 0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_choice(type(self).__name__, "on_drop", on_drop, ON_DROP)
        check_choice(type(self).__name__, "on_bad_item", on_bad_item, ON_DROP)
        check_count(type(self).__name__, "min_items", min_items)
        self.filter_obj, self.on_drop, self.on_bad_item = filter_obj, on_drop, on_bad_item
        self.invert, self.min_items, self.storage_options = invert, min_items, storage_options
        self._items_judge = _judge_of(filter_obj, invert)
        left = ItemsLeftFilter(filter_obj, min_items, invert)
        tool = filter_obj if on_drop == DOCUMENT else left
        label = filter_obj.name if on_drop == DOCUMENT else f"{self._items_judge.kind}_items_left"
        self._steps = [FilterStep(tool, ITEMS_COLUMN, label)]
        if not self._own_name:
            self.name = f"each_{filter_obj.name}"
        self._reader: ItemBytes | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_reader": None}

    @property
    def kind(self) -> str:
        """The kind of the items that are judged."""
        kind: str = self._items_judge.kind
        return kind

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [ITEMS_COLUMN]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [TEXT_COLUMN, ITEMS_COLUMN]

    def check(self) -> None:
        self._items_judge.stage.check()

    def setup(self, worker_metadata: Any = None) -> None:
        self._items_judge.stage.setup(worker_metadata)

    def teardown(self) -> None:
        self._items_judge.stage.teardown()
        if self._reader is not None:
            self._reader.close()

    # -- the decision ------------------------------------------------------------------------------------------

    def decide(self, batch: DocumentBatch) -> Decision:
        items = as_interleaved(batch).items()
        verdicts = self._verdicts(batch, items)
        fatal = BadSample if self.on_bad_item == DOCUMENT else NotDownloaded
        bad = next((score for score, _ in verdicts if isinstance(score, fatal)), None)
        if bad is not None:  # the worker splits the batch until it has found the document
            raise bad
        return self._decision(items, verdicts)

    def apply(self, batch: DocumentBatch, decision: Decision) -> InterleavedBatch:
        settled = as_interleaved(batch)
        items = settled.items()
        verdicts = self._verdicts(batch, items)
        settled = replace(settled, objects={name: one for name, one in settled.objects.items() if name != self._key})
        settled.lineage = batch.lineage
        kept = make_array([keep for _, keep in verdicts], pa.bool_())
        for name, count in (
            ("bad_items", sum(isinstance(score, BadSample) for score, _ in verdicts)),
            ("items_dropped", len(kept) - (kept.true_count or 0)),
        ):
            if count:
                self.count(name, count)
        if self.on_drop == ITEM and kept.true_count < len(kept):
            chosen = of_kind(items, self.kind)
            mask = pc.replace_with_mask(make_array([True] * len(chosen), pa.bool_()), chosen, kept)
            settled = settled.with_items(keep_items(items, mask))
        return settled.keep(decision.keep)

    def _decision(self, items: pa.ListArray, verdicts: ItemVerdicts) -> Decision:
        scores, kept = [score for score, _ in verdicts], [keep for _, keep in verdicts]
        chosen = of_kind(items, self.kind)
        spread = pc.replace_with_mask(
            make_array([0] * len(chosen), pa.int64()), chosen, make_array(list(map(int, kept)), pa.int64())
        )
        left = sums_of(lists_of(spread, item_counts(items)))
        asked = sums_of(lists_of(chosen.cast(pa.int64()), item_counts(items)))
        if self.on_drop == ITEM:
            keep = pc.greater_equal(left, literal(self.min_items, pa.int64()))
            return Decision(keep, {self._label: left.cast(pa.float64())})
        keep = pc.and_(pc.equal(left, asked), pc.greater_equal(asked, literal(self.min_items, pa.int64())))
        parents = documents_of(items).filter(chosen).to_pylist()
        lowest, highest = _extremes(len(items), parents, scores)
        shown = lowest if self._bounds()[0] is not None else highest
        measures: dict[str, Measures] = {self._label: {LOWEST: lowest, HIGHEST: highest}} if self._item_rules() else {}
        return Decision(keep, {self._label: shown}, measures=measures)

    def _judge(self, step: FilterStep, batch: DocumentBatch) -> StepDecision:
        decision = self.decide(batch)
        return StepDecision(decision.scores[self._label], decision.keep, decision.measures.get(self._label))

    @property
    def _label(self) -> str:
        return self._steps[0].label

    def _bounds(self) -> tuple[float | None, float | None]:
        rules = self.filter_obj.deciding_rules()
        single = len(rules) == 1 and not rules[0].name
        return (rules[0].low, rules[0].high) if single else (None, None)

    def _item_rules(self) -> Sequence[Rule]:
        if self.on_drop == ITEM:
            rules: Sequence[Rule] = self._steps[0].tool.deciding_rules()
            return rules
        low, high = self._bounds()
        if self.invert or self.min_items or (low is None and high is None):
            return ()
        rule = self.filter_obj.deciding_rules()[0]
        return (
            Rule(LOWEST, low=low, low_name=rule.low_name, strict=rule.strict),
            Rule(HIGHEST, high=high, high_name=rule.high_name, strict=rule.strict),
        )

    def rules(self) -> dict[str, Sequence[Rule]]:
        return {self._label: rules} if (rules := self._item_rules()) else {}

    def thresholds(self) -> dict[str, str]:
        text = self.filter_obj.threshold()
        return {
            self._label: (f"not ({text})" if self.invert else text)
            if self.on_drop == DOCUMENT
            else f"min_items={self.min_items}"
        }

    def judge(
        self, scores: Mapping[str, pa.Array], measures: Mapping[str, Measures] | None = None
    ) -> dict[str, pa.Array]:
        label, rules = self._label, self._item_rules()
        if not rules or label not in scores or (self.on_drop == DOCUMENT and label not in (measures or {})):
            return {}
        if self.on_drop == ITEM:
            return {label: rules[0].holds(scores[label])}
        assert measures is not None
        return {label: all_hold(rules, measures[label], len(scores[label]))}

    @property
    def _key(self) -> str:
        return f"item_verdicts_{id(self)}"

    def _verdicts(self, batch: DocumentBatch, items: pa.ListArray) -> ItemVerdicts:
        """The verdicts on the items of the kind. They stay with the rows: `apply` and parts of the batch have them."""
        known = batch.objects.get(self._key)
        if known is None:
            if self._reader is None:
                self._reader = ItemBytes(self.storage_options)
            found = chain.from_iterable(self._items_judge.verdicts(items, self._reader))
            counts = sums_of(lists_of(of_kind(items, self.kind).cast(pa.int64()), item_counts(items))).to_pylist()
            known = batch.objects[self._key] = [list(islice(found, count)) for count in counts]
        return list(chain.from_iterable(known))


class ItemsLeftFilter(RangeFilter):
    """Keeps documents with `min_items` items or more that a filter keeps."""

    def __init__(self, filter_obj: Any, min_items: int = 0, invert: bool = False) -> None:
        self.filter_obj, self.min_items, self.invert = filter_obj, min_items, invert

    def score_sample(self, sample: Any) -> int:
        """How many of the scores of items are kept."""
        return sum(bool(self.filter_obj.keep_score(score)) != self.invert for score in sample)

    def bounds(self) -> tuple[float | None, float | None]:
        return float(self.min_items), None


def _extremes(count: int, parents: Sequence[int], scores: Sequence[Any]) -> tuple[pa.Array, pa.Array]:
    """The lowest and the highest score of the items of each document. Those of no item are infinite, so that a document
    without items is within all limits."""
    lowest, highest = [math.inf] * count, [-math.inf] * count
    for parent, score in zip(parents, scores, strict=True):
        if isinstance(score, int | float):
            lowest[parent] = min(lowest[parent], float(score))
            highest[parent] = max(highest[parent], float(score))
    return make_array(lowest, pa.float64()), make_array(highest, pa.float64())


# -- the filters of each modality -----------------------------------------------------------------------------------


class _TextJudge:
    """Judges texts with a filter of documents."""

    kind = TEXT

    def __init__(self, tool: DocumentFilter, invert: bool) -> None:
        self.stage: Any = ScoreFilter(tool, invert=invert)

    def verdicts(self, items: pa.ListArray, reader: ItemBytes) -> Iterator[list[tuple[Any, bool]]]:
        texts = item_field(items, "text").filter(of_kind(items, TEXT)).fill_null(literal("", pa.string()))
        if len(texts):
            decision = self.stage.decide(DocumentBatch(pa.table({TEXT_COLUMN: texts})))
            scores = next(iter(decision.scores.values())).to_pylist()
            yield list(zip(scores, decision.keep.to_pylist(), strict=True))


class _SampleJudge:
    """Judges pictures or recordings with a filter of theirs."""

    kind: ClassVar[str]
    stage: Any

    def batch(self, encoded: Sequence[bytes], starts: Sequence[Any], ends: Sequence[Any]) -> Any:
        raise NotImplementedError

    def verdicts(self, items: pa.ListArray, reader: ItemBytes) -> Iterator[list[tuple[Any, bool]]]:
        places = pc.indices_nonzero(of_kind(items, self.kind)).to_pylist()
        starts, ends = (item_field(items, name) for name in ("start", "end"))
        for at in range(0, len(places), JUDGED_AT_ONCE):
            some = places[at : at + JUDGED_AT_ONCE]
            found = bytes_of(items, some, reader)
            good = [number for number, one in enumerate(found) if not isinstance(one, BadSample)]
            encoded: list[Any] = [found[number] for number in good]
            times = [[column[some[number]].as_py() for number in good] for column in (starts, ends)]
            judged = dict(zip(good, self._judged(self.batch(encoded, *times)) if good else (), strict=True))
            yield [judged.get(number, (found[number], False)) for number in range(len(found))]

    def _judged(self, batch: Any) -> list[tuple[Any, bool]]:
        """Scores and verdicts; a sample that cannot be decoded is found by halving the batch, and its error is in place
        of its score. What was decoded is kept."""
        share_decoded(batch)
        try:
            decision = self.stage.decide(batch)
        except BadSample as error:
            if batch.num_items == 1:
                return [(error, False)]
            half = batch.num_items // 2
            return self._judged(batch.slice(0, half)) + self._judged(batch.slice(half))
        scores = next(iter(decision.scores.values())).to_pylist()
        return list(zip(scores, decision.keep.to_pylist(), strict=True))


class _ImageJudge(_SampleJudge):
    kind = IMAGE

    def __init__(self, tool: ImageFilter, invert: bool) -> None:
        self.stage = ImageScoreFilter(tool, invert=invert)

    def batch(self, encoded: Sequence[bytes], starts: Sequence[Any], ends: Sequence[Any]) -> ImageBatch:
        return ImageBatch(pa.table({"image": make_array(list(encoded), pa.large_binary())}))


class _AudioJudge(_SampleJudge):
    kind = AUDIO

    def __init__(self, tool: AudioFilter, invert: bool) -> None:
        self.stage = AudioScoreFilter(tool, invert=invert)

    def batch(self, encoded: Sequence[bytes], starts: Sequence[Any], ends: Sequence[Any]) -> AudioBatch:
        return AudioBatch(pa.table({"audio": make_array(list(encoded), pa.large_binary())}))


def _judge_of(tool: Any, invert: bool) -> Any:
    judges: Sequence[tuple[type, Any]] = (
        (ImageFilter, _ImageJudge),
        (AudioFilter, _AudioJudge),
        (DocumentFilter, _TextJudge),
    )
    for kind, judge in judges:
        if isinstance(tool, kind):
            return judge(tool, invert)
    hint = f"write {tool.__name__}(...), not the class" if isinstance(tool, type) else f"not {tool!r}"
    raise TypeError(f"InterleavedEach takes an ImageFilter, an AudioFilter or a DocumentFilter: {hint}")


# -- modifiers -----------------------------------------------------------------------------------------------------


class InterleavedModify(ProcessingStage[DocumentBatch, InterleavedBatch]):
    """Changes the texts of items with modifiers of documents, which get one item at a time and never a placeholder.

    Items whose text becomes empty are dropped, unless `keep_empty`. A function is given a text and returns one.
    """

    takes_empty = True

    def __init__(self, modifier_fn: DocumentModifier | Sequence[DocumentModifier], keep_empty: bool = False) -> None:
        super().__init__()
        self.modifier_fn, self.keep_empty = modifier_fn, keep_empty
        self._modify = Modify(modifier_fn)
        if not self._own_name:
            self.name = f"items_{self._modify.name}"

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], [ITEMS_COLUMN]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [TEXT_COLUMN, ITEMS_COLUMN]

    def check(self) -> None:
        self._modify.check()

    def setup(self, worker_metadata: Any = None) -> None:
        self._modify.setup(worker_metadata)

    def teardown(self) -> None:
        self._modify.teardown()

    def process(self, task: DocumentBatch) -> InterleavedBatch:
        batch = as_interleaved(task)
        items = batch.items()
        chosen = pc.and_(of_kind(items, TEXT), item_field(items, "text").is_valid())
        texts = as_one_array(item_field(items, "text").filter(chosen))
        if not len(texts):
            return batch
        changed = self._modify.process(DocumentBatch(pa.table({TEXT_COLUMN: texts})))
        new = as_one_array(changed.data.column(TEXT_COLUMN)).cast(pa.string())
        if not self.keep_empty:
            gone = pc.and_(pc.equal(new, literal("", pa.string())), pc.not_equal(texts, literal("", pa.string())))
            emptied = pc.replace_with_mask(make_array([False] * len(chosen), pa.bool_()), chosen, gone)
        items = with_fields(items, text=pc.replace_with_mask(item_field(items, "text"), chosen, new))
        if not self.keep_empty and emptied.true_count:
            items = keep_items(items, pc.invert(emptied))
        return batch.with_items(without_own_placeholders(items))
