"""What is secret, and how it is written: never in clear.

A value is secret if it is a `Secret`, if it has the name of one (`is_secret_name`), at any depth of a mapping, list or
object, or if it is the login or the signature in a URL. Recipes refer to secrets as `${env:NAME}`; everywhere else
`hide_secrets` writes `***`. It also knows the values of all secrets that this process was given (`remember_secrets`),
because libraries repeat them in their messages.

Gives up: secrets that are neither named nor a `Secret`, such as a password in the text of a document. Messages may
contain texts of fewer than six characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

HIDDEN = "***"
MIN_KNOWN_CHARS = 6
"""Shorter values are found by name only: they are parts of ordinary words."""

_MAX_DEPTH = 12
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OWNERS = (
    "api|access|secret|account|private|shared|signing|encryption|master|auth|subscription|hmac|storage|service|ssh|p"
)
_SECRET_NAME = re.compile(
    rf"^key$|(^|_)((({_OWNERS})_?key|\w*secret\w*|passw(or)?d|passphrase|pwd|\w*credentials?|authori[sz]ation|auth|login|sas"
    r"|bearer|cookies?|signature|sig|connection_string|access_key_id|accesskeyid|\w*security_token|\w*apikey|token|jwt))$"
)
_PLAIN_TOKEN = re.compile(r"(^|_)(pad|eos|bos|eod|unk|sep|cls|mask|end|start|special)_token$")
_ACTIONS = frozenset({"redact", "hash", "drop"})
"""What may be done with secrets that are found in texts: `{"secret": "drop"}` holds no secret."""
_COLUMN_NAME = re.compile(r"[a-z_]+")
_LOGIN = re.compile(r"(?<=://)([^/@\s\"'<>:]{0,200}:(?!\d+/)[^@\s\"'<>]{0,500})(?=@)")
_TOKEN_LOGIN = re.compile(r"(?<=https://)([^/@\s\"'<>:]{16,500})(?=@)")
_PARAMETER = re.compile(r"(?<=[?&;])([A-Za-z][\w.-]*)=([^&#;\s\"'<>$][^&#;\s\"'<>]*)")
_HEADER = re.compile(r"(?i)(\b(?:bearer|basic)\s+)([A-Za-z0-9+/_=.~-]{8,})")

_REFERENCE = re.compile(r"\$\{env:(\w+)\}")

_known: set[str] = set()
_pattern: re.Pattern[str] | None = None


class Secret(str):
    """A text that no record shows: wherever it would be written, its `reference` is, such as `${env:TOKEN}`."""

    __slots__ = ("reference",)
    reference: str

    def __new__(cls, value: str = "", reference: str = "") -> Secret:
        made = super().__new__(cls, value)
        made.reference = reference or (value.reference if isinstance(value, Secret) else "")
        return made

    @property
    def is_confidential(self) -> bool:
        """Whether messages must not have it either. `${env:DATA_DIR}` is no secret, though it is written like one."""
        names = _REFERENCE.findall(self.reference)
        return not names or any(map(is_secret_name, names))

    def __repr__(self) -> str:
        return f"Secret({self.reference or HIDDEN!r})" if self else "''"

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret, (str.__str__(self), self.reference)

    def __deepcopy__(self, memo: object) -> Secret:
        return self


def is_secret_name(name: str) -> bool:
    """Whether an attribute, parameter, header or key of this name holds a secret."""
    words = _CAMEL_CASE.sub("_", name[-100:]).replace("-", "_").lower()
    return _SECRET_NAME.search(words) is not None and not _PLAIN_TOKEN.search(words)


def holds_secret(name: str, value: Any) -> bool:
    """Whether a value is a secret, or has some inside, because of the name that it has."""
    return is_secret_name(name) and not (isinstance(value, str) and value in _ACTIONS)


def remember_secrets(value: Any) -> None:
    """Have `hide_secrets` find the secrets in a value wherever they appear."""
    global _pattern  # noqa: PLW0603  what a process knows
    texts = {text for text in secrets_in(value) if len(text) >= MIN_KNOWN_CHARS}
    new = texts.union(quote(text, safe="") for text in texts) - _known
    if new:
        _known.update(new)
        longest_first = sorted(_known, key=lambda text: (-len(text), text))
        _pattern = re.compile("|".join(map(re.escape, longest_first)))


def secrets_in(value: Any, name: str = "", secret: bool = False, depth: int = 0, seen: Any = None) -> Iterator[str]:
    """The texts in a value that are secret by their type, by their name, or as a part of a URL."""
    seen = set() if seen is None else seen
    if isinstance(value, str):
        named = secret and not (name == "key" and _COLUMN_NAME.fullmatch(value))
        whole = named or (isinstance(value, Secret) and value.is_confidential)
        yield from [str.__str__(value)] if whole else _parts_of_url(value)
    elif isinstance(value, bytes):
        yield from [value.decode(errors="ignore")] if secret else ()
    elif isinstance(value, int) and secret and not isinstance(value, bool):
        yield str(value)
    elif depth < _MAX_DEPTH and (id(value), secret) not in seen:
        seen.add((id(value), secret))
        for key, inner in _named_parts(value):
            yield from secrets_in(inner, key, secret or holds_secret(key, inner), depth + 1, seen)


def _named_parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a container or an object with secrets may hold, by name. Data, such as an array, holds none."""
    if isinstance(value, Mapping):
        yield from ((str(key), inner) for key, inner in list(value.items())[:1000])
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (("", inner) for inner in list(value)[:1000])
    else:
        yield from list(getattr(value, "__dict__", {}).items()) if not isinstance(value, type) else ()
        for kind in type(value).__mro__ if not isinstance(value, type) else ():
            slots = kind.__dict__.get("__slots__", ())
            names = [slots] if isinstance(slots, str) else slots
            yield from ((name, getattr(value, name)) for name in names if hasattr(value, name))


