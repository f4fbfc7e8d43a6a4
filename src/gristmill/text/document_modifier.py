"""The contract of text modifiers: return a changed text.

To add one, subclass `DocumentModifier`, write `modify_document`, import it in `gristmill/text/__init__.py`, and add
rows to the table in `tests/text/test_modifiers.py`. `modify_document` is the definition. Override `modify_batch` only
where a whole column can be changed faster with exactly the same result. Null stays null.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import make_array
from gristmill.core.arrow.table_conversion import to_array
from gristmill.core.errors import ContractError
from gristmill.core.run.row_progress import in_turn
from gristmill.text.text_columns import python_values

if TYPE_CHECKING:
    from gristmill.text.text_columns import Texts


class DocumentModifier(ABC):
    """Computes a new text for each document. Constructors have no side effects."""

    name: str = "DocumentModifier"
    """The name of the class, unless set."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        # A subclass that overrides only the document form must not inherit a batch form that computes something else.
        if "modify_document" in cls.__dict__ and "modify_batch" not in cls.__dict__:
            cls.modify_batch = DocumentModifier.modify_batch  # type: ignore[method-assign]

    @abstractmethod
    def modify_document(self, text: str) -> Any:
        """The new text, or another value. A modifier of several columns takes them as keywords instead of `text`."""

    def modify_batch(self, texts: Texts) -> pa.Array:
        """The new texts of a column of strings."""
        return modified_array(
            self.name, [None if text is None else self.modify_document(text) for text in in_turn(python_values(texts))]
        )

    def check(self) -> None:  # noqa: B027  (optional)
        """Raise if the modifier cannot work, for example because a library is missing. Called by the planner."""

    def setup(self) -> None:  # noqa: B027  (optional)
        """Called once per worker, before the first document: load models here."""

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in vars(self).items() if not key.startswith("_"))
        return f"{type(self).__name__}({arguments})"


def modified_array(name: str, values: list[Any]) -> pa.Array:
    """What a modifier or function returned for the rows of a column."""
    if any(isinstance(value, bytes) for value in values):
        raise ContractError(f"{name} returned bytes: return a string, as in value.decode()")
    is_text = all(value is None or isinstance(value, str) for value in values)
    return make_array(values, pa.string()) if is_text else to_array(values)
