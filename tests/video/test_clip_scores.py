"""What a run records of the clips of a film: scores, what-if, why and rejected rows know each clip by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.dedup import ExactDeduplicationStage
from gristmill.report.run_records import Records
from gristmill.report.whatif import whatif
from gristmill.report.why import why
from gristmill.video import (
    FixedStrideExtractorStage,
    VideoDurationFilter,
    VideoParquetWriter,
    VideoReader,
    VideoScoreFilter,
)
from gristmill.view.data.row_sets import RunOrDataset
from gristmill.view.data.whatif import ScoreReader
from tests.video.film_fixtures import film
from tests.video.test_one_pass import BrightnessFilter

FRAMES = (60, 90, 12)
"""At 24 frames in a second: 2.5, 3.75 and 0.5 seconds."""
HERE = LocalExecutor(num_workers=0)


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    for number, count in enumerate(FRAMES):
        film(folder / f"{number}.mp4", count, shots=number + 2, gop=10)
    return folder


def run(
    films: Path,
    out: Path,
    executor: LocalExecutor = HERE,
    least: float = 0.9,
    film_least: float = 0.0,
    own_workers: bool = False,
    **options: Any,
) -> Path:
    """The clips of a second; the last of a film may be shorter."""
    kept = {"scores": True, "rejected": True, **options}
    stages: list[Any] = [
        VideoReader(str(films)),
        VideoScoreFilter(VideoDurationFilter(film_least)),
        FixedStrideExtractorStage(1.0, 1.0, 0.3),
        VideoScoreFilter(BrightnessFilter(fps=4.0)),
        VideoScoreFilter(VideoDurationFilter(least)),
        VideoParquetWriter(str(out / "out")),
    ]
    if own_workers:
        stages = [stage.with_(num_workers=1 + at % 2) if at in (2, 3, 4) else stage for at, stage in enumerate(stages)]
    Pipeline("clips", stages=stages).run(executor, run_dir=out / "run", **kept)
    return out / "run"


def score_rows(place: Path) -> list[dict[str, Any]]:
    found = Records(str(place)).scores
    assert found is not None
    rows: list[dict[str, Any]] = found.table().to_pylist()
    return rows


def test_each_clip_has_a_row_of_scores_with_those_of_its_film(films: Path, tmp_path: Path) -> None:
    rows = score_rows(run(films, tmp_path))
    assert [row["id"] for row in rows] == ["0"] * 3 + ["1"] * 4 + ["2"]
    assert len({row["part"] for row in rows}) == 8
    assert [row["dropped_by"] for row in rows].count(None) == 5
    of_clips = [round(row["VideoDurationFilter 2"], 3) for row in rows]
    assert of_clips == [1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 0.75, 0.5]
    assert [row["VideoDurationFilter"] for row in rows] == [2.5] * 3 + [3.75] * 4 + [0.5]
    assert all(row["BrightnessFilter"] for row in rows)


@pytest.mark.parametrize("least", [0.4, 0.6, 0.8, 1.5])
def test_what_if_counts_the_clips_that_a_run_would_keep(films: Path, tmp_path: Path, least: float) -> None:
    found = whatif(str(run(films, tmp_path / "a")), {"VideoDurationFilter#2.min_seconds": least})
    kept = sum(row["dropped_by"] is None for row in score_rows(run(films, tmp_path / "b", least=least)))
    assert (found.rows, found.before.rows, found.after.rows, found.unknown.rows) == (8, 5, kept, 0)
    assert found.exact
    assert len({row["id"] for row in found.gained}) == len(found.gained)
    assert all(row["row"]["clip_id"] == row["id"] for row in found.gained), "the rejected row of that clip"


def test_a_film_takes_its_clips_with_it(films: Path, tmp_path: Path) -> None:
    place = run(films, tmp_path)
    stricter = whatif(str(place), {"VideoDurationFilter#1.min_seconds": 3.0})
    assert (stricter.before.rows, stricter.after.rows, stricter.exact) == (5, 3, True)


@pytest.mark.parametrize("film_least", [1.0, 9.0])
def test_how_many_clips_a_dropped_film_has_is_not_known(films: Path, tmp_path: Path, film_least: float) -> None:
    place = run(films, tmp_path, least=0.4, film_least=film_least)
    kept, films_dropped = (7, 1) if film_least == 1.0 else (0, 3)
    laxer = whatif(str(place), {"VideoDurationFilter#1.min_seconds": 0.1})
    assert (laxer.before.rows, laxer.after.rows, laxer.unknown.rows) == (kept, kept, films_dropped)
    assert not laxer.exact
    judged = ScoreReader(RunOrDataset(str(place))).judged("VideoDurationFilter")
    assert judged is not None
    answer = judged.ask(0.1, None)
    assert (answer.kept, answer.unknown) == ((kept, kept), films_dropped)


def test_the_page_of_what_if_counts_clips(films: Path, tmp_path: Path) -> None:
    reader = ScoreReader(RunOrDataset(str(run(films, tmp_path))))
    judged = reader.judged("VideoDurationFilter 2")
    assert judged is not None
    assert judged.ask(0.6, None).kept == (5, 6)
    for row in score_rows(tmp_path / "run"):
        mine = reader.scores_of_row({"file": row["file"], "position": row["position"], "part": row["part"]})
        assert mine["VideoDurationFilter 2"] == row["VideoDurationFilter 2"]


@pytest.mark.parametrize("kept", [{}, {"scores": False}, {"rejected": False}])
def test_why_finds_clips_by_their_names_and_all_of_a_film(films: Path, tmp_path: Path, kept: dict[str, Any]) -> None:
    rows = score_rows(run(films, tmp_path / "all"))
    place = str(run(films, tmp_path / "some", **kept))
    clips = [row["part"] for row in rows if row["dropped_by"]]
    for name in clips:
        (story,) = why(place, name)
        assert (story.id, story.part, story.fate) == (name, name, "dropped")
        assert (story.dropped_by or "").startswith("VideoDurationFilter")
        assert "below min_seconds=0.9" in story.reason
    of_film = [row["part"] for row in rows if row["id"] == "1" and (row["dropped_by"] or kept != {"scores": False})]
    assert [story.id for story in why(place, "1")] == of_film
    if kept != {"scores": False}:
        (story,) = why(place, next(row["part"] for row in rows if not row["dropped_by"]))
        assert story.fate == "kept"


def test_the_bytes_of_scores_do_not_depend_on_workers_and_batches(films: Path, tmp_path: Path) -> None:
    def files(place: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted((place / "scores").glob("*.parquet"))}

    first = files(run(films, tmp_path / "a"))
    assert len(first) == len(FRAMES)
    assert files(run(films, tmp_path / "b", LocalExecutor(num_workers=2))) == first
    alone = score_rows(run(films, tmp_path / "c", LocalExecutor(num_workers=3), own_workers=True))
    assert alone == score_rows(tmp_path / "a" / "run")


@pytest.mark.parametrize("column", ["clip_id", "video_id"])
def test_clips_are_known_beyond_an_exchange(films: Path, tmp_path: Path, column: str) -> None:
    split, meet = FixedStrideExtractorStage(1.0, 1.0, 0.3), ExactDeduplicationStage(text_field=column)
    stages: list[Any] = [
        VideoReader(str(films)),
        VideoScoreFilter(VideoDurationFilter(0.0)),
        *((split, meet) if column == "clip_id" else (meet, split)),
        VideoScoreFilter(VideoDurationFilter(0.9)),
        VideoParquetWriter(str(tmp_path / "out")),
    ]
    place = tmp_path / "run"
    Pipeline("met", stages=stages).run(HERE, run_dir=place, scores=True)
    found = whatif(str(place), {"VideoDurationFilter#2.min_seconds": 0.6})
    assert (found.rows, found.before.rows, found.after.rows) == (8, 5, 6)
    stricter = whatif(str(place), {"VideoDurationFilter#1.min_seconds": 3.0})
    assert stricter.after.rows == 3
    for row in score_rows(place):
        (story,) = why(str(place), row["part"])
        assert [one.score for one in story.scores] == [row["VideoDurationFilter"], row["VideoDurationFilter 2"]]


def test_a_clip_that_is_set_aside_takes_no_other_with_it(tmp_path: Path) -> None:
    data = bytearray(film(None, 240, gop=24))
    middle = len(data) // 2
    data[middle : middle + 60] = bytes(60)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "broken.mp4").write_bytes(data)
    stages: list[Any] = [
        VideoReader(str(tmp_path / "in")),
        FixedStrideExtractorStage(1.0, 1.0, 0.5),
        VideoScoreFilter(BrightnessFilter(min_mean=1.0)),
        VideoParquetWriter(str(tmp_path / "out")),
    ]
    place = tmp_path / "run"
    Pipeline("broken", stages=stages).run(HERE, run_dir=place, scores=True, rejected=True, max_errors=9)
    aside = len(list(Records(str(place)).quarantined()))
    assert 1 <= aside <= 3
    fates = [why(str(place), row["part"])[0].fate for row in score_rows(place)]
    assert (fates.count("quarantined"), fates.count("kept")) == (aside, 10 - aside)