def _parts_of_url(text: str) -> Iterator[str]:
    if "://" not in text:
        return
    for pattern in (_LOGIN, _TOKEN_LOGIN):
        for match in pattern.finditer(text):
            yield match[1]
            yield from match[1].split(":", 1)[1:]
    yield from (match[2] for match in _PARAMETER.finditer(text) if _is_secret_parameter(match[1]))


def _is_secret_parameter(name: str) -> bool:
    return is_secret_name(name) or name.lower() in ("x-amz-credential", "x-goog-credential", "awsaccesskeyid", "se_sig")


def hide_secrets(text: str) -> str:
    """The text with `***` for the logins and signatures of URLs, and for all secrets that this process knows."""
    if _pattern is not None:
        text = _pattern.sub(HIDDEN, text)
    if "://" in text:
        text = hide_in_urls(text)
    return _HEADER.sub(lambda match: match[1] + HIDDEN, text) if "earer" in text or "asic" in text else text


def hide_in_urls(text: str) -> str:
    """The text with `***` for the logins and signatures of URLs; nothing else is changed."""
    if "://" not in text:
        return text
    return map_url_secrets(text, lambda name, value: HIDDEN)


def map_url_secrets(text: str, replace: Any) -> str:
    """The text with `replace(name, value)` for each login and signature of a URL."""
    text = _LOGIN.sub(lambda match: replace("login", match[1]), text)
    text = _TOKEN_LOGIN.sub(lambda match: replace("login", match[1]), text)
    return _PARAMETER.sub(
        lambda match: f"{match[1]}={replace(match[1], match[2])}" if _is_secret_parameter(match[1]) else match[0], text
    )


def without_secrets(value: Any) -> Any:
    """Plain data with the secrets in its texts hidden, at any depth."""
    if isinstance(value, str):
        return hide_secrets(value)
    if isinstance(value, Mapping):
        return {key: without_secrets(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(inner) for inner in value]
    return value
