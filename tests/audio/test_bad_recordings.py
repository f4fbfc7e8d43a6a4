"""Bad input: each kind goes to quarantine with its file and the reason, and the rest goes on."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gristmill.audio import (
    AudioBatch,
    AudioLoudnessFilter,
    AudioScore,
    AudioScoreFilter,
    AudioSNRFilter,
    AudioWebDatasetWriter,
    GetAudioDurationStage,
    ManifestReader,
    ManifestWriterStage,
    SegmentExtractionStage,
    WaveformStage,
)
from gristmill.audio.batch import BadAudio
from gristmill.audio.decode import audio_header
from tests.audio.sound_fixtures import encoded, noise, read_manifest_file, tone, wav, write_manifest_file
from tests.audio.test_manifest import run


def silent_video() -> bytes:
    import io

    import av

    data = io.BytesIO()
    with av.open(data, "w", format="mp4") as out:
        stream = out.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 16
        stream.pix_fmt = "yuv420p"
        picture = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")
        out.mux(stream.encode(picture))
        out.mux(stream.encode(None))
    return data.getvalue()


def header_that_lies() -> bytes:
    data = bytearray(wav(tone(1.0)))
    struct.pack_into("<I", data, 40, 50_000_000)
    return bytes(data)


GOOD = wav(tone(1.0))
ROWS: list[tuple[str, bytes | None, dict[str, Any], str | None]] = [
    ("good.wav", GOOD, {}, None),
    ("cut.mp3", wav(tone(8.0), form="MP3")[:6000], {}, "cut short: the mp3 header"),
    ("lies.wav", header_that_lies(), {}, "cut short: the wav header says 50,000,044 bytes"),
    ("cut.m4a", encoded(tone(3.0, 48_000), 48_000, "mp4", "aac")[:2000], {}, "a m4a that cannot be read"),
    ("nothing.wav", wav(tone(0.0)), {}, "no samples"),
    ("empty.wav", b"", {}, "no bytes"),
    ("nan.wav", wav(np.full((9000, 1), np.nan, np.float32), subtype="FLOAT"), {}, "NaN"),
    ("fast.wav", wav(tone(1.0, 192_000), 192_000), {}, None),
    ("many.wav", wav(noise(1.0).repeat(32, axis=1)), {}, None),
    ("text.wav", b"these are words, and no sound at all", {}, "not a recording in a format that is known"),
    ("silent.mp4", silent_video(), {}, "a m4a without sound"),
    ("gone.wav", None, {}, "the file cannot be opened"),
    ("late.wav", GOOD, {"offset": 5.0, "duration": 1.0}, "begins at 5 s, and the recording ends at 1.000 s"),
    ("over.wav", GOOD, {"offset": 0.5, "duration": 9.0}, "the segment has 9.000 s, and there are only 0.500 s"),
    ("back.wav", GOOD, {"offset": -1.0, "duration": 1.0}, "is none"),
    ("word.wav", GOOD, {"offset": "soon", "duration": 1.0}, "offset is 'soon', must be a number of seconds"),
    ("last.wav", GOOD, {}, None),
]


class Hear(WaveformStage):
    """Adds how long each recording was heard."""

    def process_waveforms(self, rows: AudioBatch, waveforms: Sequence[Any]) -> AudioBatch:
        return rows.with_column("heard", pa.array([len(one) / 16_000 for one in waveforms], pa.float64()))


STAGES: dict[str, Any] = {
    "heard": Hear,
    "filter": lambda: AudioScoreFilter([AudioSNRFilter(None), AudioLoudnessFilter(None, None)]),
    "score": lambda: AudioScore(AudioLoudnessFilter(), "lufs"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_bad_recordings_are_set_aside_and_the_others_go_on(tmp_path: Path, stage: str) -> None:
    source = bad_manifest(tmp_path)
    result = run([ManifestReader(source), STAGES[stage](), ManifestWriterStage(tmp_path / "out.jsonl")])
    left = [Path(row["audio_filepath"]).name for row in read_manifest_file(tmp_path / "out.jsonl")]
    assert left == [name for name, _, _, reason in ROWS if reason is None]
    check_reasons(result, [(name, reason) for name, _, _, reason in ROWS if reason])


def test_writers_set_bad_recordings_aside(tmp_path: Path) -> None:
    source = bad_manifest(tmp_path)
    result = run(
        [ManifestReader(source), SegmentExtractionStage(tmp_path / "wavs"), ManifestWriterStage(tmp_path / "o.jsonl")]
    )
    assert len(read_manifest_file(tmp_path / "o.jsonl")) == 4
    check_reasons(result, [(name, reason) for name, _, _, reason in ROWS if reason])
    run([ManifestReader(source), AudioWebDatasetWriter(tmp_path / "out", audio_format="flac")])
    assert len(list((tmp_path / "out").glob("*.tar"))) == 1


def bad_manifest(root: Path) -> str:
    for name, data, _, _ in ROWS:
        if data is not None:
            (root / name).write_bytes(data)
    lines = [{"audio_filepath": name, "offset": None, "duration": None, **more} for name, _, more, _ in ROWS]
    return write_manifest_file(root / "in.jsonl", [*lines, {"duration": 1.0, "text": "no path"}])


def check_reasons(result: Any, expected: Sequence[tuple[str, str]]) -> None:
    found = [record.error for record in result.quarantined()]
    assert len(found) == len(expected) + 1
    assert any("without audio_filepath" in error for error in found)
    for name, reason in expected:
        matching = [error for error in found if f"/{name}: " in error]
        assert len(matching) == 1, (name, found)
        assert reason in matching[0]


TEN_HOURS = r"""
import re, sys
from pathlib import Path
from gristmill.audio import AudioBatch, AudioLoudnessFilter, AudioScore, AudioSNRFilter, SplitLongAudioStage
path = sys.argv[1]
batch = AudioBatch([{"audio_filepath": path}])
[row] = AudioScore([AudioSNRFilter(None), AudioLoudnessFilter(None, None)], ["snr", "lufs"]).process(batch).to_rows()
cuts = SplitLongAudioStage(600.0).process(batch).num_items
print(round(row["lufs"]), cuts, int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


@pytest.mark.slow
def test_ten_hours_in_one_file_take_little_memory(tmp_path: Path) -> None:
    import soundfile

    path = tmp_path / "long.wav"
    minute = noise(60.0, 8000)
    with soundfile.SoundFile(path, "w", 8000, 1, "PCM_16") as file:
        for _ in range(600):
            file.write(minute)
    done = subprocess.run([sys.executable, "-c", TEN_HOURS, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    _, cuts, megabytes = map(int, done.stdout.split())
    assert cuts >= 60
    assert megabytes < 500


def test_a_recording_too_long_to_decode_as_a_whole_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import gristmill.audio.waveforms as waveforms

    monkeypatch.setattr(waveforms, "MAX_DECODED_BYTES", 1000)
    batch = AudioBatch([{"audio": GOOD}])
    [found] = waveforms.sounds(batch, max_bytes=1000)
    assert "SplitLongAudioStage" in str(found)
    assert GetAudioDurationStage().process(batch).to_rows()[0]["duration"] == 1.0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "169.254.169.254", "[::1]"])
def test_addresses_of_private_networks_are_not_fetched(tmp_path: Path, host: str) -> None:
    class Server(ThreadingHTTPServer):
        asked = 0

        def process_request(self, *_: Any) -> None:
            self.asked += 1

    with Server(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://{host}:{server.server_address[1]}/a.wav"
        with pytest.raises(BadAudio, match="is a host of a private network, and is not fetched for a row"):
            audio_header(url)
        server.shutdown()
        assert server.asked == 0
