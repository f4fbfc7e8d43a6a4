"""From a number for each frame to the frames at which shots begin, by the rules of PySceneDetect.

    content_cuts    the change is large
    adaptive_cuts   the change is large compared with that of the frames around it: a pan or a flash is no cut
    fade_cuts       the picture was dark and is bright again

A cut is the number of the first frame of a shot; frame 0 is none. All are pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

MOST_RATIO = 255.0


def content_cuts(change: npt.NDArray[Any], threshold: float = 27.0, min_scene_len: int = 15) -> list[int]:
    """Cuts at changes of `threshold` or more. Cuts that follow each other in less than `min_scene_len` frames are one,
    at the last of them, if they go on for that long; else they are left out."""
    high = np.flatnonzero(change >= threshold).tolist()
    if min_scene_len <= 0:
        return high
    cuts: list[int] = []
    last, merging_since = 0, -1
    for frame in [*high, len(change) + min_scene_len]:
        at_end = frame >= len(change)
        rest = len(change) - 1 - last if at_end else frame - 1 - last
        if merging_since >= 0 and rest >= min_scene_len and last - merging_since >= min_scene_len:
            cuts.append(last)
            merging_since = -1
        if at_end:
            break
        if merging_since < 0:
            if frame - last >= min_scene_len:
                cuts.append(frame)
            elif cuts:
                merging_since = frame
        last = frame
    return cuts


def adaptive_cuts(
    change: npt.NDArray[Any],
    adaptive_threshold: float = 3.0,
    min_scene_len: int = 15,
    window_width: int = 2,
    min_content_val: float = 15.0,
) -> list[int]:
    """Cuts where the change is at least `min_content_val`, and `adaptive_threshold` times the mean of the
    `window_width` frames before and after."""
    size = 2 * window_width + 1
    if len(change) < size:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(change.astype(np.float64), size)
    middle = windows[:, window_width]
    around = (windows.sum(axis=1) - middle) / (2 * window_width)
    still = np.abs(around) < 1e-5
    ratio = np.minimum(middle / np.where(still, 1, around), MOST_RATIO)
    ratio = np.where(still, np.where(middle >= min_content_val, MOST_RATIO, 0), ratio)
    met = (ratio >= adaptive_threshold) & (middle >= min_content_val)
    return _apart(np.flatnonzero(met) + window_width, min_scene_len)


def _apart(frames: Iterable[int], least: int) -> list[int]:
    """The frames that are at least so many behind the last one that was taken, or behind the first of all."""
    taken, last = [], 0
    for frame in frames:
        if frame - last >= least:
            taken.append(int(frame))
            last = int(frame)
    return taken


def fade_cuts(
    brightness: npt.NDArray[Any],
    threshold: float = 12.0,
    min_scene_len: int = 15,
    fade_bias: float = 0.0,
    add_final_scene: bool = False,
) -> list[int]:
    """Cuts between a fade to below `threshold` and the next frame that is as bright or brighter: at the middle, or by
    `fade_bias` nearer to the first (-1) or the last (1) of the dark frames."""
    if not len(brightness):
        return []
    dark = brightness < threshold
    changes = np.flatnonzero(dark[1:] != dark[:-1]) + 1
    cuts: list[int] = []
    out, last = 0, 0
    for frame in changes.tolist():
        if dark[frame]:
            out = frame
        elif frame - last >= min_scene_len:
            cuts.append(out + round((frame - out) * (1 + fade_bias) / 2))
            last = frame
    if add_final_scene and dark[-1] and len(dark) - 1 - last >= min_scene_len:
        cuts.append(out)
    return [cut for cut in cuts if cut > 0]


def shot_numbers(cuts: Sequence[int], count: int) -> npt.NDArray[np.int32]:
    """The number of the shot of each of `count` frames."""
    starts = np.zeros(count, np.int32)
    starts[[cut for cut in sorted(set(cuts)) if 0 < cut < count]] = 1
    return np.cumsum(starts, dtype=np.int32)
