"""Personal data in documents: find it, and redact, hash or drop.

    RedactPii     a stage: does what is asked for each kind, and reports what it has found in a column
    PiiRedactor   the same as a modifier, for a chain of modifiers; cannot drop
    PiiFilter     the number of findings as a score

Each kind of data has a pattern that Arrow searches in the whole column first, so that documents without any cost
little. Gives up: names and street addresses, which no pattern tells from other words.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.arrow.table_conversion import json_array
from gristmill.core.decision import Decision
from gristmill.core.errors import did_you_mean
from gristmill.core.stage import ProcessingStage
from gristmill.samples.batch import DocumentBatch
from gristmill.text.document_filter import DocumentFilter, as_array, check_count, within_bounds
from gristmill.text.modifiers.document_modifier import DocumentModifier
from gristmill.text.pii.identifiers import find_cards, find_emails, find_ibans, find_ipv4, find_ipv6
from gristmill.text.pii.phone_numbers import PHONE_FORMATS, find_phones
from gristmill.text.pii.secrets import find_secrets
from gristmill.text.text_columns import text_column

if TYPE_CHECKING:
    from gristmill.core.stage import Columns
    from gristmill.text.document_filter import Texts

PII_ACTIONS = ("redact", "hash", "drop")
PiiActions: TypeAlias = "str | Mapping[str, str]"


@dataclass(frozen=True, slots=True)
class PiiFinding:
    """Personal data in a text: its kind, and its place in characters."""

    entity: str
    start: int
    end: int


@dataclass(frozen=True)
class PiiEntity:
    """A kind of data: a pattern (RE2) that every text with it matches, and what finds it."""

    prefilter_pattern: str
    find: Callable[[str, PiiFinder], Iterable[tuple[int, int]]]
    ignored_in_hash: str = r"\s+"
    """What does not matter in it, and is left out before it is hashed."""


PII_ENTITIES = {
    "secret": PiiEntity(
        r"(?i)secret|token|passw|pwd|key|AKIA|ASIA|gh[pousr]_|glpat-|xox|xapp|AIza|[rs]k_|sk-|npm_|pypi-|hf_|SG\.|eyJ|hooks\."
        r"|bearer |authorization|://[^\s/]*:[^\s/]*@",
        lambda text, _: find_secrets(text),
        r"$^",
    ),
    "email": PiiEntity("@", lambda text, _: find_emails(text)),
    "iban": PiiEntity(r"[A-Z]{2}[0-9]{2} ?[A-Z0-9]{3}", lambda text, _: find_ibans(text)),
    "credit_card": PiiEntity(r"[0-9]{4}[ -]?[0-9]{4}[ -]?[0-9]{2}", lambda text, _: find_cards(text), r"\D"),
    "ip": PiiEntity(
        r"[0-9]\.[0-9]{1,3}\.[0-9]|:[0-9a-fA-F]{0,4}:",
        lambda text, finder: [*find_ipv4(text, finder.private_ips), *find_ipv6(text, finder.private_ips)],
    ),
    "phone": PiiEntity(
        r"[0-9][-0-9 .()/\x{a0}\x{2011}\x{2013}]{5,}[0-9]",
        lambda text, finder: find_phones(text, finder.countries),
        r"\D",
    ),
}  # in the order in which they are looked for: what one has found is not looked at by the next


@dataclass(frozen=True)
class PiiFinder:
    """Finds the kinds of data that were asked for."""

    entities: tuple[str, ...]
    countries: tuple[str, ...]
    private_ips: bool

    def find(self, text: str, entities: Iterable[str] | None = None) -> list[PiiFinding]:
        """What is found, from left to right, without overlaps."""
        found: list[PiiFinding] = []
        for entity in self.entities if entities is None else entities:
            known, found = found, []
            for start, end in PII_ENTITIES[entity].find(text, self):
                place = bisect_left(known, end, key=lambda one: one.start)  # the one before is the only one in question
                if not place or known[place - 1].end <= start:
                    found.append(PiiFinding(entity, start, end))
            found = sorted([*known, *found], key=lambda one: one.start)
        return found

    def find_in_column(self, texts: pa.Array) -> dict[int, list[PiiFinding]]:
        """What is found in a column, by row; rows without anything are left out."""
        suspects: dict[int, list[str]] = {}
        for entity in self.entities:
            rows = pc.match_substring_regex(texts, PII_ENTITIES[entity].prefilter_pattern).fill_null(
                literal(False, pa.bool_())
            )
            for row in pc.indices_nonzero(rows).to_pylist():
                suspects.setdefault(row, []).append(entity)
        found = {row: self.find(texts[row].as_py(), suspects[row]) for row in sorted(suspects)}
        return {row: findings for row, findings in found.items() if findings}


@dataclass(frozen=True, slots=True)
class _PiiDecision(Decision):
    """A decision that remembers what was found in which row, so that nothing is searched twice."""

    findings: dict[int, list[PiiFinding]] = field(default_factory=dict)


class RedactPii(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Redacts personal data: secrets, e-mail, IBAN, credit card numbers, IP addresses and telephone numbers.

    `action` is "redact" ("[EMAIL]" takes its place), "hash" ("[EMAIL:9f86d081e8b1]": the same for the same value and
    `key`, a secret that must be given), or "drop", which drops the document; or a mapping of entities to actions, where
    those that are left out are redacted. `entities` is what to look for, by default everything. `countries` are those
    whose phone numbers are known without a country code. Addresses of private networks are no personal data unless
    `private_ips`. With `spans_field`, what was found is reported in a column: a list of entity, start and end, in
    characters of the text as it was.
    """

    takes_empty = True

    def __init__(
        self,
        text_field: str = "text",
        entities: Sequence[str] | None = None,
        action: str | Mapping[str, str] = "redact",
        spans_field: str | None = None,
        countries: Sequence[str] = ("US",),
        key: str = "",
        private_ips: bool = False,
    ) -> None:
        super().__init__()
        self.text_field, self.entities, self.action, self.spans_field = text_field, entities, action, spans_field
        self.countries, self.key, self.private_ips = countries, key, private_ips
        self._finder = _finder(self.name, entities, countries, private_ips)
        self._actions = _actions(self.name, self._finder.entities, action, PII_ACTIONS, key)
        if spans_field == text_field:
            raise ValueError(
                f"RedactPii: spans_field and text_field are both {text_field!r}: give the spans another column"
            )

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.text_field: "string"}

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_field, *([self.spans_field] if self.spans_field else [])]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return self.apply(task, self.decide(task))

    def decide(self, batch: DocumentBatch) -> Decision:
        texts = text_column(self, batch.data, self.text_field)
        found = self._finder.find_in_column(texts)
        counts, keep = [0] * len(texts), [True] * len(texts)
        for row, findings in found.items():
            counts[row] = len(findings)
            keep[row] = not any(self._actions[one.entity] == "drop" for one in findings)
        return _PiiDecision(make_array(keep, pa.bool_()), {self.name: make_array(counts, pa.int64())}, findings=found)

    def apply(self, batch: DocumentBatch, decision: Decision) -> DocumentBatch:
        assert isinstance(decision, _PiiDecision)
        found = decision.findings
        texts = text_column(self, batch.data, self.text_field)
        for one in chain.from_iterable(found.values()):
            self.count(one.entity)
        new = _replace_in_column(texts, found, self._actions, self.key) if found else texts
        batch = batch.with_column(self.text_field, new)  # text from here on, whatever a block held
        if self.spans_field:
            spans = [[_finding_as_dict(one) for one in found.get(row, [])] for row in range(len(texts))]
            batch = batch.with_column(self.spans_field, json_array(spans))
        return batch.keep(decision.keep)

    def thresholds(self) -> dict[str, str]:
        dropped = [entity for entity, action in self._actions.items() if action == "drop"]
        return {self.name: f"drop={', '.join(dropped)}"}


