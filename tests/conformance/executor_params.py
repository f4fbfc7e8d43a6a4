"""The executors that pass the suite. Those that need a cluster have a mark: `make test-ray` runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gristmill import LocalExecutor, RayActorPoolExecutor, RayDataExecutor, XennaExecutor

EXECUTORS: dict[str, Callable[[], Any]] = {
    "inline": lambda: LocalExecutor(num_workers=0),
    "inline-unfused": lambda: LocalExecutor(num_workers=0, fuse=False),
    "local-1": lambda: LocalExecutor(num_workers=1),
    "local-2": lambda: LocalExecutor(num_workers=2),
    "local-3-unfused": lambda: LocalExecutor(num_workers=3, fuse=False),
}
FEW = ["inline", "local-3-unfused"]
SLOW = ["local-1"]
"""Which show what others show too."""

CLUSTER: dict[str, Callable[..., Any]] = {
    "ray-actors": RayActorPoolExecutor,
    "ray-data": RayDataExecutor,
    "xenna": XennaExecutor,
}


def params(*names: str, suffix: str = "") -> list[Any]:
    """The local executors of these names, and all that need a cluster."""
    local = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names]
    return [*local, *(pytest.param(name + suffix, marks=pytest.mark.ray) for name in CLUSTER)]


def make(request: pytest.FixtureRequest) -> Any:
    """The executor that a test asks for; a cluster is started when the first one needs it."""
    name = request.param
    if name in EXECUTORS:
        return EXECUTORS[name]()
    if name.startswith("xenna"):
        pytest.importorskip("cosmos_xenna")
    request.getfixturevalue("cluster")
    return CLUSTER[name.removesuffix("-unfused")](fuse=not name.endswith("-unfused"))
