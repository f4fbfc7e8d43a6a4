"""Decoding: every format, segments of it, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gristmill.audio import BadAudio, audio_header, decode_audio
from tests.audio.sound_fixtures import RATE, encoded, tone, wav

STEREO = tone(3.0, 48_000, channels=2)

CASES = {
    "wav": (wav(STEREO, 48_000), "wav", 1e-4),
    "wav of floats": (wav(STEREO, 48_000, "FLOAT"), "wav", 1e-7),
    "wav of 24 bits": (wav(STEREO, 48_000, "PCM_24"), "wav", 1e-6),
    "flac": (wav(STEREO, 48_000, form="FLAC"), "flac", 1e-4),
    "mp3": (wav(STEREO, 48_000, form="MP3"), "mp3", 0.05),
    "vorbis": (wav(STEREO, 48_000, form="OGG"), "ogg", 0.1),
    "aiff": (wav(STEREO, 48_000, form="AIFF"), "aiff", 1e-4),
    "opus": (encoded(STEREO, 48_000, "ogg", "libopus"), "ogg", 0.1),
    "m4a": (encoded(STEREO, 48_000, "mp4", "aac"), "m4a", 0.1),
    "webm": (encoded(STEREO, 48_000, "webm", "libopus"), "webm", 0.1),
    "adts": (encoded(STEREO, 48_000, "adts", "aac"), "aac", None),
    "a video": (encoded(STEREO, 48_000, "mp4", "aac", video=True), "m4a", 0.1),
}


@pytest.mark.parametrize("case", CASES)
def test_every_format_is_decoded(case: str) -> None:
    data, kind, tolerance = CASES[case]
    header = audio_header(data)
    assert (header.format, header.rate, header.channels) == (kind, 48_000, 2)
    if tolerance is not None:
        assert header.seconds == pytest.approx(3.0, abs=0.06)
    sound = decode_audio(data)
    assert sound.rate == 48_000
    assert sound.samples.dtype == np.float32
    assert not sound.samples.flags.writeable
    assert sound.seconds == pytest.approx(3.0, abs=0.06)
    if tolerance is not None:
        middle = slice(48_000, 96_000)
        assert np.abs(sound.samples[middle] - STEREO[middle]).mean() < tolerance


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("offset", "duration"), [(0.0, 0.5), (1.25, 0.5), (2.0, 0.75)])
def test_a_segment_is_what_the_whole_has_there(case: str, offset: float, duration: float) -> None:
    data, _, _ = CASES[case]
    part, whole = decode_audio(data, offset, duration), decode_audio(data)
    start = round(offset * 48_000)
    assert len(part.samples) == round(duration * 48_000)
    shifts = range(-400, 401) if case == "webm" else [0]  # FFmpeg is some milliseconds off after a seek in one
    errors = [np.abs(part.samples - whole.samples[max(start + by, 0) :][: len(part.samples)]).max() for by in shifts]
    assert min(errors) < 2e-3


def test_a_path_and_a_url_are_opened(tmp_path: Any) -> None:
    import fsspec

    (tmp_path / "a.wav").write_bytes(wav(tone(1.0)))
    with fsspec.open("memory://decode/a.wav", "wb") as file:
        file.write(wav(tone(1.0)))
    local, remote = decode_audio(str(tmp_path / "a.wav")), decode_audio("memory://decode/a.wav")
    assert np.array_equal(local.samples, remote.samples)


def test_mono_and_another_rate_are_made_while_reading() -> None:
    sound = decode_audio(CASES["wav"][0], rate=RATE, mono=True)
    assert (sound.rate, sound.samples.shape) == (RATE, (3 * RATE, 1))
    expected = (tone(3.0) + tone(3.0, hertz=880.0)) / 2
    assert np.abs(sound.samples - expected)[1000:-1000].max() < 2e-3


SHORT = wav(tone(2.0))
BROKEN = {
    "no bytes": (b"", None, "no bytes"),
    "text": (b"this is not sound at all", None, "not a recording in a format that is known: it begins with b'this"),
    "no samples": (wav(tone(0.0)), None, "no samples"),
    "NaN": (wav(np.full((100, 1), np.nan, np.float32), subtype="FLOAT"), None, "no numbers"),
    "cut wav": (SHORT[:20_044], None, "cut short: the wav header says 64,044 bytes, and there are only 20,044"),
    "cut mp3": (
        wav(tone(4.0), form="MP3")[:5_000],
        None,
        "cut short: the mp3 header says 5,868 bytes, and there are only 5,000",
    ),
    "cut flac": (wav(tone(4.0), form="FLAC")[:5_000], None, "damaged|cut short|only"),
    "offset past the end": (SHORT, (5.0, 1.0), "begins at 5 s, and the recording ends at 2.000 s"),
    "segment past the end": (SHORT, (1.0, 9.0), "the segment has 9.000 s, and there are only 1.000 s"),
    "negative offset": (SHORT, (-1.0, 1.0), "is none"),
    "no duration": (SHORT, (1.0, 0.0), "is none"),
    "a playlist": (b"#EXTM3U\n#EXTINF:9,\nfile:///etc/passwd\n", None, "not a recording"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_decoded_says_why(case: str) -> None:
    data, segment, message = BROKEN[case]
    with pytest.raises(BadAudio, match=message):
        decode_audio(data, *(segment or ()))


def test_a_missing_file_says_so(tmp_path: Any) -> None:
    with pytest.raises(BadAudio, match="cannot be opened"):
        decode_audio(str(tmp_path / "none.wav"))
