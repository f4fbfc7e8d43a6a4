"""Prompt: messages with variables, from a file or a text, and a version that changes with them.

    [system]
    You rewrite texts.

    [user]
    Rewrite in {{ language }}:

    {{ document }}

A line `[system]`, `[user]` or `[assistant]` begins a message; without any, the text is one message of the user. Nothing
is computed in a prompt: `{{ name }}` is replaced by the value, which is never looked at for variables. `{name}`, as
other tools write it, is a variable too where the name is one that is given.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from gristmill.core.errors import InputError, PlanError
from gristmill.core.task import digest

_ROLE = re.compile(r"^\[(system|user|assistant)\][ \t]*\n?", re.MULTILINE)
_VARIABLE = re.compile(r"\{\{\s*(\w+)\s*\}\}|\{(\w+)\}")


class Prompt:
    """Messages with variables. `text` is their text, or that of a file if it is a path that ends with .md or .txt."""

    def __init__(self, text: str | Path, system: str | None = None, name: str = "") -> None:
        path = Path(text) if isinstance(text, Path) or _is_path(text) else None
        self.name = name or (path.stem if path else "")
        self.text = _read(path) if path else str(text)
        self.system = system
        if not self.text.strip():
            raise ValueError(f"the prompt {self.name or repr(text)} is empty")
        self.messages = self._parse()

    def __reduce__(self) -> tuple[type[Prompt], tuple[str, str | None, str]]:
        return _PlainPrompt, (self.text, self.system, self.name)

    def _parse(self) -> list[tuple[str, str]]:
        pieces = _ROLE.split(self.text)
        first = [("user", pieces[0].strip("\n"))] if pieces[0].strip() else []
        named = [(role, content.strip("\n")) for role, content in zip(pieces[1::2], pieces[2::2], strict=True)]
        messages = [*first, *named]
        if self.system is not None:
            messages = [("system", self.system), *[message for message in messages if message[0] != "system"]]
        return messages

    @property
    def version(self) -> str:
        """A hash of the messages: rows that were made with another prompt have another one."""
        return digest([f"{role}\n{content}" for role, content in self.messages], 4)

    def variables(self) -> set[str]:
        """The names of `{{ name }}`."""
        return {found[1] for _, content in self.messages for found in _VARIABLE.finditer(content) if found[1]}

    def check(self, given: Collection[str], needed: Collection[str] = ()) -> None:
        """Raise a PlanError if there are variables without a value, or if one that is needed does not occur."""
        if unknown := sorted(self.variables() - set(given)):
            raise PlanError(
                f"the prompt {self.name!r} has {{{{ {unknown[0]} }}}}, which has no value. "
                f"There are: {', '.join(given)}"
            )
        for name in needed:
            if not self.contains(name):
                raise PlanError(f"the prompt {self.name!r} does not contain {{{{ {name} }}}}")

    def contains(self, name: str) -> bool:
        """Whether a variable occurs, as `{{ name }}` or as `{name}`."""
        return any(name in (found[1], found[2]) for _, text in self.messages for found in _VARIABLE.finditer(text))

    def fill(self, values: Mapping[str, str]) -> list[dict[str, str]]:
        """The messages, with values for the variables."""

        def value(found: re.Match[str]) -> str:
            name = found[1] or found[2]
            return values[name] if name in values else found[0]

        return [{"role": role, "content": _VARIABLE.sub(value, content)} for role, content in self.messages]


class _PlainPrompt(Prompt):
    """A prompt whose text is no path."""

    def __init__(self, text: str, system: str | None, name: str) -> None:
        self.text, self.system, self.name = text, system, name
        self.messages = self._parse()


def _is_path(text: str) -> bool:
    return "\n" not in text and len(text) < 1000 and text.endswith((".md", ".txt"))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the prompt {path} cannot be read: {error}") from error
