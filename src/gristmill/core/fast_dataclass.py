"""Records: data classes that are quick to make.

`dataclass` writes and compiles a constructor, a comparison, a representation and what refuses changes for each class.
The sixty classes that every run loads would take longer for that than for all else in their modules. A record has a
constructor of its own; the rest are functions that all records share.

What is given up: `frozen` is for type checkers, and for hashing. Nothing refuses a change when the program runs, and
constructors are the quicker for it. A class whose objects are shared by many who might change them stays a `dataclass`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as fast_dataclass
else:

    def fast_dataclass(
        cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, kw_only: bool = False
    ) -> Any:
        """As `dataclass`, of which it is a part."""

        def made(cls: type) -> type:
            own = vars(cls)
            shared = {"__repr__": _shown, "__eq__": _equal, "__hash__": _hashed if frozen else None}
            kept = {name for name in shared if own.get(name) is not None}
            if not cls.__doc__:  # or it would be told how to call the class, which takes as long as all the rest
                cls.__doc__ = cls.__name__
            whole = dataclass(cls, repr=False, eq=False, slots=slots, kw_only=kw_only)
            for name in shared.keys() - kept:
                setattr(whole, name, shared[name])
            return whole

        return made if cls is None else made(cls)


@recursive_repr()
def _shown(self: Any) -> str:
    values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
    return f"{type(self).__qualname__}({values})"


def _equal(self: Any, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    return _values(self) == _values(other)


def _hashed(self: Any) -> int:
    return hash(_values(self))


def _values(of: Any) -> tuple[Any, ...]:
    return tuple([getattr(of, field.name) for field in fields(of) if field.compare])


__all__ = ["fast_dataclass"]
