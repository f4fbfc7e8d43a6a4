"""Filters of other modalities on items, the filters of NeMo Curator, and what they leave."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
import zxingcpp
from PIL import Image

from gristmill import LocalExecutor, Pipeline
from gristmill.audio import AudioDurationFilter
from gristmill.dedup import ExactDeduplicationStage, FuzzyDeduplicationStage
from gristmill.image import ImageAspectRatioFilter, ImageBlurFilter, ImageQRCodeFilter
from gristmill.interleaved import (
    InterleavedAspectRatioFilterStage,
    InterleavedBatch,
    InterleavedBlurFilterStage,
    InterleavedCLIPScoreFilterStage,
    InterleavedDownloadStage,
    InterleavedEach,
    InterleavedImageToTextRatioFilterStage,
    InterleavedMediaDeduplicationStage,
    InterleavedQRCodeFilterStage,
    InterleavedWebdatasetReader,
)
from gristmill.models import export
from gristmill.text import Modify, ScoreFilter, UnicodeReformatter, WordCountFilter
from tests.audio.sound_fixtures import noise, wav
from tests.download.file_server import Shelf, open_shelf
from tests.interleaved.interleaved_fixtures import picture, rows, smooth_picture, write_mint
from tests.models.clip_fixtures import small_clip


def text(words: str) -> dict[str, Any]:
    return {"kind": "text", "text": words}


def image(data: bytes | None, **more: Any) -> dict[str, Any]:
    return {"kind": "image", "bytes": data, **more}


def batch(*documents: list[dict[str, Any]]) -> InterleavedBatch:
    return InterleavedBatch([{"doc_id": str(at), "items": items} for at, items in enumerate(documents)])


def kinds(found: Any) -> list[list[str]]:
    return [[item["kind"] for item in items] for items in found.items().to_pylist()]


def apply(stage: Any, given: InterleavedBatch, **settings: Any) -> Any:
    return Pipeline("filter", stages=[stage]).run(LocalExecutor(num_workers=0), initial_tasks=[given], **settings)


WIDE, TALL = picture(0, 60, 30), picture(1, 20, 60)


def code(size: int = 100, canvas: int = 200) -> bytes:
    barcode = zxingcpp.create_barcode("https://example.com", zxingcpp.BarcodeFormat.QRCode)
    drawn = Image.fromarray(zxingcpp.write_barcode_to_image(barcode, scale=4)).convert("RGB").resize((size, size))
    page = Image.new("RGB", (canvas, canvas), "white")
    page.paste(drawn, (20, 20))
    out = io.BytesIO()
    page.save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize(
    ("stage", "pictures", "kept"),
    [
        (InterleavedAspectRatioFilterStage(), [WIDE, TALL, picture(2, 30, 30)], [True, False, True]),
        (InterleavedAspectRatioFilterStage(min_aspect_ratio=0.2, max_aspect_ratio=0.5), [WIDE, TALL], [False, True]),
        (InterleavedBlurFilterStage(), [picture(3), smooth_picture()], [True, False]),
        (InterleavedQRCodeFilterStage(), [picture(3), code()], [True, False]),
        (InterleavedQRCodeFilterStage(score_threshold=0.5), [code()], [True]),
        (InterleavedEach(ImageBlurFilter(), invert=True), [picture(3), smooth_picture()], [False, True]),
    ],
)
def test_pictures_are_dropped_with_their_place_in_the_text(stage: Any, pictures: list[bytes], kept: list[bool]) -> None:
    given = batch([text("before"), *map(image, pictures), text("after")], [text("no pictures")])
    [found] = apply(stage, given)
    left = [item["bytes"] for item in found.items().to_pylist()[0] if item["kind"] == "image"]
    assert left == [data for data, keep in zip(pictures, kept, strict=True) if keep]
    assert found.data.column("text").to_pylist() == [
        "\n\n".join(["before", *["\ufffc"] * sum(kept), "after"]),
        "no pictures",
    ]


def test_the_share_of_a_qr_code_is_that_of_its_area() -> None:
    from gristmill import ImageBatch
    from gristmill.image import ImageScore

    found = ImageScore(ImageQRCodeFilter(), "share").process(ImageBatch([{"image_id": "a", "image": code(100, 200)}]))
    assert 0.1 < found.data.column("share")[0].as_py() < 0.3


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"on_drop": "item"}, [["text", "image"], ["text"], ["text"]]),
        ({"on_drop": "item", "min_items": 1}, [["text", "image"]]),
        ({"on_drop": "document"}, [["text", "image"], ["text"]]),
    ],
)
def test_an_item_goes_or_its_document(settings: Any, left: Any) -> None:
    given = batch([text("a"), image(WIDE)], [text("b"), image(TALL)], [text("c")])
    [found] = apply(InterleavedEach(ImageAspectRatioFilter(1.0, 3.0), **settings), given)
    assert sorted(kinds(found)) == sorted(left)


def test_texts_are_judged_one_by_one_and_audio_by_its_own_filters() -> None:
    sound = {"kind": "audio", "bytes": wav(noise(1.0, 8000), 8000), "mime": "audio/wav"}
    given = batch([text("one"), text("many words are here"), sound])
    [found] = apply(InterleavedEach(WordCountFilter(min_words=3)), given)
    assert found.data.column("text").to_pylist() == ["many words are here\n\n\ufffc"]
    [found] = apply(InterleavedEach(AudioDurationFilter(2.0)), found)
    assert kinds(found) == [["text"]]


def test_bad_pictures_are_counted_or_take_their_document_to_quarantine() -> None:
    given = batch([text("a"), image(b"no picture"), image(WIDE)], [text("b"), image(None)], [text("c"), image(WIDE)])
    stage = InterleavedEach(ImageAspectRatioFilter(1.0, 3.0))
    [found] = apply(stage, given)
    assert kinds(found) == [["text", "image"], ["text"], ["text", "image"]]
    done = apply(InterleavedEach(ImageAspectRatioFilter(1.0, 3.0), on_bad_item="document"), given, max_errors=5)
    assert [kinds(one) for one in done] == [[["text", "image"]]]
    assert len(list(done.quarantined())) == 2


@pytest.mark.parametrize(
    ("limits", "kept"),
    [((0.0, math.inf), [0, 1, 2]), ((0.1, 1.0), [0, 2]), ((0.0, 0.4), [1]), ((1.0, math.inf), [2])],
)
def test_pictures_per_word(limits: tuple[float, float], kept: list[int]) -> None:
    given = batch([text("  two words "), image(WIDE)], [text("no pictures")], [image(WIDE), text(" ")])
    stage = InterleavedImageToTextRatioFilterStage(min_ratio=limits[0], max_ratio=limits[1])
    done = apply(stage, given)
    assert [int(row["doc_id"]) for one in done for row in one.to_rows()] == kept


def test_clip_scores_are_the_best_of_the_texts(tmp_path: Path) -> None:
    export(small_clip(tmp_path / "weights"), tmp_path / "onnx")
    given = batch([text("a red cat"), text("the sea"), image(picture(5)), image(b"no picture")], [image(WIDE)])
    model = str(tmp_path / "onnx")
    [all_kept] = apply(InterleavedCLIPScoreFilterStage(model_dir=model, min_score=-1.0), given)
    assert kinds(all_kept) == [["text", "text", "image"], []]
    stage = InterleavedCLIPScoreFilterStage(model_dir=model, min_score=-1.0, on_drop="document")
    stage.setup()
    scores = stage.decide(given).scores[stage.filter_obj.name].to_pylist()
    single = [stage.decide(batch([text(words), image(picture(5))])).scores for words in ("a red cat", "the sea")]
    assert scores[0] == pytest.approx(max(one[stage.filter_obj.name][0].as_py() for one in single))
    [none_kept] = apply(InterleavedCLIPScoreFilterStage(model_dir=model, min_score=0.999), given)
    assert kinds(none_kept) == [["text", "text"], []]


# -- text stages and deduplication, unchanged ----------------------------------------------------------------------


def test_stages_of_text_run_unchanged_and_items_follow(tmp_path: Path) -> None:
    source = str(write_mint(tmp_path / "mint"))
    plain = [
        Modify(UnicodeReformatter()),
        Modify(lambda text: text.replace("goes on", "continues")),
        ScoreFilter(WordCountFilter(5)),
    ]
    found = rows(InterleavedWebdatasetReader(source), *plain)
    assert len(found) == 6
    for row in found:
        texts = [item["text"] if item["kind"] == "text" else "\ufffc" for item in row["items"]]
        assert row["text"] == "\n\n".join(texts)
        assert "continues" in texts[2]


@pytest.mark.parametrize("stage", [ExactDeduplicationStage(), FuzzyDeduplicationStage()])
def test_deduplication_of_text_keeps_items_whole(stage: Any, tmp_path: Path) -> None:
    long = " ".join(f"word{at}" for at in range(60))
    documents = [[text(long), image(WIDE)], [text(long), image(TALL)], [text("something else " * 9), image(WIDE)]]
    import pyarrow.parquet as pq

    pq.write_table(batch(*documents).data, tmp_path / "in.parquet")
    from gristmill.interleaved import InterleavedParquetReader

    found = rows(InterleavedParquetReader(str(tmp_path / "in.parquet")), stage, run_dir=str(tmp_path / "run"))
    assert [row["doc_id"] for row in found] == ["0", "2"]
    assert found[0]["items"][1]["bytes"] == WIDE


def test_pictures_that_were_there_before_are_dropped(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from gristmill.interleaved import InterleavedParquetReader

    given = batch(
        [text("a"), image(WIDE), image(WIDE)], [text("b"), image(TALL), image(WIDE)], [image(WIDE)], [text("b")]
    )
    pq.write_table(given.data, tmp_path / "in.parquet")
    reader = InterleavedParquetReader(str(tmp_path / "in.parquet"))
    found = sorted(rows(reader, InterleavedMediaDeduplicationStage()), key=lambda row: row["doc_id"])
    assert [[item["bytes"] or item["text"] for item in row["items"]] for row in found] == [
        ["a", WIDE],
        ["b", TALL],
        [],
        ["b"],
    ]
    assert "item_hash" not in found[0]


# -- the web --------------------------------------------------------------------------------------------------------


def test_pictures_are_only_fetched_by_the_stage_for_it_and_never_from_private_hosts() -> None:
    with open_shelf() as shelf:
        _fill(shelf)
        place = f"{shelf.url}/a.png"
        given = batch([text("a"), image(None, ref={"path": place}), image(None, ref={"path": f"{shelf.url}/none.png"})])
        [untouched] = apply(InterleavedDownloadStage("warn", retries=0), given)
        assert untouched.items().to_pylist() == given.items().to_pylist()
        assert not shelf.asked
        [found] = apply(InterleavedDownloadStage(allow_private=True, retries=0), given)
        assert kinds(found) == [["text", "image"]]
        assert found.items()[0][1].as_py()["bytes"] == WIDE
        assert found.items()[0][1].as_py()["mime"] == "image/png"


def _fill(shelf: Shelf) -> None:
    shelf.files["/a.png"] = WIDE


def test_a_picture_that_was_not_downloaded_is_no_picture_for_a_filter() -> None:
    given = batch([text("a"), image(None, ref={"path": "https://example.com/a.png"})])
    done = apply(InterleavedEach(ImageAspectRatioFilter()), given, max_errors=5)
    assert "InterleavedDownloadStage" in next(iter(done.quarantined())).error
