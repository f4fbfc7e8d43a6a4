"""Arrow's compute functions, imported on first use: they take a third of Arrow's import time, and drivers need none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:

    class _Later:
        def __getattr__(self, name: str) -> Any:
            import pyarrow.compute

            function = getattr(pyarrow.compute, name)
            setattr(self, name, function)  # the next access bypasses __getattr__
            return function

    pc = _Later()

__all__ = ["pc"]
