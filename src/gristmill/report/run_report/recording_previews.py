"""Pictures and players of recordings among the rows that a report shows.

Only for pipelines of recordings, and only of local files: a report fetches nothing. What cannot be decoded has none.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from gristmill.core.errors import GristmillError

MAX_PREVIEWS = 36
_PREVIEW = "preview"


def with_previews(facts: Mapping[str, Any], stages: Any) -> dict[str, Any]:
    """The facts of a report with a preview for each recording that is shown, as HTML, if these stages are of audio."""
    if not any(type(stage).__module__.startswith("gristmill.audio.") for stage in stages):
        return dict(facts)
    left = [MAX_PREVIEWS]
    known: dict[Any, str] = {}

    def previewed(sample: Mapping[str, Any]) -> dict[str, Any]:
        row = sample.get("row")
        if not isinstance(row, Mapping):
            return dict(sample)
        key = tuple(row.get(name) for name in ("audio_filepath", "offset", "duration"))
        if key not in known and left[0]:
            known[key] = _preview(*key)
            left[0] -= bool(known[key])
        return {**sample, _PREVIEW: known.get(key, "")}

    shown = [{**stage, "samples": [previewed(one) for one in stage.get("samples", ())]} for stage in facts["stages"]]
    return {**facts, "stages": shown, "quarantine": [previewed(one) for one in facts["quarantine"]]}


def _preview(path: Any, offset: Any, duration: Any) -> str:
    if not isinstance(path, str) or "://" in path or not path.startswith("/"):
        return ""
    try:
        from gristmill.audio.sound.sound_preview import RATE, sound_preview
        from gristmill.audio.waveforms import streamed

        start, length = (float(one) if isinstance(one, int | float) else None for one in (offset, duration))
        seen = sound_preview(block[:, 0] for block in streamed(path, start, length, RATE, mono=True))
    except (GristmillError, ValueError, OSError, MemoryError):
        return ""
    picture, player = (b64encode(data).decode() for data in (seen.picture, seen.player))
    return (
        f'<div class=sound><img src="data:image/png;base64,{picture}" alt="spectrogram of the first {seen.seconds:.1f} '
        f'seconds, to 8 kHz" width=240 height=64><audio controls preload=none src="data:audio/ogg;base64,{player}">'
        "</audio></div>"
    )
