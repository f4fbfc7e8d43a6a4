"""How a recipe is saved without its secrets: each is a reference to an environment variable."""

from __future__ import annotations

import re
from typing import Any

from gristmill.core.secret_values import Secret, holds_secret, map_url_secrets
from gristmill.recipes.variables import ENVIRONMENT, escape


class SecretReferences:
    """Replaces the secrets in the parameters of a recipe by references to environment variables, and escapes the rest.
    The same secret has the same name everywhere, another one of that name a number."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def write(self, value: Any, owner: str, name: str = "", secret: bool = False) -> Any:
        """`value` is the parameter `name` of `owner`; within a `secret`, every text is one."""
        secret = secret or (bool(name) and holds_secret(name, value))
        if isinstance(value, Secret) and value.reference:
            return value.reference
        if isinstance(value, dict | list | tuple):
            return self._write_all(value, owner, name, secret)
        if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
            return value
        if isinstance(value, Secret) or secret:
            return self._reference(owner, name, str(value))
        return value if isinstance(value, int) else self._in_url(value, name or owner)

    def _write_all(self, value: Any, owner: str, name: str, secret: bool) -> Any:
        if isinstance(value, dict):
            inner = name if name and not secret else owner
            return {key: self.write(item, inner, str(key), secret) for key, item in value.items()}
        return [self.write(item, owner, name, secret) for item in value]

    def _in_url(self, value: str, owner: str) -> str:
        found: str = map_url_secrets(escape(value), lambda part, text: self._reference(owner, part, text))
        return found

    def _reference(self, owner: str, name: str, value: str) -> str:
        if value.startswith("${" + ENVIRONMENT):  # a reference that is a part of a URL
            return value
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", f"{owner.rpartition(':')[2]}_{name}")
        wanted = variable = re.sub(r"\W+", "_", words).strip("_").upper()
        number = 1
        while self._values.setdefault(variable, value) != value:
            number += 1
            variable = f"{wanted}_{number}"
        return f"${{{ENVIRONMENT}{variable}}}"
