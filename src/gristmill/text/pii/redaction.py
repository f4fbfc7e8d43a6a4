"""Personal data in documents: find it, then redact, hash or drop.

    RedactPii     a stage that does what is asked for each kind of data, and can report what it found in a column
    PiiRedactor   the same as a modifier, for a chain of modifiers; cannot drop
    PiiFilter     a filter whose score is the number of findings

Each kind of data has a pattern that Arrow first searches for in the whole column, so documents without any cost little.
Gives up: names and street addresses, which no pattern can tell from other words.
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
from gristmill.core.deciding_stage import DecidingStage, Decision
from gristmill.core.errors import did_you_mean
from gristmill.core.run.row_progress import in_turn
from gristmill.core.secret_values import Secret
from gristmill.samples.argument_checks import check_count
from gristmill.samples.batch import DocumentBatch
from gristmill.text.document_filter import BoundedFilter
from gristmill.text.document_modifier import DocumentModifier
from gristmill.text.pii.identifiers import find_cards, find_emails, find_ibans, find_ipv4, find_ipv6
from gristmill.text.pii.phone_numbers import PHONE_FORMATS, find_phones
from gristmill.text.pii.secrets import find_secrets
from gristmill.text.text_columns import TextFieldStage, as_array, text_column

if TYPE_CHECKING:
    from gristmill.core.stage import Columns
    from gristmill.text.text_columns import Texts

PII_ACTIONS = ("redact", "hash", "drop")
PiiActions: TypeAlias = "str | Mapping[str, str]"


@dataclass(frozen=True, slots=True)
class PiiFinding:
    """Personal data in a text: its kind, and its span in characters."""

    entity: str
    start: int
    end: int


@dataclass(frozen=True)
class PiiEntity:
    """A kind of personal data: an RE2 pattern that matches every text with it, and the function that finds it."""

    prefilter_pattern: str
    find: Callable[[str, PiiFinder], Iterable[tuple[int, int]]]
    ignored_in_hash: str = r"\s+"
    """A pattern of characters that are removed before hashing, so that spellings of one value have one hash."""


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
        # four numbers; a public IPv6 address, all of which begin with 2 or 3; or another one of three colons and more
        r"[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]|[23][0-9a-fA-F]{3}:[0-9a-fA-F]{0,4}:"
        r"|:[0-9a-fA-F]{0,4}:[0-9a-fA-F]{0,4}:",
        lambda text, finder: [*find_ipv4(text, finder.private_ips), *find_ipv6(text, finder.private_ips)],
    ),
    "phone": PiiEntity(
        r"[0-9][-0-9 .()/\x{a0}\x{2011}\x{2013}]{5,}[0-9]",
        lambda text, finder: find_phones(text, finder.countries),
        r"\D",
    ),
}
"""In order of precedence: where findings overlap, the earlier kind wins."""


@dataclass(frozen=True)
class PiiFinder:
    """Finds the given kinds of data."""

    entities: tuple[str, ...]
    countries: tuple[str, ...]
    private_ips: bool

    def find(self, text: str, entities: Iterable[str] | None = None) -> list[PiiFinding]:
        """The findings from left to right, without overlaps."""
        findings: list[PiiFinding] = []
        for entity in self.entities if entities is None else entities:
            earlier, new = findings, []
            for start, end in PII_ENTITIES[entity].find(text, self):
                index = bisect_left(earlier, end, key=lambda one: one.start)  # only the one before it can overlap
                if not index or earlier[index - 1].end <= start:
                    new.append(PiiFinding(entity, start, end))
            findings = sorted([*earlier, *new], key=lambda one: one.start)
        return findings

    def find_in_column(self, texts: pa.Array) -> dict[int, list[PiiFinding]]:
        """The findings in a column, by row. Rows without any are left out."""
        suspects: dict[int, list[str]] = {}
        for entity in self.entities:
            matches = pc.match_substring_regex(texts, PII_ENTITIES[entity].prefilter_pattern)
            for row in pc.indices_nonzero(matches.fill_null(literal(False, pa.bool_()))).to_pylist():
                suspects.setdefault(row, []).append(entity)
        findings_by_row = {row: self.find(texts[row].as_py(), suspects[row]) for row in in_turn(sorted(suspects))}
        return {row: findings for row, findings in findings_by_row.items() if findings}


@dataclass(frozen=True, slots=True)
class _PiiDecision(Decision):
    """A decision with the findings of each row, so that `apply` does not search again."""

    findings: dict[int, list[PiiFinding]] = field(default_factory=dict)


class RedactPii(DecidingStage[DocumentBatch], TextFieldStage):
    """Redacts personal data: secrets, e-mail, IBAN, credit card numbers, IP addresses and telephone numbers.

    `action` is "redact" (replaced by "[EMAIL]"), "hash" (replaced by "[EMAIL:9f86d081e8b1]", which is the same for the
    same value and `key`, a secret that must be given), or "drop", which drops the document; or a mapping of entities to
    actions, in which those that are left out are redacted. `entities` is what to search for, by default everything.
    `countries` are those whose phone numbers are recognised without a country code. Addresses of private networks count
    only with `private_ips`. With `spans_field`, the findings are added as a column: a list of entity, start and end, in
    characters of the original text.
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
        self.countries, self.key, self.private_ips = countries, Secret(key), private_ips
        self._finder = _finder(self.name, entities, countries, private_ips)
        self._actions = _actions(self.name, self._finder.entities, action, PII_ACTIONS, key)
        if spans_field == text_field:
            raise ValueError(
                f"RedactPii: spans_field and text_field are both {text_field!r}: name another column for the spans"
            )

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], {self.text_field: "string"}

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], [self.text_field, *([self.spans_field] if self.spans_field else [])]

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
        batch = batch.with_column(self.text_field, new)  # also if nothing was found: the column is now a string column
        if self.spans_field:
            spans = [[_finding_as_dict(one) for one in found.get(row, [])] for row in range(len(texts))]
            batch = batch.with_column(self.spans_field, json_array(spans))
        return batch.keep(decision.keep)

    def thresholds(self) -> dict[str, str]:
        dropped = [entity for entity, action in self._actions.items() if action == "drop"]
        return {self.name: f"drop={', '.join(dropped)}"} if dropped else {}


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
        self.entities, self.action, self.countries, self.key = entities, action, countries, Secret(key)
        self.private_ips = private_ips
        self._finder = _finder(self.name, entities, countries, private_ips)
        self._actions = _actions(self.name, self._finder.entities, action, PII_ACTIONS[:2], key)

    def modify_document(self, text: str) -> str:
        return _replace_findings(text, self._finder.find(text), self._actions, self.key)

    def modify_batch(self, texts: Texts) -> pa.Array:
        texts = as_array(texts)
        return _replace_in_column(texts, self._finder.find_in_column(texts), self._actions, self.key)


