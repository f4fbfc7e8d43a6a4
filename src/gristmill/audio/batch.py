"""The batch of recordings, and the names of its columns.

    audio_filepath  string         the file, or the member of an archive; a path or a URL
    offset          float          seconds from the beginning of the file at which the segment begins; null: no segment
    duration        float          seconds
    text            string         what is said
    audio           large_binary   the encoded recording, for rows that did not come from a file of their own

All other columns are those of the manifest. A row with `offset` is the part of its file, or of its bytes, that begins
there and lasts `duration` seconds: cutting changes two numbers, and no sound is copied.
"""

from __future__ import annotations

from typing import Any

from gristmill.audio.sound.audio_format import EXTENSIONS, audio_format
from gristmill.samples.batch import BadSample, SampleBatch

AUDIO, AUDIO_ID = "audio", "audio_id"
AUDIO_FILEPATH, OFFSET, DURATION, TEXT = "audio_filepath", "offset", "duration", "text"
SAMPLE_RATE, NUM_CHANNELS = "sample_rate", "num_channels"

DECODED = "decoded"
"""How the names of decoded objects begin (`samples/decode.py`)."""


class AudioBatch(SampleBatch):
    """Recordings, one per row: files, members of archives, or segments of either.

    Decoded waveforms are objects of the rows (`waveforms.py`). They are not sent to other processes, and never reach
    disk: a stage that changes a waveform changes the bytes in `audio`.
    """

    sample_name = "recording"
    id_column = AUDIO_ID
    encoded_column = AUDIO
    decoded_objects = (DECODED,)
    formats = EXTENSIONS
    format_of = staticmethod(audio_format)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        objects = state["objects"].items()
        state["objects"] = {name: values for name, values in objects if not name.startswith(self.decoded_objects)}
        return state


class BadAudio(BadSample):
    """A recording that cannot be decoded, and why. The row is set aside."""
