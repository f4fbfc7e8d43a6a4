"""One cluster for all of the suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ray_cluster import ray_cluster


@pytest.fixture(scope="package")
def cluster() -> Iterator[str]:
    with ray_cluster(num_cpus=4) as mark:
        yield mark
