"""Films and clips on the page: pictures, players, the clips of a film on a time line, and why one was dropped."""

from __future__ import annotations

import shutil
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from gristmill import LocalExecutor, Pipeline
from gristmill.video import ClipWriterStage, FixedStrideExtractorStage, VideoBlurFilter, VideoReader, VideoScoreFilter
from gristmill.view.data.film_rows import clip_span
from gristmill.view.pages.film_timeline import clock
from gristmill.view.server import View
from tests.video.film_fixtures import FILM
from tests.view.test_server import Page, ask, look


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three clips of four seconds that were kept and written, and two that were dropped."""
    folder = tmp_path_factory.mktemp("films")
    (folder / "in").mkdir()
    shutil.copy(FILM, folder / "in" / "film.mp4")
    stages = [
        VideoReader(str(folder / "in")),
        FixedStrideExtractorStage(4.0, 4.0),
        VideoScoreFilter(VideoBlurFilter(min_sharpness=165.0), "sharpness"),
        ClipWriterStage(str(folder / "out")),
    ]
    Pipeline("clips", stages=stages).run(LocalExecutor(num_workers=0), rejected=True, scores=True)
    return folder / "out"


def test_the_clips_of_a_film_stand_on_a_time_line(output: Path) -> None:
    with View(str(output)) as view:
        kept = look(view, "row", **{"in": "kept", "n": "0"})
        bars = [found for tag, found in kept.elements if tag == "rect"]
        assert len(bars) == 5
        fates = [found["class"].split()[0] for found in bars]
        assert 0 < fates.count("kept") < 5
        assert [found["class"] for found in bars if "here" in found["class"]] == ["kept here"]
        assert sum(float(found["width"]) for found in bars) == pytest.approx(1000, abs=10)
        assert f"5 clips, {fates.count('dropped')} of them dropped" in kept.text
        links = [link for link in kept.links("row?in=dropped") if "file=" in link]
        assert len(links) == fates.count("dropped")
        page = Page(ask(view, links[0])[1].decode())
        assert "Dropped by VideoBlurFilter" in page.text
        assert "165" in page.text
        assert [found["class"] for tag, found in page.elements if tag == "rect" and "here" in found["class"]] == [
            "dropped here"
        ]


def test_clips_that_were_written_play_and_have_a_picture(output: Path) -> None:
    with View(str(output)) as view:
        page = look(view, **{"in": "kept"})
        players = [found for tag, found in page.elements if tag == "video"]
        assert len(players) == len(list((output / "clips").glob("*.mp4")))
        assert all(found["preload"] == "none" and "controls" in found for found in players)
        answer, body = ask(view, players[0]["src"], headers={"Range": "bytes=0-"})
        written = sorted((output / "clips").glob("*.mp4"))
        assert answer.status == 206
        assert answer.getheader("Content-Type") == "video/mp4"
        assert body in [path.read_bytes() for path in written]
        answer, part = ask(view, players[0]["src"], headers={"Range": f"bytes=100-{len(body) - 50}"})
        assert part == body[100 : len(body) - 49]
        assert answer.getheader("Content-Range") == f"bytes 100-{len(body) - 50}/{len(body)}"
        answer, picture = ask(view, players[0]["poster"])
        assert answer.getheader("Content-Type") == "image/jpeg"
        assert Image.open(BytesIO(picture)).size == (480, 270)


def test_a_dropped_clip_plays_its_part_of_the_film_if_files_may_be_followed(output: Path) -> None:
    with View(str(output), follow_paths=True) as view:
        page = look(view, **{"in": "dropped"})
        [first, *_] = [found for tag, found in page.elements if tag == "video"]
        address, _, part = first["src"].partition("#t=")
        start, end = map(float, part.split(","))
        assert end - start == 4
        answer, body = ask(view, address, headers={"Range": "bytes=0-9"})
        assert (answer.status, body) == (206, FILM.read_bytes()[:10])
        assert ask(view, first["poster"])[0].status == 200
    with View(str(output)) as view:
        page = look(view, **{"in": "dropped"})
        assert not [found for tag, found in page.elements if tag == "video"]


def test_a_film_that_cannot_be_decoded_has_no_picture(output: Path, tmp_path: Path) -> None:
    shutil.copytree(output, tmp_path / "out")
    rows = {"in": "rows"}
    for path in (tmp_path / "out" / "clips").glob("*.mp4"):
        path.write_bytes(path.read_bytes()[:300])
    with View(str(tmp_path / "out")) as view:
        page = look(view, **rows)
        [first, *_] = [found for tag, found in page.elements if tag == "video"]
        assert ask(view, first["poster"])[0].status == 404
        assert ask(view, first["poster"].replace("ms=", "ms=9999999999"))[0].status == 404


@pytest.mark.parametrize(("values", "span"), [
    ({"source": "a", "start": 1, "end": 2.5}, (1.0, 2.5)), ({"source": "a", "start": 2, "end": 2}, None),
    ({"source": None, "start": 1, "end": 2}, None), ({"source": "a", "start": "x", "end": 2}, None), ({}, None),
])  # fmt: skip
def test_what_is_a_clip(values: dict[str, object], span: object) -> None:
    assert clip_span(values) == span


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61.4, "1:01"), (3725, "1:02:05")])
def test_times_are_shown_as_clocks(seconds: float, text: str) -> None:
    assert clock(seconds) == text
