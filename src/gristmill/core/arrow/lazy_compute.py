"""Arrow's compute functions, loaded when the first of them is called.

Loading them takes as long as loading a third of Arrow, and the driver of a run, which passes references, needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:

    class _Later:
        def __getattr__(self, name: str) -> Any:
            import pyarrow.compute

            found = getattr(pyarrow.compute, name)
            setattr(self, name, found)
            return found

    pc = _Later()

__all__ = ["pc"]
