"""When a pool that gathers gets one more worker."""

from collections import deque
from types import SimpleNamespace

import pytest

from gristmill.core.schedule import START_SECONDS, Pace
from gristmill.executors.pool import Pool


@pytest.mark.parametrize(
    ("gather", "staff", "starting", "seconds", "waiting", "copes"),
    [
        (True, 0, 0, None, 1, False),  # somebody has to begin
        (True, 1, 1, None, 9, True),
        (True, 1, 0, None, 1, False),  # the first is at it, and nobody knows for how long
        (True, 1, 0, START_SECONDS / 10, 9, True),
        (True, 1, 0, START_SECONDS / 10, 11, False),
        (True, 2, 0, START_SECONDS / 10, 11, True),
        (False, 1, 1, None, 1, False),
    ],
)
def test_one_worker_gathers_as_long_as_it_copes(gather, staff, starting, seconds, waiting, copes):
    pace = Pace()
    if seconds is not None:
        pace.add(1, seconds, 0.0)
    flow = SimpleNamespace(pools=[SimpleNamespace(pace=pace, queue=deque(range(waiting)))])
    pool = SimpleNamespace(group=SimpleNamespace(gather=gather), staff=staff, index=0, count=lambda _: starting)
    assert Pool.copes(pool, flow) is copes
