"""Captions: windows of clips, a model that is shown their frames, and one that rewrites what it said."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st

from gristmill import LocalExecutor, Pipeline
from gristmill.models.llm import AsyncOpenAIClient
from gristmill.video import (
    CaptionEnhancementStage,
    CaptionGenerationStage,
    CaptionPreparationStage,
    FixedStrideExtractorStage,
    VideoBatch,
)
from gristmill.video.captions.caption_windows import caption_windows
from tests.video.film_fixtures import FILM
from tests.video.shot_films import write_film
from tests.video.vision_server import VisionServer

SPLIT = FixedStrideExtractorStage(10.0, 10.0)


def client(url: str) -> AsyncOpenAIClient:
    return AsyncOpenAIClient(base_url=url, base_delay=0.01, max_concurrent_requests=4)


def run(stages: list[Any], film: Path = FILM, **options: Any) -> tuple[list[dict[str, Any]], Any]:
    tasks = [VideoBatch({"video_id": [film.stem], "source": [str(film)]})]
    result = Pipeline("p", stages=stages).run(
        LocalExecutor(num_workers=0), initial_tasks=tasks, max_errors=99, **options
    )
    return [row for task in result for row in task.to_rows()], result


@pytest.fixture
def server() -> Iterator[tuple[VisionServer, str]]:
    vision = VisionServer()
    with vision.running() as url:
        yield vision, url


@pytest.mark.parametrize(("count", "windows"), [
    (0, []), (1, [(0, 0)]), (256, [(0, 255)]), (300, [(0, 299)]), (384, [(0, 255), (256, 383)]),
    (600, [(0, 255), (256, 599)]), (640, [(0, 255), (256, 511), (512, 639)]),
])  # fmt: skip
def test_windows(count: int, windows: list[tuple[int, int]]) -> None:
    assert caption_windows(count) == windows


@given(st.integers(1, 3000), st.integers(1, 300), st.integers(0, 300))
def test_windows_cover_all_frames_once(count: int, size: int, least: int) -> None:
    windows = caption_windows(count, size, least)
    assert windows[0][0] == 0
    assert windows[-1][1] == count - 1
    assert all(one[1] + 1 == other[0] for one, other in pairwise(windows))


def test_windows_hold_the_frames_that_are_shown() -> None:
    rows, _ = run([SPLIT, CaptionPreparationStage(window_size=100, remainder_threshold=20, max_side=160)])
    spans = [(window["start_frame"], window["end_frame"]) for window in rows[1]["windows"]]
    assert spans == [(0, 99), (100, 199), (200, 239)]
    assert [len(window["frames"]) for window in rows[1]["windows"]] == [9, 8, 3]
    picture = simplejpeg.decode_jpeg(rows[1]["windows"][0]["frames"][0])
    assert picture.shape == (90, 160, 3)


def test_captions_are_of_the_pictures(server: tuple[VisionServer, str], tmp_path: Path) -> None:
    vision, url = server
    red = np.zeros((96, 160, 3), np.uint8)
    red[..., 0] = 200
    film = write_film(tmp_path / "red.mp4", [red] * 48)
    stages = [CaptionPreparationStage(), CaptionGenerationStage(client(url), "see")]
    [row], result = run(stages, film)
    assert row["caption"] == "4 pictures of 160 x 96, mostly red"
    assert row["windows"] == [{"start_frame": 0, "end_frame": 47, "qwen2.5_caption": row["caption"]}]
    assert "caption_prompt" not in row
    assert "in the order of time" in vision.texts[0]
    assert result.summary().stages[-1].counts["requests"] == 1


def test_a_second_stage_sees_the_first_caption(server: tuple[VisionServer, str]) -> None:
    vision, url = server
    stages = [
        SPLIT,
        CaptionPreparationStage(prompt_text="What is it?", window_size=120, remainder_threshold=100),
        CaptionGenerationStage(
            client(url), "see", "mine", generate_stage2_caption=True, stage2_prompt_text="Do it better:"
        ),
    ]
    rows, _ = run(stages)
    assert [len(row["windows"]) for row in rows] == [2, 2]
    assert all(window["mine_caption"].startswith("revised: ") for row in rows for window in row["windows"])
    assert vision.texts.count("What is it?") == 4
    assert sum(text.startswith("Do it better:\n\n") for text in vision.texts) == 4
    assert rows[0]["caption"] == " ".join(window["mine_caption"] for window in rows[0]["windows"])


def test_captions_are_rewritten(server: tuple[VisionServer, str]) -> None:
    _, url = server
    stages = [
        SPLIT,
        CaptionPreparationStage(),
        CaptionGenerationStage(client(url), "see"),
        CaptionEnhancementStage(client(url), "write", "better"),
    ]
    rows, _ = run(stages)
    for row in rows:
        [window] = row["windows"]
        assert window["better_enhanced_caption"] == window["qwen2.5_caption"].upper() == row["enhanced_caption"]


def test_a_clip_whose_request_fails_is_set_aside_and_the_others_go_on(tmp_path: Path) -> None:
    vision = VisionServer(refuse=lambda text: len(vision.texts) == 1)
    with vision.running() as url:
        one = AsyncOpenAIClient(base_url=url, max_concurrent_requests=1)
        rows, result = run([SPLIT, CaptionPreparationStage(), CaptionGenerationStage(one, "see")])
    assert [row["start"] for row in rows] == [10.0]
    [record] = result.quarantined()
    assert "0.000 to 10.000 s: status 400" in record.error
    assert "windows" not in record.row


def test_nothing_is_asked_twice(server: tuple[VisionServer, str], tmp_path: Path) -> None:
    vision, url = server
    stages = [
        SPLIT,
        CaptionPreparationStage(),
        CaptionGenerationStage(client(url), "see", cache=str(tmp_path / "answers")),
    ]
    first, _ = run(stages)
    again, _ = run(stages)
    assert len(vision.texts) == 2
    assert again == first


def test_a_language_model_rewrites_captions(server: tuple[VisionServer, str], llm_server: str) -> None:
    stages = [
        FixedStrideExtractorStage(10.0, 10.0, limit_clips=1),
        CaptionPreparationStage(),
        CaptionGenerationStage(client(server[1]), "see"),
        CaptionEnhancementStage(client(llm_server), "smollm2", "smollm2", max_output_tokens=12),
    ]
    [row], result = run(stages)
    assert row["enhanced_caption"]
    assert row["windows"][0]["smollm2_enhanced_caption"] == row["enhanced_caption"]
    assert result.summary().stages[-1].counts["answer_tokens"] <= 12


@pytest.mark.parametrize(("make", "message"), [
    (lambda: CaptionPreparationStage(prompt_variant="long"), "prompt_variant is 'long'"),
    (lambda: CaptionPreparationStage(window_size=0), "window_size is 0"),
    (lambda: CaptionPreparationStage(sampling_fps=0), "above 0"),
    (lambda: CaptionEnhancementStage({"base_url": "http://x/v1"}, "m", prompt_variant="long"), "prompt_variant"),
    (lambda: CaptionGenerationStage({"base_url": "http://x/v1"}), "model_name must be given"),
])  # fmt: skip
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