class PiiRedactor(DocumentModifier):
    """Redacts personal data, as `RedactPii` does, in a chain of modifiers. `action` is "redact" or "hash"."""

    def __init__(
        self,
        entities: Sequence[str] | None = None,
        action: str | Mapping[str, str] = "redact",
        countries: Sequence[str] = ("US",),
        key: str = "",
        private_ips: bool = False,
    ) -> None:
        self.entities, self.action, self.countries, self.key = entities, action, countries, key
        self.private_ips = private_ips
        self._finder = _finder(self.name, entities, countries, private_ips)
        self._actions = _actions(self.name, self._finder.entities, action, PII_ACTIONS[:2], key)

    def modify_document(self, text: str) -> str:
        return _replace_findings(text, self._finder.find(text), self._actions, self.key)

    def modify_batch(self, texts: Texts) -> pa.Array:
        texts = as_array(texts)
        return _replace_in_column(texts, self._finder.find_in_column(texts), self._actions, self.key)


class PiiFilter(DocumentFilter):
    """The number of pieces of personal data in a document; keeps those with at most `max_findings`."""

    score_type = pa.int64()

    def __init__(
        self,
        max_findings: int = 0,
        entities: Sequence[str] | None = None,
        countries: Sequence[str] = ("US",),
        private_ips: bool = False,
    ) -> None:
        check_count("PiiFilter", "max_findings", max_findings)
        self.max_findings, self.entities, self.countries = max_findings, entities, countries
        self.private_ips = private_ips
        self._finder = _finder(self.name, entities, countries, private_ips)

    def score_document(self, text: str) -> int:
        return len(self._finder.find(text))

    def score_batch(self, texts: Texts) -> pa.Array:
        texts = as_array(texts)
        found = self._finder.find_in_column(texts)
        return make_array([len(found.get(row, ())) for row in range(len(texts))], pa.int64())

    def keep_document(self, score: float) -> bool:
        return score <= self.max_findings

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within_bounds(scores, high=self.max_findings)


