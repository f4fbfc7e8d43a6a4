"""Makes a directory of speech as a crawl would find it: with noise, copies, wrong transcripts and broken files.

    python examples/audio/make_data.py [DIRECTORY]

The same bytes each time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

HERE = Path(__file__).resolve().parent
RATE = 16_000


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    rows: list[dict[str, Any]] = []
    clips = sorted((HERE / "speech").glob("*.flac"))
    sounds = [soundfile.read(clip, dtype="float32")[0] for clip in clips]
    texts = [clip.with_suffix(".txt").read_text().strip() for clip in clips]

    def add(name: str, samples: Any, text: str, heard: str, rate: int = RATE) -> None:
        soundfile.write(folder / name, samples, rate)
        rows.append({"audio_filepath": name, "text": text, "pred_text": heard})

    random = np.random.default_rng(0)
    for clip, sound, text in zip(clips, sounds, texts, strict=True):
        add(f"{clip.stem}.flac", sound, text, text)
        noise = random.standard_normal(len(sound)).astype(np.float32)
        add(f"{clip.stem}-noisy.wav", sound + noise * np.float32(0.08), text, text)
        add(f"{clip.stem}-clipped.wav", np.clip(sound * 12, -1, 1), text, text)
        add(f"{clip.stem}-copy.mp3", sound * np.float32(0.5), text, text)
    add("wrong-text.wav", sounds[2], texts[1], texts[2])
    add("silence.wav", np.zeros(5 * RATE, np.float32), "", "thank you for watching")
    add("hum.wav", 0.2 * np.sin(2 * np.pi * 50 * np.arange(5 * RATE) / RATE), "mm", "mm")
    add("short.wav", sounds[1][: RATE // 2], "he", "he")
    broken = folder / "broken.flac"
    broken.write_bytes(clips[0].read_bytes()[:30_000])
    (folder / "not-sound.wav").write_text("This is a text.\n")
    for name in ("broken.flac", "not-sound.wav", "missing.wav"):
        rows.append({"audio_filepath": name, "text": "lost", "pred_text": "lost"})
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/audio-in"))
