"""Encoders, and the wishes for a transcoding. Which encoders there are depends on the FFmpeg that PyAV brings.

One thread to each encoder: the bytes are then the same in every run with the same library version, and several clips
are encoded side by side by several workers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from gristmill.core.errors import PlanError, require
from gristmill.samples.argument_checks import check_choice

X264, OPENH264, VP9, AV1, NVENC, X265 = ENCODERS = (
    "libx264", "libopenh264", "libvpx-vp9", "libsvtav1", "h264_nvenc", "libx265"
)  # fmt: skip

CODEC_NAMES = {X264: "h264", OPENH264: "h264", VP9: "vp9", AV1: "av1", NVENC: "h264", X265: "hevc"}
"""What each encoder writes."""

AUTO, COPY, SMART, ENCODE = CUTS = ("auto", "copy", "smart", "encode")

_OPTIONS: Mapping[str, Mapping[str, str]] = {
    X264: {"preset": "veryfast", "crf": "23"},
    OPENH264: {},
    VP9: {"deadline": "realtime", "cpu-used": "8", "crf": "33", "b": "0", "row-mt": "0"},
    AV1: {"preset": "10", "crf": "35", "svtav1-params": "lp=1"},
    NVENC: {"preset": "p4", "rc": "vbr", "cq": "23"},
    X265: {"preset": "veryfast", "crf": "28", "x265-params": "log-level=none:pools=1:frame-threads=1"},
}


@dataclass(frozen=True)
class TranscodeSettings:
    """How clips are made of films.

    `cut`   "copy": packets are copied, and the clip begins at the last key frame at or before its start. "smart":
            copied but for the frames up to the first key frame and at the end, which are encoded again (H.264).
            "encode": all frames are encoded. "auto": copied if that gives exactly the frames of the clip, else smart,
            else encoded.
    """

    cut: str = AUTO
    encoder: str = X264
    options: tuple[tuple[str, str], ...] = ()
    """Options of the encoder, in place of the usual ones of the same names."""
    sound: bool = True
    use_input_bit_rate: bool = False
    height: int | None = None
    """Of encoded pictures; nothing is enlarged. None: as they are."""

    def encoder_options(self) -> dict[str, str]:
        return {**_OPTIONS.get(self.encoder, {}), **dict(self.options), "threads": "1"}

    def to_text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str | None) -> TranscodeSettings:
        if not text:
            return cls()
        values = json.loads(text)
        values["options"] = tuple((name, value) for name, value in values.get("options") or ())
        return cls(**values)

    def check(self, stage: str) -> None:
        """Raise if these wishes cannot be met."""
        check_choice(stage, "cut", self.cut, CUTS)
        check_choice(stage, "encoder", self.encoder, ENCODERS)
        if self.height is not None and (isinstance(self.height, bool) or self.height < 16):
            raise ValueError(f"{stage}: height is {self.height!r}, must be 16 or more, or None")


@cache
def encoder_problem(name: str) -> str | None:
    """Why an encoder cannot be used here; None if it can."""
    av = require("av", "video", "videos")
    os.environ.setdefault("SVT_LOG", "1")  # or it prints its settings for each clip
    try:
        context = av.CodecContext.create(name, "w")
    except (av.error.FFmpegError, ValueError):
        return "the FFmpeg of PyAV was built without it"
    from fractions import Fraction

    context.width, context.height, context.pix_fmt, context.time_base = 256, 256, "yuv420p", Fraction(1, 24)
    try:
        context.open()
    except (av.error.FFmpegError, ValueError, OSError) as error:
        return f"it cannot be opened: {error}"
    return None


def check_encoder(stage: str, name: str) -> None:
    """Raise a PlanError that says which encoders there are, if this one is not."""
    problem = encoder_problem(name)
    if problem is not None:
        there = [other for other in ENCODERS if encoder_problem(other) is None]
        raise PlanError(f"{stage}: encoder {name!r} is not there: {problem}. There are: {', '.join(there)}")


def set_up_encoder(stream: Any, settings: TranscodeSettings, bit_rate: int | None) -> None:
    """The settings that are not options of the codec."""
    context = stream.codec_context
    context.thread_count = 1
    context.pix_fmt = "yuv420p"
    if settings.use_input_bit_rate and bit_rate:
        context.bit_rate = bit_rate
    elif settings.encoder == OPENH264:
        context.bit_rate = max(context.width * context.height * 4, 200_000)
