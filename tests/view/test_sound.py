"""Recordings in the pages and in the report: players, waveforms with segments and words, spectrograms."""

from __future__ import annotations

import base64
import io
import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import soundfile
from PIL import Image

from gristmill import LocalExecutor, Pipeline
from gristmill.audio import (
    AudioBatch,
    AudioClippingFilter,
    AudioScoreFilter,
    ManifestReader,
    ManifestWriterStage,
    decode_audio,
)
from gristmill.audio.sound.sound_preview import grey_png, sound_preview, waveform
from gristmill.text import JsonlReader, JsonlWriter
from gristmill.view.data.sound_marks import SoundMark, own_segment, sound_marks
from gristmill.view.pages.sound_picture import sound_picture
from gristmill.view.server import View

SVG = "{http://www.w3.org/2000/svg}"
RATE = 16_000


def tone(seconds: float, level: float = 0.5, frequency: float = 1000.0) -> Any:
    return (level * np.sin(2 * np.pi * frequency * np.arange(int(seconds * RATE)) / RATE)).astype(np.float32)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    soundfile.write(folder / "good.wav", tone(3.0), RATE)
    soundfile.write(folder / "loud.wav", np.clip(9 * tone(2.0), -1, 1), RATE)
    (folder / "bad.wav").write_bytes(b"no sound at all")
    words = [{"word": "<b>", "start": 1.1, "end": 1.4}, {"word": "two", "start": 1.5, "end": 1.9}]
    rows = [
        {"audio_filepath": "good.wav", "offset": 1.0, "duration": 1.5, "text": "one two", "asr": {"words": words},
         "segments": [{"start": 0.0, "end": 1.0, "speaker": "speaker_0"}, {"start": 1.2, "end": 3, "speaker": "b"}]},
        {"audio_filepath": "loud.wav", "text": "too loud"},
        {"audio_filepath": "bad.wav", "text": "nothing"},
    ]  # fmt: skip
    (folder / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    stages = [ManifestReader(str(folder / "in.jsonl")), AudioScoreFilter(AudioClippingFilter(0.01), "clipped")]
    stages.append(ManifestWriterStage(str(folder / "out.jsonl")))
    Pipeline("speech", stages=stages).run(LocalExecutor(num_workers=0), max_errors=1, rejected=True)
    return folder


def fetched(url: str, **headers: str) -> tuple[int, bytes, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


def test_a_row_is_played_and_shows_its_waveform_with_marks(run: Path) -> None:
    with View(str(run / "out.jsonl"), follow_paths=True) as view:
        page = fetched(f"{view.url}row?in=rows&n=0")[1].decode()
        player = re.search(r'<audio src="(media\?[^"#]+)#t=1.000,2.500"', page)
        assert player
        picture = re.search(r'<img src="(waveform\?[^"]+)"', page)
        assert picture
        status, part, headers = fetched(view.url + player[1].replace("&amp;", "&"), Range="bytes=4-7")
        assert (status, len(part), headers["Content-Type"]) == (206, 4, "audio/wav")
        status, body, headers = fetched(view.url + picture[1].replace("&amp;", "&"))
        assert (status, headers["Content-Type"]) == (200, "image/svg+xml")
        drawn = ET.fromstring(body)
        titles = [one.text for one in drawn.iter(f"{SVG}title")]
        assert titles == ["1.10-1.40 s <b>", "1.50-1.90 s two", "0.00-1.00 s speaker_0", "1.20-3.00 s b"]
        own = drawn.find(f"{SVG}rect[@class='own']")
        assert own is not None
        assert float(own.get("x", "")) == pytest.approx(1000 / 3, abs=0.1)
        assert fetched(f"{view.url}waveform?in=rows&n=0&column=text")[0] == 404


def test_the_report_plays_what_was_kept_dropped_and_why(run: Path) -> None:
    page = (run / "out.jsonl.run" / "report.html").read_text()
    pictures = re.findall(r'<img src="data:image/png;base64,([^"]+)"', page)
    players = re.findall(r'<audio controls preload=none src="data:audio/ogg;base64,([^"]+)"', page)
    assert len(pictures) == len(players) >= 2
    assert "img-src data:; media-src data:" in page
    seconds = {round(decode_audio(base64.b64decode(one)).seconds, 1) for one in players}
    assert seconds == {1.5, 2.0}
    assert {Image.open(io.BytesIO(base64.b64decode(one))).size[1] for one in pictures} == {64}
    facts = (run / "out.jsonl.run" / "report.json").read_text()
    assert "base64" not in facts


def test_reports_of_text_open_no_recordings(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "private.wav", tone(1.0), RATE)
    (tmp_path / "in.jsonl").write_text(
        json.dumps({"text": "a", "audio_filepath": str(tmp_path / "private.wav")}) + "\n"
    )
    stages = [JsonlReader(str(tmp_path / "in.jsonl")), JsonlWriter(str(tmp_path / "out"))]
    Pipeline("text", stages=stages).run(LocalExecutor(num_workers=0), report=str(tmp_path))
    page = (tmp_path / "report.html").read_text()
    assert "private.wav" in page
    assert "<audio" not in page


def test_a_preview_shows_where_the_sound_is() -> None:
    seen = sound_preview([tone(4.0, 0.5, 3000), np.zeros(4 * RATE, np.float32)])
    assert seen.seconds == 6.0
    assert len(seen.player) < 20_000
    pixels = np.array(Image.open(io.BytesIO(seen.picture)))
    assert pixels.shape == (64, 240)
    assert pixels[:, :155].max(axis=0).min() > 200
    assert pixels[:, 165:].max() == 0
    assert np.ptp(pixels[:, 50].argmax()) == 0
    assert np.array_equal(np.array(Image.open(io.BytesIO(grey_png(pixels)))), pixels)


def test_a_waveform_has_the_extremes_of_each_stretch() -> None:
    sound = np.zeros((2 * RATE, 2), np.float32)
    sound[RATE // 2] = 1.0
    sound[3 * RATE // 2] = -0.5
    blocks = [sound[:1000], sound[1000:20_001], sound[20_001:]]
    found = waveform(blocks, RATE, 4, 60.0)
    assert found.highs.tolist() == [0, 1, 0, 0]
    assert found.lows.tolist() == [0, 0, 0, -0.5]
    assert found.seconds == 2.0
    assert waveform([sound], RATE, 4, 1.0).seconds == 1.0
    assert sound_picture(found, None, {"a": [SoundMark(0, 9, "x" * 300)]}).startswith("<svg")


def test_marks_are_lists_of_times() -> None:
    row = {
        "offset": 1, "duration": 2.5, "notes": ["a"], "odd": [{"start": "x", "end": 2}],
        "sed_events": [{"class": "dog", "start_time": 1, "end_time": 2}],
        "segments": [{"start": 0, "end": 1, "words": [{"word": "hi", "start": 0.1, "end": 0.2}]}],
    }  # fmt: skip
    assert own_segment(row) == (1.0, 3.5)
    assert own_segment({"duration": 2.0}) is None
    assert sound_marks(row) == {
        "sed_events": [SoundMark(1.0, 2.0, "dog")],
        "segments": [SoundMark(0.0, 1.0, "")],
        "segments.words": [SoundMark(0.1, 0.2, "hi")],
    }
    assert sound_marks(AudioBatch([{"a": 1}]).to_rows()[0]) == {}