def _finder(name: str, entities: Sequence[str] | None, countries: Sequence[str], private_ips: bool) -> PiiFinder:
    wanted = PII_ENTITIES if entities is None else dict.fromkeys(_check_is_list(name, "entities", entities))
    for one in wanted:
        _check_known(name, "entity", one, PII_ENTITIES)
    if not wanted:
        raise ValueError(f"{name}: entities is empty: name at least one of {', '.join(PII_ENTITIES)}")
    for one in _check_is_list(name, "countries", countries):
        _check_known(name, "country", one, PHONE_FORMATS)
    return PiiFinder(tuple(entity for entity in PII_ENTITIES if entity in wanted), tuple(countries), private_ips)


def _actions(
    name: str, entities: Sequence[str], action: PiiActions, allowed: Sequence[str], key: str
) -> dict[str, str]:
    """What to do with each entity."""
    given = dict.fromkeys(entities, action) if isinstance(action, str) else dict(action)
    for entity, one in given.items():
        _check_known(name, "entity", entity, entities)
        _check_known(name, "action", one, allowed)
    if "hash" in given.values() and not key:
        raise ValueError(
            f'{name}: action="hash" needs a key that you keep to yourself, as in key="...": without one, '
            "all addresses and numbers can be tried out until their hash is found"
        )
    return {entity: str(given.get(entity, "redact")) for entity in entities}


def _check_is_list(name: str, parameter: str, values: Sequence[str]) -> Sequence[str]:
    if isinstance(values, str):
        raise TypeError(f"{name}: {parameter} must be a list, as in {parameter}=[{values!r}]")
    return values


def _check_known(name: str, what: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        names = list(known)
        raise ValueError(f"{name}: no {what} {value!r}.{did_you_mean(value, names)} There are: {', '.join(names)}")


def _replace_findings(text: str, findings: Iterable[PiiFinding], actions: Mapping[str, str], key: str) -> str:
    parts, end = [], 0
    for one in findings:
        label = one.entity.upper()
        if actions[one.entity] == "hash":
            label += ":" + _hash_value(text[one.start : one.end], one.entity, key)
        parts += [text[end : one.start], f"[{label}]"]
        end = one.end
    return "".join([*parts, text[end:]])


def _replace_in_column(
    texts: pa.Array, found: Mapping[int, list[PiiFinding]], actions: Mapping[str, str], key: str
) -> pa.Array:
    rows = make_array([row in found for row in range(len(texts))], pa.bool_())
    new = [_replace_findings(texts[row].as_py(), findings, actions, key) for row, findings in found.items()]
    return pc.replace_with_mask(texts, rows, make_array(new, texts.type))


def _hash_value(value: str, entity: str, key: str) -> str:
    """The same for the same value in other clothes: case, spaces and dashes do not count, except in a secret."""
    value = re.sub(PII_ENTITIES[entity].ignored_in_hash, "", value)
    value = value if entity == "secret" else value.lower()
    secret = hashlib.blake2b(key.encode(), digest_size=32).digest()  # keys may be of any length
    return hashlib.blake2b(f"{entity}:{value}".encode(), key=secret, digest_size=6).hexdigest()


def _finding_as_dict(one: PiiFinding) -> dict[str, Any]:
    return {"entity": one.entity, "start": one.start, "end": one.end}
