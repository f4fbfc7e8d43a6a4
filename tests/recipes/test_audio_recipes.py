"""The recipes for speech, and the demo: what must stay stays, and what must go goes for the right reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from gristmill.cli.main import app
from tests.audio.sound_fixtures import read_manifest_file, tone, wav

EXAMPLE = Path(__file__).parents[2] / "examples" / "audio"
CLIPS = [clip.name for clip in sorted((EXAMPLE / "speech").glob("*.flac"))]


def curated(recipe: str, output: Path, *arguments: str, **settings: Path) -> list[dict[str, object]]:
    given = [f"{name}={value}" for name, value in {**settings, "output": output}.items()]
    command = ["run", recipe, "--workers", "0", *arguments, *(part for one in given for part in ("--set", one))]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return read_manifest_file(output)


def made(folder: Path) -> Path:
    subprocess.run([sys.executable, EXAMPLE / "make_data.py", folder], check=True)
    return folder / "manifest.jsonl"


def test_the_demo_keeps_each_clean_clip_once(tmp_path: Path) -> None:
    manifest = made(tmp_path / "in")
    rows = curated(str(EXAMPLE / "recipe.yaml"), tmp_path / "out.jsonl", "--max-errors", "3", input=manifest)
    assert [Path(str(row["audio_filepath"])).name for row in rows] == CLIPS


def test_the_demo_has_the_same_data_each_time(tmp_path: Path) -> None:
    first, second = made(tmp_path / "a").parent, made(tmp_path / "b").parent
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    assert [name for name in names if (first / name).read_bytes() != (second / name).read_bytes()] == []


def test_the_recipe_for_speech_cuts_and_keeps_good_segments(tmp_path: Path) -> None:
    manifest = made(tmp_path / "in")
    rows = curated("speech", tmp_path / "out.jsonl", "--max-errors", "3", input=manifest)
    assert [Path(str(row["audio_filepath"])).name for row in rows] == CLIPS
    assert all(float(str(row["duration"])) > 2 and float(str(row["speech"])) > 0.5 for row in rows)


def test_the_recipe_for_fleurs_drops_by_length_and_rate(tmp_path: Path) -> None:
    lines = []
    for name, seconds, text in (("1.wav", 2.0, "hello there"), ("2.wav", 0.5, "hi"), ("3.wav", 2.0, "too fast " * 12)):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).write_bytes(wav(tone(seconds)))
        lines.append(f"7\t{name}\t{text}\t{text}\t{text}\t32000\tMALE\n")
    (tmp_path / "dev.tsv").write_text("".join(lines))
    rows = curated("fleurs", tmp_path / "out.jsonl", input=tmp_path)
    assert [row["text"] for row in rows] == ["hello there"]
