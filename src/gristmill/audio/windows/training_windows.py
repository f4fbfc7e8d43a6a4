"""Windows of about equal length from the segments of recordings, as audio language models are trained on.

    ALMDataBuilderStage   all windows that begin at a segment
    ALMDataOverlapStage   of windows that overlap, those whose length is nearest to the target

A row is a recording, with `segments`: a list of start, end, speaker, text, words and metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from gristmill.audio.audio_task import AudioTask
from gristmill.core.stage import Columns, ProcessingStage

NO_SPEAKER = "no-speaker"
_SHOWN_SPEAKERS = 5
_FEWEST_SEGMENTS = 2

Segment = dict[str, Any]


def _seconds(segment: Segment) -> float:
    return float(segment["end"] - segment["start"])


def _bandwidth(segment: Segment) -> float:
    return float((segment.get("metrics") or {}).get("bandwidth") or 0)


class ALMDataBuilderStage(ProcessingStage[AudioTask, AudioTask]):
    """Adds `windows`: runs of segments that last `target_window_duration` seconds, give or take `tolerance` of it.

    A window begins at any segment and ends before a segment with less than `min_bandwidth`, without a speaker, or with
    one speaker more than `max_speakers`. With `truncation`, the last segment is cut at the largest duration, after its
    last whole word. Recordings below `min_sample_rate` have no windows. `stats` counts the segments at which none
    begins, and their seconds, by the reason.
    """

    name = "alm_data_builder"

    def __init__(
        self,
        target_window_duration: float = 120.0,
        tolerance: float = 0.1,
        min_bandwidth: int = 8000,
        min_sample_rate: int = 16_000,
        min_speakers: int = 2,
        max_speakers: int = 5,
        truncation: bool = True,
        drop_fields: str = "words",
        drop_fields_top_level: str = "words,segments",
    ) -> None:
        super().__init__()
        if target_window_duration <= 0 or not 0 <= tolerance < 1 or not 0 <= min_speakers <= max_speakers:
            raise ValueError(
                f"{self.name}: target_window_duration={target_window_duration} must be above 0, tolerance={tolerance} "
                f"from 0 to 1, and min_speakers={min_speakers} at most max_speakers={max_speakers}"
            )
        self.target_window_duration, self.tolerance = target_window_duration, tolerance
        self.min_bandwidth, self.min_sample_rate = min_bandwidth, min_sample_rate
        self.min_speakers, self.max_speakers, self.truncation = min_speakers, max_speakers, truncation
        self.drop_fields, self.drop_fields_top_level = drop_fields, drop_fields_top_level

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], ["segments", "audio_sample_rate"]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], ["windows", "stats", "truncation_events"]

    def process(self, task: AudioTask) -> AudioTask:
        row = task.data
        segments: list[Segment] = row.get("segments") or []
        lost: Counter[str] = Counter()
        windows: list[dict[str, Any]] = []
        cuts = 0
        rate = row.get("audio_sample_rate") or 0
        for first in range(len(segments)):
            reason, window, cut = ("sr", None, 0) if rate < self.min_sample_rate else self._window(segments, first)
            cuts += cut
            for one in reason.split():
                lost[f"lost_{one}"] += 1
                lost[f"dur_lost_{one}"] += _seconds(segments[first])  # type: ignore[assignment]
            if window is not None:
                windows.append(window)
        stats = {"total_segments": len(segments), "total_dur": sum(map(_seconds, segments)), "audio_sample_rate": rate}
        for name in ("bw", "sr", "spk", "win", "no_spkr", "next_seg_bm"):
            stats |= {f"lost_{name}": lost[f"lost_{name}"], f"dur_lost_{name}": float(lost[f"dur_lost_{name}"])}
        for name in _names(self.drop_fields_top_level):
            row.pop(name, None)
        row.update(windows=windows, stats=stats, truncation_events=cuts)
        return task

    def _window(self, segments: Sequence[Segment], first: int) -> tuple[str, dict[str, Any] | None, int]:
        """Why no window begins at a segment (or ""), the window, and whether its last segment was cut."""
        if _bandwidth(segments[first]) < self.min_bandwidth:
            return "bw", None, 0
        most = self.target_window_duration * (1 + self.tolerance)
        members, spoken, at, cut = self._members(segments, first, most)
        end = members[-1]["end"] if members else segments[first]["end"]
        start = segments[first]["start"]
        least = self.target_window_duration * (1 - self.tolerance)
        if not least <= end - start <= most or len(members) < _FEWEST_SEGMENTS:
            return self._loss(segments[at]), None, cut
        if len(spoken) < self.min_speakers:
            return "spk", None, cut
        longest = sorted(map(float, spoken.values()), reverse=True)[:_SHOWN_SPEAKERS]
        shown = longest + [0.0] * (_SHOWN_SPEAKERS - len(longest))
        left_out = _names(self.drop_fields)
        shorter = [{name: value for name, value in one.items() if name not in left_out} for one in members]
        return "", {"segments": shorter, "speaker_durations": shown}, cut

    def _members(
        self, segments: Sequence[Segment], first: int, most: float
    ) -> tuple[list[Segment], Counter[str], int, int]:
        """The segments of the window that begins at one, the seconds of each speaker, the segment at which it stopped,
        and whether its last one was cut."""
        latest = segments[first]["start"] + most
        spoken: Counter[str] = Counter()
        members: list[Segment] = []
        at = cut = 0
        for at in range(first, len(segments)):
            segment = segments[at]
            last = segment["end"] > latest
            too_late = last and (not self.truncation or segment["start"] >= latest)
            if too_late or _bandwidth(segment) < self.min_bandwidth:
                break
            if last:
                segment, cut = _cut_at(segment, latest), 1
            speaker = segment.get("speaker")
            if speaker == NO_SPEAKER or len(spoken.keys() | ({speaker} if speaker else set())) > self.max_speakers:
                break
            members.append(segment)
            if speaker:
                spoken[speaker] += _seconds(segment)  # type: ignore[assignment]
            if last:
                break
        return members, spoken, at, cut

    def _loss(self, stopped: Segment) -> str:
        """The reasons for a window that is too short: that it is, and what the segment lacks at which it stopped."""
        if (stopped.get("speaker") or NO_SPEAKER) == NO_SPEAKER:
            return "win no_spkr"
        return "win next_seg_bm" if _bandwidth(stopped) < self.min_bandwidth else "win"


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",")} - {""}


def _cut_at(segment: Segment, latest: float) -> Segment:
    """The segment up to its last word that ends by `latest`."""
    words = [word for word in segment.get("words") or () if word["end"] <= latest]
    text = " ".join(word["word"] for word in words if word.get("word"))
    return {**segment, "words": words, "text": text, "end": words[-1]["end"] if words else segment["start"]}


class ALMDataOverlapStage(ProcessingStage[AudioTask, AudioTask]):
    """Adds `filtered_windows`: `windows` without those that overlap another by `overlap_percentage` of the shorter one,
    or more. Of two, the one whose length is nearer to `target_duration` stays, or the longer one, or the first."""

    name = "alm_data_overlap"

    def __init__(self, overlap_percentage: int = 0, target_duration: float = 120.0) -> None:
        super().__init__()
        if not 0 <= overlap_percentage <= 100 or target_duration <= 0:
            raise ValueError(
                f"{self.name}: overlap_percentage={overlap_percentage} must be from 0 to 100, and "
                f"target_duration={target_duration} above 0"
            )
        self.overlap_percentage, self.target_duration = overlap_percentage, target_duration

    def inputs(self) -> tuple[list[str], Columns]:
        return ["data"], ["windows"]

    def outputs(self) -> tuple[list[str], Columns]:
        return ["data"], ["filtered_windows", "filtered_dur", "filtered_dur_list"]

    def process(self, task: AudioTask) -> AudioTask:
        windows = [one for one in task.data.get("windows") or () if one.get("segments")]
        spans = [(one["segments"][0]["start"], one["segments"][-1]["end"]) for one in windows]
        order = sorted(range(len(spans)), key=lambda window: spans[window])
        dropped = set(self._overlapping(spans, order))
        kept = [window for window in order if window not in dropped]
        lengths = [float(spans[window][1] - spans[window][0]) for window in kept]
        all_lengths = [float(end - start) for start, end in spans]
        task.data.update(
            filtered_windows=[one for window, one in enumerate(windows) if window not in dropped],
            filtered=[[spans[window][1], spans[window][0]] for window in kept],
            filtered_dur=float(sum(lengths)),
            filtered_dur_list=lengths,
            total_dur_window=float(sum(all_lengths)),
            total_dur_list_window=all_lengths,
            total_dur_list_window_timestamps=[[end, start] for start, end in spans],
        )
        return task

    def _overlapping(self, spans: Sequence[tuple[float, float]], order: Sequence[int]) -> Iterator[int]:
        """The windows to drop, given their order by beginning and end."""
        dropped: set[int] = set()
        for place, one in enumerate(order):
            for other in order[place + 1 :]:
                if one in dropped or spans[other][0] >= spans[one][1]:
                    break
                if other in dropped or not self._overlap(spans[one], spans[other]):
                    continue
                worse = other if self._rank(spans[one]) <= self._rank(spans[other]) else one
                dropped.add(worse)
                yield worse

    def _overlap(self, one: tuple[float, float], other: tuple[float, float]) -> bool:
        shared = max(min(one[1], other[1]) - max(one[0], other[0]), 0.0)
        shorter = min(one[1] - one[0], other[1] - other[0])
        return (shared / shorter if shorter else 0.0) >= self.overlap_percentage / 100

    def _rank(self, span: tuple[float, float]) -> tuple[float, float]:
        length = span[1] - span[0]
        return abs(length - self.target_duration), -length