class PiiFilter(BoundedFilter):
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

    def bounds(self) -> tuple[None, float]:
        return None, self.max_findings


def _finder(name: str, entities: Sequence[str] | None, countries: Sequence[str], private_ips: bool) -> PiiFinder:
    selected = PII_ENTITIES if entities is None else dict.fromkeys(_check_is_list(name, "entities", entities))
    for one in selected:
        _check_known(name, "entity", one, PII_ENTITIES)
    if not selected:
        raise ValueError(f"{name}: entities is empty: name at least one of {', '.join(PII_ENTITIES)}")
    for one in _check_is_list(name, "countries", countries):
        _check_known(name, "country", one, PHONE_FORMATS)
    return PiiFinder(tuple(entity for entity in PII_ENTITIES if entity in selected), tuple(countries), private_ips)


def _actions(
    name: str, entities: Sequence[str], action: PiiActions, allowed: Sequence[str], key: str
) -> dict[str, str]:
    """The action for each entity."""
    given = dict.fromkeys(entities, action) if isinstance(action, str) else dict(action)
    for entity, one in given.items():
        _check_known(name, "entity", entity, entities)
        _check_known(name, "action", one, allowed)
    if "hash" in given.values() and not key:
        raise ValueError(
            f'{name}: action="hash" needs a secret key, as in key="...": without one, anybody can hash all addresses '
            "and numbers and compare"
        )
    return {entity: str(given.get(entity, "redact")) for entity in entities}


def _check_is_list(name: str, parameter: str, values: Sequence[str]) -> Sequence[str]:
    if isinstance(values, str):
        raise TypeError(f"{name}: {parameter} must be a list, as in {parameter}=[{values!r}]")
    return values


def _check_known(name: str, kind: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        names = list(known)
        raise ValueError(
            f"{name}: there is no {kind} {value!r}.{did_you_mean(value, names)} There are: {', '.join(names)}"
        )


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
    """A hash that ignores case, spaces and dashes, except in a secret."""
    value = re.sub(PII_ENTITIES[entity].ignored_in_hash, "", value)
    value = value if entity == "secret" else value.lower()
    secret = hashlib.blake2b(key.encode(), digest_size=32).digest()  # blake2b takes keys of up to 64 bytes only
    return hashlib.blake2b(f"{entity}:{value}".encode(), key=secret, digest_size=6).hexdigest()


def _finding_as_dict(one: PiiFinding) -> dict[str, Any]:
    return {"entity": one.entity, "start": one.start, "end": one.end}
