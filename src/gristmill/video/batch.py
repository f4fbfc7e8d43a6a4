"""The batch of videos and clips, and the names of its columns.

    video_id     string         the name of the video, without its extension
    source       string         the file, a path or a URL; of a member of an archive, the archive
    byte_offset  int64          where the video begins in its file, and how many bytes it has;
    byte_size    int64            null: it is the whole file
    video        large_binary   the encoded video, for rows that have no file
    start_pts    int64          the span of a clip, in units of `time_base`: frames from `start_pts` up to, and without,
    end_pts      int64            `end_pts`
    time_base    string         seconds in a unit, as in "1/12800"
    start, end   float          the span in seconds from the first frame of the video
    clip_id      string         names a clip; null for a row that is a whole video

A clip is virtual: a span of a video. Nothing is cut or encoded until a writer wants it.
"""

from __future__ import annotations

from typing import Any

from gristmill.samples.batch import BadSample, SampleBatch
from gristmill.video.container.video_format import EXTENSIONS, video_format

VIDEO, VIDEO_ID, SOURCE = "video", "video_id", "source"
BYTE_OFFSET, BYTE_SIZE = "byte_offset", "byte_size"
START_PTS, END_PTS, TIME_BASE = "start_pts", "end_pts", "time_base"
START, END, CLIP_ID = "start", "end", "clip_id"
PREVIEW = "preview"
"""The column of animated previews."""

DECODED = "decoded"
"""How the names of decoded objects begin (`samples/decode.py`)."""


class VideoBatch(SampleBatch):
    """Videos, or clips of videos, one per row.

    Decoded frames are objects of the rows. They are not sent to other processes, and never reach disk.
    """

    sample_name = "video"
    id_column = VIDEO_ID
    id_columns, part_column = ("id", VIDEO_ID), CLIP_ID
    encoded_column = VIDEO
    decoded_objects = (DECODED,)
    formats = EXTENSIONS
    format_of = staticmethod(video_format)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        objects = state["objects"].items()
        state["objects"] = {name: values for name, values in objects if not name.startswith(self.decoded_objects)}
        return state


class BadVideo(BadSample):
    """A video that cannot be decoded, and why. The row is set aside."""
