"""Which packets of a film are copied into a clip, and which frames at its ends must be encoded again.

Packets come in the order of decoding, with the time stamps of their pictures. A run of packets can be copied if it
begins with a key frame and holds, up to its end, all pictures that are shown before a moment and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class PacketTime(NamedTuple):
    """What the plan must know of a packet."""

    pts: int
    keyframe: bool


class PacketPlan(NamedTuple):
    """How a clip is made: frames before `copy_pts` and from `tail_pts` on are encoded; those between are copied."""

    copied: tuple[int, ...]
    """Indexes of packets, in order."""
    copy_pts: int
    """The time stamp of the first frame that is copied."""
    tail_pts: int
    """The time stamp from which on frames are encoded again; the end of the clip if none are."""

    @property
    def exact(self) -> int:
        return len(self.copied)


def plan_packets(packets: Sequence[PacketTime], start: int, end: int) -> PacketPlan | None:
    """The longest run of packets that can be copied for the frames from `start` up to, and without, `end`. `packets`
    reach from a key frame at or before `start` to a point where all frames before `end` are complete. None: there is no
    key frame within the clip."""
    first = next((at for at, one in enumerate(packets) if one.keyframe and start <= one.pts < end), None)
    if first is None:
        return None
    begin = packets[first].pts
    inside = [at for at in range(first, len(packets)) if begin <= packets[at].pts < end]
    shown = sorted(packets[at].pts for at in inside)
    copied = 0
    latest = begin - 1
    past = False
    wanted = set(inside)
    taken = 0
    for at in range(first, len(packets)):
        pts = packets[at].pts
        if at in wanted:
            taken += 1
            latest = max(latest, pts)
        elif pts >= end:
            past = True  # others may be predicted from it
        if past:
            break
        if taken and latest == shown[taken - 1]:  # nothing that is shown before is still to come
            copied = taken
    if not copied:
        return None
    tail = end if copied == len(inside) else shown[copied]
    return PacketPlan(tuple(inside[:copied]), begin, tail)


def decoding_times(shown: Sequence[int], last_duration: int) -> list[int]:
    """Time stamps of decoding for pictures in the order of decoding, from those at which they are shown: they rise, and
    none is later than its picture."""
    if not shown:
        return []
    ordered = sorted(shown)
    rank = {pts: at for at, pts in enumerate(ordered)}
    delay = max(at - rank[pts] for at, pts in enumerate(shown))
    step = ordered[1] - ordered[0] if len(ordered) > 1 else last_duration
    early = [ordered[0] - step * (delay - at) for at in range(delay)]
    return [*early, *ordered][: len(shown)]
