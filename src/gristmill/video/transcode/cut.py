"""Cut clips out of a film: by copying packets, by encoding only the ends, or by encoding all frames.

`FilmCutter` keeps the film open for all of its clips, which are best asked for in the order of time. A clip is an mp4
in memory; its first frame is shown at 0. The bytes are the same in every run with the same version of PyAV.

The ends of a smart cut get parameter sets of their own, with other numbers than those of the film, within the stream:
every decoder of H.264 follows them, and what is copied is not touched.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gristmill.core.errors import require
from gristmill.video.batch import BadVideo
from gristmill.video.container.video_format import AVI, FLV, MKV, MP4
from gristmill.video.decode import DecodeLimits, check_limits
from gristmill.video.stream_info import OpenVideo, StreamInfo, open_video, reason_of
from gristmill.video.transcode.encoders import (
    AUTO,
    CODEC_NAMES,
    COPY,
    ENCODE,
    SMART,
    X264,
    TranscodeSettings,
    set_up_encoder,
)
from gristmill.video.transcode.packet_plan import PacketPlan, PacketTime, decoding_times, plan_packets

_COPIED_CODECS = frozenset({"h264", "hevc", "vp9", "av1", "libdav1d", "mpeg4", "mpeg2video"})
"""Codecs that are copied into mp4."""
_COPIED_SOUND = frozenset({"aac", "mp3", "mp3float", "ac3", "eac3", "opus", "libopus", "flac", "alac"})
_SEEKABLE = frozenset({MP4, MKV, AVI, FLV})
_SMART_FORMATS = frozenset({"yuv420p", "yuvj420p"})
_SMART_LEAST = 8
"""A smart cut must copy at least so many frames, or all are encoded."""
_SPS_NUMBER = 7
"""The number of the parameter sets of encoded ends; films nearly always use 0."""
_EXTRA_PACKETS = 64
_BACK_SECONDS = (0.0, 2.0, 8.0, 30.0)
_IDR = 5


@dataclass(frozen=True)
class CutClip:
    """A clip as a file."""

    data: bytes
    way: str
    """How it was made: "copy", "smart" or "encode"."""
    codec: str
    num_frames: int
    copied_frames: int
    start_pts: int
    end_pts: int
    """The span that it holds: with "copy" it may begin before its start."""


@dataclass
class _Packets:
    """The packets of a clip, in the order of decoding: from a key frame on until all of its frames are complete."""

    video: list[Any]
    audio: list[Any]

    def times(self) -> list[PacketTime]:
        return [PacketTime(one.pts, bool(one.is_keyframe)) for one in self.video]

    def add_picture(self, packet: Any, start: int, end: int) -> bool:
        """Take a packet, unless it is before the last key frame at or before `start`. Returns whether all before `end`
        are there."""
        if packet.is_keyframe and packet.pts <= start:
            self.video.clear()
        if self.video or packet.is_keyframe:
            self.video.append(packet)
        return bool((packet.dts if packet.dts is not None else packet.pts) >= end)


class FilmCutter:
    """Cuts clips out of one film."""

    def __init__(self, opened: OpenVideo) -> None:
        self.opened, self.info = opened, opened.info
        self._av = require("av", "video", "videos")
        sounds = opened.container.streams.audio
        self._sound = sounds[0] if sounds and sounds[0].codec_context is not None else None

    def cut(self, start: int, end: int, settings: TranscodeSettings, sound: bool = True) -> CutClip:
        """The clip from `start` up to, and without, `end`, in time stamps. Raises BadVideo."""
        try:
            packets = self._packets(start, end, sound and settings.sound)
            return self._made(packets, start, end, settings)
        except (self._av.error.FFmpegError, ValueError, OSError) as error:
            if isinstance(error, BadVideo):
                raise
            raise BadVideo(f"the clip cannot be cut: {reason_of(error)}") from error

    def _made(self, packets: _Packets, start: int, end: int, settings: TranscodeSettings) -> CutClip:
        times = packets.times()
        if not any(start <= one.pts < end for one in times):
            span = f"{self.info.seconds(start):.3f} s and {self.info.seconds(end):.3f} s"
            raise BadVideo(f"no frames between {span}: the film is shorter than its header says")
        copies = self.info.codec in _COPIED_CODECS and settings.height is None
        if settings.cut == COPY and copies:
            return self._copied(packets, *self._key_span(times, start, end), settings)
        if settings.cut != ENCODE and copies:
            plan = plan_packets(times, start, end)
            if plan is not None and settings.cut == AUTO and self._is_whole(plan, times, start, end):
                return self._copied(packets, start, end, settings, plan)
            if plan is not None and self._smart_is_possible(plan, packets):
                return self._smart(packets, plan, start, end, settings)
        return self._encoded(packets, start, end, settings)

    def _is_whole(self, plan: PacketPlan, times: Sequence[PacketTime], start: int, end: int) -> bool:
        """Whether copying gives all frames of the clip."""
        return plan.tail_pts == end and not any(start <= one.pts < plan.copy_pts for one in times)

    def _key_span(self, times: Sequence[PacketTime], start: int, end: int) -> tuple[int, int]:
        """The span from the last key frame at or before `start`."""
        before = [one.pts for one in times if one.keyframe and one.pts <= start]
        return (max(before) if before else min(one.pts for one in times)), end

    def _smart_is_possible(self, plan: PacketPlan, packets: _Packets) -> bool:
        info = self.info
        first = packets.video[plan.copied[0]]
        return (
            info.codec == "h264"
            and info.pixel_format in _SMART_FORMATS
            and not info.interlaced
            and info.width % 2 == info.height % 2 == 0
            and len(plan.copied) >= _SMART_LEAST
            and self._length_size() is not None
            and self._is_idr(first)
        )

    # -- reading ---------------------------------------------------------------------------------------

    def _packets(self, start: int, end: int, sound: bool) -> _Packets:
        """The packets of a clip."""
        for back in _BACK_SECONDS if self.info.format in _SEEKABLE else _BACK_SECONDS[1:]:
            self._go_to(start, back)
            found = self._read(start, end, sound)
            if found.video and found.video[0].pts <= start:
                return found
        self._go_to(start, None)
        return self._read(start, end, sound)

    def _go_to(self, start: int, back: float | None) -> None:
        """Seek to a key frame at least `back` seconds before `start`; None: to the beginning."""
        base = self.info.time_base
        first = self.info.start_pts - round(1 / base)
        target = first if back is None else max(start - round(Fraction(back) / base), first)
        self.opened.container.seek(target, stream=self.opened.stream, backward=True)

    def _read(self, start: int, end: int, sound: bool) -> _Packets:
        """Packets from here on: from the last key frame at or before `start`, until all frames before `end` are there,
        with the sound of the clip."""
        stream, audio = self.opened.stream, self._sound if sound else None
        begin, stop = (Fraction(pts) * stream.time_base for pts in (start, end))
        found = _Packets([], [])
        done, behind = False, 0
        for packet in self.opened.container.demux([stream] if audio is None else [stream, audio]):
            if packet.size == 0 or packet.pts is None:
                continue
            heard = packet.stream_index != stream.index and packet.pts * packet.time_base
            if heard is False:
                done = done or found.add_picture(packet, start, end)
            elif begin <= heard < stop:
                found.audio.append(packet)
            behind += done
            if done and (audio is None or behind > _EXTRA_PACKETS or (heard is not False and heard >= stop)):
                break
        return found

    # -- the three ways --------------------------------------------------------------------------------

    def _copied(
        self, packets: _Packets, start: int, end: int, settings: TranscodeSettings, plan: PacketPlan | None = None
    ) -> CutClip:
        chosen = (
            [packets.video[at] for at in plan.copied]
            if plan is not None
            else [one for one in packets.video if start <= one.pts < end]
        )
        pieces = [(bytes(one), one.pts, bool(one.is_keyframe)) for one in chosen]
        data = self._muxed(pieces, start, end, packets, settings)
        return CutClip(data, COPY, self._codec_name(), len(pieces), len(pieces), start, end)

    def _smart(self, packets: _Packets, plan: PacketPlan, start: int, end: int, settings: TranscodeSettings) -> CutClip:
        """The ends encoded, the rest copied."""
        first = plan.copied[0]
        head = [frame for frame in self._frames(packets.video[:first]) if start <= frame.pts < plan.copy_pts]
        tail = []
        if plan.tail_pts < end:
            keys = [at for at, one in enumerate(packets.video) if one.is_keyframe and one.pts <= plan.tail_pts]
            tail = [f for f in self._frames(packets.video[keys[-1] :]) if plan.tail_pts <= f.pts < end]
        pieces = self._encoded_end(head)
        pieces += [(bytes(one), one.pts, bool(one.is_keyframe)) for one in (packets.video[at] for at in plan.copied)]
        pieces += self._encoded_end(tail)
        data = self._muxed(pieces, start, end, packets, settings)
        return CutClip(data, SMART, self._codec_name(), len(pieces), len(plan.copied), start, end)

    def _encoded(self, packets: _Packets, start: int, end: int, settings: TranscodeSettings) -> CutClip:
        """All frames encoded."""
        info = self.info
        width, height = info.width, info.height
        if settings.height is not None and settings.height < min(info.display_size[1], info.height):
            width, height = round(width * settings.height / height), settings.height
        size = max(width // 2 * 2, 2), max(height // 2 * 2, 2)
        data = io.BytesIO()
        count = 0
        with self._writing(data) as out:
            stream = out.add_stream(settings.encoder, rate=info.fps or 25, options=settings.encoder_options())
            stream.width, stream.height = size
            set_up_encoder(stream, settings, info.bit_rate)
            stream.codec_context.time_base = info.time_base
            if info.pixel_aspect != 1:
                stream.codec_context.sample_aspect_ratio = info.pixel_aspect
            if info.rotation:
                stream.set_display_rotation(info.rotation)
            audio = self._sound_stream(out, packets)
            for frame in self._frames(packets.video):
                if not start <= frame.pts < end:
                    continue
                made = frame.reformat(
                    *size, "yuv420p", interpolation="AREA" if size != (frame.width, frame.height) else None
                )
                made.pts, made.time_base = frame.pts - start, info.time_base
                made.pict_type = self._av.video.frame.PictureType.NONE
                out.mux(stream.encode(made))
                count += 1
            if not count:
                raise BadVideo("no frame of the clip could be decoded")
            out.mux(stream.encode(None))
            self._add_sound(out, audio, packets, start, settings)
        return CutClip(data.getvalue(), ENCODE, CODEC_NAMES[settings.encoder], count, 0, start, end)

    # -- parts -----------------------------------------------------------------------------------------

    def _frames(self, packets: Sequence[Any]) -> Iterator[Any]:
        """The frames of packets that begin with a key frame, in the order of time. What is damaged is left out."""
        context = self.opened.stream.codec_context
        context.flush_buffers()
        last: int | None = None
        for packet in [*packets, None]:
            try:
                frames = context.decode(packet)
            except self._av.error.FFmpegError:
                continue
            for frame in frames:
                if frame.pts is not None and (last is None or frame.pts > last):
                    last = frame.pts
                    yield frame
        context.flush_buffers()

    def _encoded_end(self, frames: Sequence[Any]) -> list[tuple[bytes, int, bool]]:
        """Frames as packets of H.264 that fit into the stream of the film."""
        if not frames:
            return []
        info = self.info
        context = self._av.CodecContext.create(X264, "w")
        context.width, context.height, context.pix_fmt = info.width, info.height, info.pixel_format
        context.time_base, context.framerate = info.time_base, info.fps or Fraction(25)
        context.thread_count, context.max_b_frames = 1, 0
        source = self.opened.stream.codec_context
        context.color_range, context.colorspace = source.color_range, source.colorspace
        context.color_primaries, context.color_trc = source.color_primaries, source.color_trc
        context.options = {
            "preset": "veryfast", "crf": "18", "threads": "1",
            "x264-params": f"sps-id={_SPS_NUMBER}:repeat-headers=1:bframes=0:annexb=1:keyint=infinite",
        }  # fmt: skip
        pieces: list[tuple[bytes, int, bool]] = []
        for frame in frames:
            frame.pict_type = self._av.video.frame.PictureType.NONE
            frame.time_base = info.time_base
            pieces += [(self._framed(bytes(one)), one.pts, bool(one.is_keyframe)) for one in context.encode(frame)]
        pieces += [(self._framed(bytes(one)), one.pts, bool(one.is_keyframe)) for one in context.encode(None)]
        return pieces

    def _framed(self, data: bytes) -> bytes:
        """Units of H.264 as the film has them: with their length before each, or with start codes."""
        size = self._length_size()
        if not size:
            return data
        return b"".join(len(unit).to_bytes(size, "big") + unit for unit in _units(data))

    def _length_size(self) -> int | None:
        """How many bytes the length of a unit takes; 0: there are start codes. None: it cannot be told."""
        extra = self.opened.stream.codec_context.extradata
        if not extra:
            return None
        if extra[0] == 1:
            return (extra[4] & 3) + 1 if len(extra) > 4 else None
        return 0 if extra[:3] == b"\0\0\1" or extra[:4] == b"\0\0\0\1" else None

    def _is_idr(self, packet: Any) -> bool:
        """Whether nothing behind this picture refers to one before it."""
        data, size = bytes(packet), self._length_size()
        if not size:
            return any(unit and unit[0] & 31 == _IDR for unit in _units(data))
        at = 0
        while at + size < len(data):
            if data[at + size] & 31 == _IDR:
                return True
            at += size + int.from_bytes(data[at : at + size], "big")
        return False

    def _muxed(
        self,
        pieces: Sequence[tuple[bytes, int, bool]],
        start: int,
        end: int,
        packets: _Packets,
        settings: TranscodeSettings,
    ) -> bytes:
        """Packets of the film's codec, in the order of decoding, as a file."""
        shown = [pts for _, pts, _ in pieces]
        ordered = sorted(shown)
        ends = dict(zip(ordered, [*ordered[1:], max(end, ordered[-1] + 1)], strict=True))
        data = io.BytesIO()
        with self._writing(data) as out:
            stream = out.add_stream_from_template(self.opened.stream, opaque=True)
            stream.time_base = self.info.time_base
            audio = self._sound_stream(out, packets)
            for (content, pts, key), dts in zip(
                pieces, decoding_times(shown, ends[ordered[-1]] - ordered[-1]), strict=True
            ):
                packet = self._av.Packet(content)
                packet.pts, packet.dts, packet.time_base = pts - start, dts - start, self.info.time_base
                packet.duration, packet.is_keyframe, packet.stream = ends[pts] - pts, key, stream
                out.mux(packet)
            self._add_sound(out, audio, packets, start, settings)
        return data.getvalue()

    @contextmanager
    def _writing(self, data: io.BytesIO) -> Iterator[Any]:
        options = {"fflags": "+bitexact", "movflags": "+negative_cts_offsets"}
        with self._av.open(data, "w", format="mp4", options=options) as out:
            yield out

    def _sound_stream(self, out: Any, packets: _Packets) -> Any:
        """A stream for the sound of the clip; None if it has none."""
        if not packets.audio or self._sound is None:
            return None
        if self._sound.codec_context.name in _COPIED_SOUND:
            return out.add_stream_from_template(self._sound, opaque=True)
        rate = int(self._sound.codec_context.sample_rate or 48_000)
        return out.add_stream("aac", rate=rate, layout=self._sound.codec_context.layout.name)

    def _add_sound(self, out: Any, stream: Any, packets: _Packets, start: int, settings: TranscodeSettings) -> None:
        if stream is None or self._sound is None:
            return
        base = self._sound.time_base
        shift = round(Fraction(start) * self.info.time_base / base)
        if self._sound.codec_context.name in _COPIED_SOUND:
            for packet in packets.audio:
                packet.pts -= shift
                packet.dts = packet.pts
                packet.stream = stream
                out.mux(packet)
            return
        context = self._sound.codec_context
        context.flush_buffers()
        resampler = self._av.AudioResampler(stream.codec_context.format, stream.codec_context.layout, stream.rate)
        for packet in packets.audio:
            try:
                frames = context.decode(packet)
            except self._av.error.FFmpegError:
                continue
            for frame in frames:
                frame.pts = None if frame.pts is None else frame.pts - shift
                for piece in resampler.resample(frame):
                    out.mux(stream.encode(piece))
        out.mux(stream.encode(None))

    def _codec_name(self) -> str:
        return "av1" if self.info.codec == "libdav1d" else self.info.codec


def _units(data: bytes) -> list[bytes]:
    """The units of a stream with start codes."""
    starts: list[int] = []
    at = data.find(b"\0\0\1")
    while at >= 0:
        starts.append(at)
        at = data.find(b"\0\0\1", at + 3)
    ends = [*starts[1:], len(data)]
    units = [data[start + 3 : end] for start, end in zip(starts, ends, strict=True)]
    return [unit[:-1] if at + 1 < len(units) and unit.endswith(b"\0") else unit for at, unit in enumerate(units)]


@contextmanager
def open_cutter(
    source: Any,
    byte_range: tuple[int, int] | None = None,
    info: StreamInfo | None = None,
    limits: DecodeLimits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[FilmCutter]:
    """Open a film for cutting. `info` is what its first frame has shown, if that is known. Raises BadVideo."""
    with open_video(source, byte_range, storage_options) as opened:
        check_limits(opened.info, limits or DecodeLimits())
        if info is not None:
            opened.info = info
        yield FilmCutter(opened)
