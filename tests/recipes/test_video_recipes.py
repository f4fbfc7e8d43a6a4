"""The demo of films: what must stay stays, and what must go goes for the right reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gristmill.cli.main import app

EXAMPLE = Path(__file__).parents[2] / "examples" / "video"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demo")
    subprocess.run([sys.executable, EXAMPLE / "make_data.py", root / "in"], check=True)
    settings = (f"input={root / 'in'}", f"output={root / 'out'}")
    command = ["run", str(EXAMPLE / "recipe.yaml"), "--workers", "0", "--max-errors", "20", "--rejected"]
    done = CliRunner().invoke(app, [*command, *(part for one in settings for part in ("--set", one))])
    assert done.exit_code == 0, done.output
    return root


def test_the_demo_keeps_clips_of_good_films_only(demo: Path) -> None:
    metas = [json.loads(path.read_text()) for path in (demo / "out/metas/v0").iterdir()]
    assert {Path(meta["source_video"]).stem for meta in metas} == {"bunny", "bunny-copy", "cut-short", "damaged"}
    assert all(meta["valid"] and Path(meta["clip_location"]).exists() for meta in metas)
    assert len(list((demo / "out/previews").iterdir())) == len(metas)
    assert {meta["cut"] for meta in metas} >= {"copy", "smart"}


def test_the_demo_tells_why_the_others_went(demo: Path) -> None:
    table = pa.concat_tables(
        [pq.read_table(path) for path in (demo / "out.run" / "rejected").glob("*.parquet")], promote_options="default"
    )
    reasons: dict[str, set[str]] = {}
    for row in table.select(["video_id", "rejected_filter"]).to_pylist():
        reasons.setdefault(row["video_id"], set()).add(row["rejected_filter"])
    assert reasons["thumbnail"] == {"VideoResolutionFilter"}
    assert reasons["black"] == {"VideoBlackFilter"}
    assert reasons["frozen"] == {"VideoFrozenFilter"}
    assert reasons["letterbox"] == {"VideoLetterboxFilter"}
    assert "VideoBlurFilter" in reasons["blurred"]
    errors = [record["error"] for record in quarantined(demo / "out.run")]
    assert any("no-film.mp4: not a video" in error for error in errors)
    assert any("damaged.mp4" in error and "damaged at " in error for error in errors)


def quarantined(run_dir: Path) -> list[dict[str, Any]]:
    lines = [line for path in (run_dir / "quarantine").rglob("*.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def test_a_film_that_is_cut_short_says_so_in_its_clips(demo: Path) -> None:
    metas = [json.loads(path.read_text()) for path in (demo / "out/metas/v0").iterdir()]
    notes = {Path(meta["source_video"]).stem: meta["film_damage"] for meta in metas}
    assert notes["bunny"] is None
    assert "cut short" in notes["cut-short"] or "cannot be read further" in notes["cut-short"]
    assert notes["damaged"].startswith("at ")
