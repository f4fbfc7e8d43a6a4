"""Recordings and films that are fuzzed. What FFmpeg makes of damaged bytes must not end the process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from gristmill.audio import (
    AudioDirectoryReader,
    AudioFingerprintStage,
    AudioLoudnessFilter,
    AudioScoreFilter,
    AudioSilenceFilter,
    KaldiReader,
    LhotseCutsReader,
    ManifestReader,
    ManifestWriterStage,
)
from gristmill.video import MotionFilterStage, MotionVectorDecodeStage, VideoBlackFilter, VideoReader, VideoScoreFilter
from tests.audio.sound_fixtures import encoded, tone, wav
from tests.video.film_fixtures import film

Run = Callable[[Sequence[Any], Path], tuple[int, int]]


def _sounds(form: str) -> Callable[[Path], list[bytes]]:
    def made(_: Path) -> list[bytes]:
        samples = tone(0.4, 16_000, channels=2)
        if form == "m4a":
            return [encoded(samples, 16_000, "mp4", "aac")]
        if form == "wav":
            kinds = ("PCM_16", "PCM_24", "FLOAT", "MS_ADPCM", "ULAW")
            return [wav(samples, 16_000, kind) for kind in kinds]
        return [wav(samples, 16_000, "PCM_16", form.upper())]

    return made


def _films(**options: Any) -> Callable[[Path], list[bytes]]:
    return lambda _: [film(count=12, size=(48, 32), **options)]


def _listen(run: Run, path: Path, folder: Path) -> tuple[int, int]:
    tools = [AudioLoudnessFilter(None, None), AudioSilenceFilter()]
    reader = AudioDirectoryReader(str(path))
    stages = [reader, AudioScoreFilter(tools), AudioFingerprintStage(), ManifestWriterStage(str(folder / "out"))]
    return run(stages, folder / "out")


def _listed(run: Run, reader: Callable[..., Any], path: Path, folder: Path) -> tuple[int, int]:
    stages = [reader(str(path)), AudioScoreFilter(AudioSilenceFilter()), ManifestWriterStage(str(folder / "out"))]
    return run(stages, folder / "out")


def _watch(run: Run, path: Path, folder: Path) -> tuple[int, int]:
    motion = [MotionVectorDecodeStage(), MotionFilterStage()]
    return run([VideoReader(str(path)), VideoScoreFilter(VideoBlackFilter()), *motion], folder / "out")


def _manifests(folder: Path) -> list[bytes]:
    (folder / "a.wav").write_bytes(wav(tone(0.3)))
    row = {"audio_filepath": str(folder / "a.wav"), "duration": 0.3, "offset": 0.1, "text": "words é"}
    return [orjson.dumps(row) + b"\n" + orjson.dumps({**row, "offset": None, "n": [1, {"a": 2}]}) + b"\n"]


def _cuts(folder: Path) -> list[bytes]:
    (folder / "a.wav").write_bytes(wav(tone(0.3)))
    source = {"type": "file", "channels": [0], "source": str(folder / "a.wav")}
    recording = {"id": "r", "sources": [source], "sampling_rate": 16_000, "num_samples": 4800, "duration": 0.3}
    said = {"id": "s", "recording_id": "r", "start": 0.0, "duration": 0.2, "channel": 0, "text": "words"}
    cut = {"id": "c", "start": 0.0, "duration": 0.2, "channel": 0, "recording": recording, "supervisions": [said]}
    return [orjson.dumps({**cut, "type": "MonoCut"}) + b"\n"]


def _scripts(folder: Path) -> list[bytes]:
    (folder / "a.wav").write_bytes(wav(tone(0.3)))
    return [f"a {folder}/a.wav\nb sox {folder}/a.wav -t wav - |\n".encode()]


def media_targets(make: Callable[..., Any], run: Run) -> list[Any]:
    """The targets, each made by `make(name, suffix, corpus, check)`; `run` runs a pipeline."""
    sounds = [make(form, f".{form}", _sounds(form), partial(_listen, run)) for form in ("wav", "flac", "mp3", "ogg")]
    films = {
        "mp4": {"sound": True, "b_frames": 2},
        "mkv": {"container": "mkv", "codec": "mpeg4"},
        "ts": {"container": "ts"},
        "webm": {"container": "webm", "codec": "libvpx"},
        "avi": {"container": "avi", "codec": "mpeg4"},
    }
    return [
        *sounds,
        make("m4a", ".m4a", _sounds("m4a"), partial(_listen, run)),
        make("manifest", ".jsonl", _manifests, partial(_listed, run, ManifestReader)),
        make("cuts", ".jsonl", _cuts, partial(_listed, run, LhotseCutsReader)),
        make(
            "kaldi", ".scp", lambda _: [b"a /tmp/a.wav\nb sox a.wav -t wav - |\n"], partial(_listed, run, KaldiReader)
        ),
        *(make(form, f".{form}", _films(**options), partial(_watch, run)) for form, options in films.items()),
    ]
