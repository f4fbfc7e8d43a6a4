"""Films on Ray: the same clips, byte for byte, as in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill import LocalExecutor, Pipeline, RayActorPoolExecutor
from tests.audio.test_audio_promises import contents
from tests.ray_cluster import ray_cluster
from tests.video.film_fixtures import film
from tests.video.test_video_promises import stages, without_place

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with ray_cluster(num_cpus=2) as mark:
        yield mark


def test_clips_made_on_ray_are_the_same(cluster: str, tmp_path: Path) -> None:
    for number in range(4):
        film(tmp_path / "in" / f"{number}.mp4", 60 + 5 * number, shots=2, sound=number % 2 == 0, gop=10)
    found = []
    for name, executor in (("local", LocalExecutor(num_workers=0)), ("ray", RayActorPoolExecutor())):
        out = tmp_path / name
        Pipeline("films", stages=stages(str(tmp_path), str(out), "folders")).run(executor)
        found.append(without_place(contents(out), out))
    assert found[0] == found[1]
    assert len(found[0]) >= 12
