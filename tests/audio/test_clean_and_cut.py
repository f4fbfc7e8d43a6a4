"""Stages that change sound and cut it: what later stages hear, and that times map back to the original file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.audio import (
    AudioBatch,
    AudioLoudnessFilter,
    AudioScore,
    JoinSplitAudioMetadataStage,
    ManifestReader,
    ManifestWriterStage,
    MonoConversionStage,
    NormalizeLoudnessStage,
    ResampleAudioStage,
    SegmentConcatenationStage,
    SplitLongAudioStage,
    TimestampMapperStage,
    TrimSilenceStage,
    decode_audio,
    sounds,
)
from tests.audio.sound_fixtures import RATE, noise, read_manifest_file, tone, wav, write_manifest_file
from tests.audio.test_manifest import run


def batch(samples: Any, rate: int = RATE, **columns: Any) -> AudioBatch:
    return AudioBatch([{"audio_filepath": "a.wav", "audio": wav(samples, rate, "FLOAT"), **columns}])


def heard(rows: AudioBatch) -> list[Any]:
    return list(sounds(rows))


def only(stage: Any, rows: AudioBatch) -> AudioBatch:
    [made] = stage.process(rows)
    return made


def test_channels_are_mixed_and_the_rate_is_checked(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(tone(1.0, 48_000, channels=2), 48_000))
    (tmp_path / "b.wav").write_bytes(wav(tone(1.0)))
    source = write_manifest_file(tmp_path / "in.jsonl", [{"audio_filepath": "a.wav"}, {"audio_filepath": "b.wav"}])
    result = run([ManifestReader(source), MonoConversionStage(), ManifestWriterStage(tmp_path / "out.jsonl")])
    [row] = read_manifest_file(tmp_path / "out.jsonl")
    assert (row["sample_rate"], row["num_channels"], row["duration"]) == (48_000, 1, 1.0)
    assert ["strict_sample_rate=False" in record.error for record in result.quarantined()] == [True]
    run(
        [
            ManifestReader(source),
            MonoConversionStage(strict_sample_rate=False),
            ManifestWriterStage(tmp_path / "2.jsonl"),
        ]
    )
    assert [row["sample_rate"] for row in read_manifest_file(tmp_path / "2.jsonl")] == [48_000, 48_000]


def test_recordings_are_resampled_in_memory_or_to_files(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(tone(1.0, 48_000, channels=2), 48_000))
    source = write_manifest_file(tmp_path / "in.jsonl", [{"audio_filepath": "a.wav", "offset": 0.25, "duration": 0.5}])
    out = tmp_path / "out.jsonl"
    run(
        [ManifestReader(source), ResampleAudioStage(tmp_path / "files", target_format="flac"), ManifestWriterStage(out)]
    )
    [row] = read_manifest_file(out)
    sound = decode_audio(row["audio_filepath"])
    assert row["audio_filepath"].endswith(".flac")
    assert (row["original_file"], row["original_offset"]) == (str(tmp_path / "a.wav"), 0.25)
    assert (sound.rate, sound.samples.shape) == (16_000, (8000, 1))
    [same] = heard(only(ResampleAudioStage(target_sample_rate=16_000).decompose()[0], batch(tone(1.0))))
    assert np.allclose(same.samples, tone(1.0))


@pytest.mark.parametrize("level", [0.01, 0.1, 0.9])
def test_loudness_is_made_equal(level: float) -> None:
    louder = only(NormalizeLoudnessStage(-26.0), batch(noise(3.0, level=level / 4)))
    [row] = AudioScore(AudioLoudnessFilter(None, None), "lufs").process(louder).to_rows()
    assert row["lufs"] == pytest.approx(-26.0, abs=0.1)


def test_peaks_stay_below_their_limit() -> None:
    spike = noise(2.0, level=0.001)
    spike[100] = 0.5
    [sound] = heard(only(NormalizeLoudnessStage(-10.0, max_peak_db=-6.0), batch(spike)))
    assert np.abs(sound.samples).max() == pytest.approx(10 ** (-6 / 20), rel=1e-3)


def test_silence_is_cut_off_both_ends() -> None:
    silence = np.zeros((RATE, 1), np.float32)
    samples = np.concatenate([silence, tone(1.0), silence, tone(0.5), silence])
    trimmed = only(TrimSilenceStage(keep_seconds=0.05), batch(samples))
    [row] = trimmed.data.drop_columns(["audio"]).to_pylist()
    assert (row["offset"], row["duration"]) == pytest.approx((0.95, 2.6), abs=0.02)
    again = only(TrimSilenceStage(keep_seconds=0.0), trimmed).data.drop_columns(["audio"]).to_pylist()[0]
    assert (again["offset"], again["duration"]) == pytest.approx((1.0, 2.5), abs=0.02)


def test_long_recordings_are_cut_where_it_is_quiet_and_joined_again() -> None:
    loud, quiet = tone(4.0), np.zeros((RATE, 1), np.float32)
    samples = np.concatenate([loud, quiet, loud, quiet, loud, quiet, loud])
    rows = batch(samples, text="x")
    cut = SplitLongAudioStage(suggested_max_len=11.0, min_len=1.0).process(rows)
    segments = cut.data.drop_columns(["audio"]).to_pylist()
    ends = [round(one["offset"] + one["duration"], 2) for one in segments]
    assert [one["split_index"] for one in segments] == [0, 1]
    assert 9.0 < ends[0] < 10.0
    assert ends[-1] == 19.0
    pieces = [sound.samples for sound in heard(cut)]
    assert np.array_equal(np.concatenate(pieces), samples)
    cut = cut.with_column("pred_text", cut.data.column("split_id").combine_chunks().cast("string"))
    [row] = only(JoinSplitAudioMetadataStage(), cut).data.drop_columns(["audio"]).to_pylist()
    assert (row["offset"], row["duration"], row["text"]) == (0.0, 19.0, "x x")
    assert len(row["pred_text"].split(" ")) == 2


@pytest.mark.parametrize(("seconds", "longest"), [(100.0, 7.0), (61.0, 60.0), (3.0, 60.0), (60.5, 60.0)])
def test_segments_cover_everything_and_none_is_too_long(seconds: float, longest: float) -> None:
    rows = SplitLongAudioStage(longest, 1.0).process(batch(noise(seconds, 8000), 8000)).data
    starts, lengths = rows.column("offset").to_pylist(), rows.column("duration").to_pylist()
    assert max(lengths) <= longest + 1e-6
    assert min(lengths) >= 1.0
    assert starts[0] == 0
    assert sum(lengths) == pytest.approx(seconds)
    for start, length, following in zip(starts, lengths, starts[1:], strict=False):
        assert start + length == pytest.approx(following)


def test_joined_segments_map_back_exactly(tmp_path: Path) -> None:
    for name, hertz in (("a", 300), ("b", 500)):
        (tmp_path / f"{name}.wav").write_bytes(wav(tone(10.0, hertz=hertz)))
    given = [
        {"audio_filepath": "a.wav", "offset": 1.0, "duration": 2.0, "speaker": "x"},
        {"audio_filepath": "a.wav", "offset": 5.5, "duration": 1.25, "speaker": "x"},
        {"audio_filepath": "b.wav", "offset": 0.0, "duration": 3.0, "speaker": "y"},
    ]
    source = write_manifest_file(tmp_path / "in.jsonl", given)
    joined = tmp_path / "joined.jsonl"
    run([ManifestReader(source), SegmentConcatenationStage(0.5), ManifestWriterStage(joined)])
    first, second = read_manifest_file(joined)
    assert (first["duration"], second["duration"]) == (3.75, 3.0)
    back = tmp_path / "back.jsonl"
    mapped = [SegmentConcatenationStage(0.5), TimestampMapperStage()]
    run([ManifestReader(source), *mapped, ManifestWriterStage(back)])
    rows = read_manifest_file(back)
    times = [(Path(row["original_file"]).stem, row["original_start"], row["original_end"]) for row in rows]
    assert times == [("a", 1.0, 3.0), ("a", 5.5, 6.75), ("b", 0.0, 3.0)]
    assert [row["original_end_ms"] for row in rows] == [3000, 6750, 3000]
    assert [row["speaker"] for row in rows] == ["x", "x", "y"]


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [(0.5, 1.0, [(1.5, 2.5)]), (1.5, 1.5, [(2.5, 3.0), (5.5, 6.0)]), (2.1, 0.3, []), (2.5, 9.0, [(5.5, 6.75)])],
)
def test_a_part_of_joined_sound_maps_to_the_parts_of_the_original(
    start: float, length: float, expected: list[tuple[float, float]]
) -> None:
    mapping = [
        {"original_file": "a.wav", "original_start": 1.0, "original_end": 3.0, "start": 0.0, "end": 2.0},
        {"original_file": "a.wav", "original_start": 5.5, "original_end": 6.75, "start": 2.5, "end": 3.75},
    ]
    rows = AudioBatch([{"audio_filepath": "a.wav", "offset": start, "duration": length, "segment_mapping": mapping}])
    found = TimestampMapperStage().process(rows).to_rows()
    times = [(row["original_start"], row["original_end"]) for row in found]
    assert np.allclose(np.array(times), np.array(expected))


@pytest.mark.parametrize(
    "make",
    [
        lambda: MonoConversionStage(0),
        lambda: ResampleAudioStage(target_sample_rate=1),
        lambda: ResampleAudioStage("x", target_format="mp4"),
        lambda: NormalizeLoudnessStage(5.0),
        lambda: TrimSilenceStage(1.0),
        lambda: SplitLongAudioStage(1.0, 5.0),
        lambda: SegmentConcatenationStage(-1.0),
    ],
)
def test_wrong_parameters_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()
