"""Each form is read and written, and what is written is read again as it was."""

from __future__ import annotations

import base64
import gzip
import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gristmill import LocalExecutor
from gristmill.interleaved import (
    ChatJsonlReader,
    ChatJsonlWriter,
    InterleavedBatch,
    InterleavedDocumentsWriter,
    InterleavedExplodeStage,
    InterleavedHtmlReader,
    InterleavedHtmlStage,
    InterleavedImplodeStage,
    InterleavedMaterializeStage,
    InterleavedParquetReader,
    InterleavedParquetWriterStage,
    InterleavedWebdatasetReader,
    InterleavedWebdatasetWriterStage,
)
from gristmill.interleaved.forms.item_rows import rows_of_documents
from gristmill.interleaved.forms.mint_tar import write_document
from gristmill.interleaved.item_columns import PLACEHOLDER
from gristmill.recipes import load_recipe
from gristmill.text import JsonlReader
from tests.interleaved.interleaved_fixtures import mint_files, picture, rows, run, tar_bytes, write_mint

READER = {"doc_id", "source", "text", "items", "metadata"}


def contents(found: list[dict[str, Any]]) -> list[Any]:
    """What documents are, wherever they were read: id, kinds, texts, bytes."""
    return sorted(
        (row["doc_id"], [(item["kind"], item["text"], item["bytes"]) for item in row["items"]]) for row in found
    )


def test_tars_of_mint_are_read_by_reference(tmp_path: Path) -> None:
    found = rows(InterleavedWebdatasetReader(str(write_mint(tmp_path / "mint"))))
    assert len(found) == 6
    first = found[0]
    assert first["text"].split("\n\n")[1] == PLACEHOLDER
    assert json.loads(first["metadata"]) == {"url": "https://a.b/0"}
    [image, _] = [item for item in first["items"] if item["kind"] == "image"]
    assert image["bytes"] is None
    with Path(image["ref"]["path"]).open("rb") as file:
        file.seek(image["ref"]["offset"])
        assert file.read(image["ref"]["size"]) == picture(0)


def test_compressed_tars_have_their_bytes(tmp_path: Path) -> None:
    [plain] = sorted(write_mint(tmp_path / "mint", documents=2).glob("*.tar"))
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "a.tar.gz").write_bytes(gzip.compress(plain.read_bytes()))
    read = rows(InterleavedWebdatasetReader(str(plain)), InterleavedMaterializeStage())
    assert contents(rows(InterleavedWebdatasetReader(str(packed)))) == contents(read)


FORMS = {
    "rows": (InterleavedParquetWriterStage, InterleavedParquetReader),
    "documents": (InterleavedDocumentsWriter, InterleavedParquetReader),
    "tars": (InterleavedWebdatasetWriterStage, InterleavedWebdatasetReader),
    "conversations": (ChatJsonlWriter, ChatJsonlReader),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_is_read_again(form: str, tmp_path: Path) -> None:
    source = str(write_mint(tmp_path / "mint"))
    writer, reader = FORMS[form]
    run(InterleavedWebdatasetReader(source), writer(str(tmp_path / "out"), materialize_on_write=True))
    wanted = rows(InterleavedWebdatasetReader(source), InterleavedMaterializeStage())
    again = rows(reader(str(tmp_path / "out")), InterleavedMaterializeStage())
    assert contents(again) == contents(wanted)
    assert [row["text"] for row in again] == [row["text"] for row in wanted]
    assert [json.loads(row["metadata"])["url"] for row in again] == [f"https://a.b/{n}" for n in range(6)]


@pytest.mark.parametrize("form", FORMS)
def test_the_bytes_of_the_output_do_not_depend_on_blocks_or_workers(form: str, tmp_path: Path) -> None:
    source = str(write_mint(tmp_path / "mint", documents=12, per_tar=6))
    outputs = []
    for number, (blocksize, workers) in enumerate([(None, 0), (6_000, 0), (20_000, 2)]):
        target = tmp_path / f"out{number}"
        reader = InterleavedWebdatasetReader(source, blocksize=blocksize)
        run(reader, FORMS[form][0](str(target), materialize_on_write=True), workers=workers)
        outputs.append({path.name: path.read_bytes() for path in sorted(target.iterdir()) if path.is_file()})
    assert outputs[0] == outputs[1] == outputs[2]


def test_every_kind_of_item_survives_a_tar_and_rows(tmp_path: Path) -> None:
    """A record of a film is a row like any other: the clip, its transcript with times, and frames of it."""
    clip = [
        {"kind": "video", "bytes": b"\0\0\0\x18ftypmp42", "mime": "video/mp4", "start": 0.0, "end": 8.0},
        {"kind": "text", "text": "A door opens.", "start": 0.5, "end": 2.0, "meta": {"speaker": "A"}},
        {"kind": "image", "bytes": picture(1), "mime": "image/png", "width": 48, "height": 32, "start": 1.0},
        {"kind": "audio", "bytes": b"RIFF....WAVE", "mime": "audio/wav", "start": 0.0, "end": 8.0},
    ]
    film = {"doc_id": "film/1", "items": clip, "metadata": '{"camera":2}'}
    batch = InterleavedBatch([film, {"doc_id": "empty", "items": []}])
    assert batch.data.column("text")[0].as_py() == f"{PLACEHOLDER}\n\nA door opens.\n\n{PLACEHOLDER}\n\n{PLACEHOLDER}"
    for form in ("rows", "documents", "tars"):
        writer, reader = FORMS[form]
        target = str(tmp_path / form)
        pq.write_table(batch.data, tmp_path / "in.parquet")
        run(InterleavedParquetReader(str(tmp_path / "in.parquet")), writer(target))
        again = rows(reader(target), InterleavedMaterializeStage())
        assert [row["doc_id"] for row in again] == ["film/1", "empty"]
        left_out = ("ref", "bytes") if form == "documents" else ("ref",)
        wanted = [{**item, "meta": '{"speaker":"A"}' if "meta" in item else None} for item in clip]
        for item, whole in zip(again[0]["items"], wanted, strict=True):
            assert {k: v for k, v in item.items() if v is not None and k not in left_out} == {
                k: v for k, v in whole.items() if v is not None and k not in left_out
            }


def test_rows_of_nemo_curator_are_documents(tmp_path: Path) -> None:
    table = pa.table(
        {
            "sample_id": ["a", "a", "a", "b"],
            "position": pa.array([-1, 1, 0, 0], pa.int32()),
            "modality": ["metadata", "image", "text", "text"],
            "content_type": ["application/json", "image/png", "text/plain", "text/plain"],
            "text_content": ['{"n":1}', None, "one", "two"],
            "binary_content": pa.array([None, picture(), None, None], pa.large_binary()),
            "source_ref": [None, '{"path":"/etc/passwd","member":null}', None, None],
            "materialize_error": pa.nulls(4, pa.string()),
            "quality": [0.5, None, None, 0.25],
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=1)
    first, second = rows(InterleavedParquetReader(str(tmp_path / "rows.parquet")))
    assert (first["doc_id"], first["text"], first["quality"]) == ("a", f"one\n\n{PLACEHOLDER}", 0.5)
    assert first["items"][1]["ref"] is None  # it leads out of the folder of the input
    assert (second["doc_id"], second["text"], second["quality"]) == ("b", "two", 0.25)
    back = rows(InterleavedParquetReader(str(tmp_path / "rows.parquet")), InterleavedExplodeStage())
    assert [row["position"] for row in back] == [-1, 0, 1, -1, 0]
    assert [row["quality"] for row in back] == [0.5, 0.5, 0.5, 0.25, 0.25]
    assert InterleavedBatch(table).count("image") == 1


def test_obelics_lists_are_documents(tmp_path: Path) -> None:
    lists = [
        {"texts": ["a", None], "images": [None, "https://example.com/a.jpg"], "general_metadata": "{}"},
        {"texts": ["only"], "images": [None, None], "general_metadata": "{}"},
        {"texts": [None, "b"], "images": ["https://example.com/b.jpg", None], "general_metadata": "{}"},
    ]
    pq.write_table(pa.Table.from_pylist(lists), tmp_path / "obelics.parquet")
    done = run(InterleavedParquetReader(str(tmp_path / "obelics.parquet")), max_errors=5)
    found = [row for batch in done for row in batch.to_rows()]
    assert [row["text"] for row in found] == [f"a\n\n{PLACEHOLDER}", f"{PLACEHOLDER}\n\nb"]
    assert found[0]["items"][1]["ref"]["path"] == "https://example.com/a.jpg"
    assert len(list(done.quarantined())) == 1  # lists of unequal length


def conversation(**more: Any) -> dict[str, Any]:
    data = base64.b64encode(picture()).decode()
    return {
        "id": "c1",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is on these?"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}", "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "https://example.com/a.jpg"}},
                    {"type": "image", "image": "cat.png"},
                    {"type": "tool_result", "value": [1, 2]},
                ],
            },
            {"role": "assistant", "content": None, "tool_calls": [{"name": "look"}]},
            {"role": "assistant", "content": "Cats."},
        ],
        **more,
    }


def test_a_conversation_is_written_as_it_was_read(tmp_path: Path) -> None:
    given = conversation(source_set="x")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text(json.dumps(given) + "\n")
    (tmp_path / "in" / "cat.png").write_bytes(picture(3))
    reader = ChatJsonlReader(str(tmp_path / "in"))
    [row] = rows(reader)
    assert [item["kind"] for item in row["items"]] == [
        "text",
        "text",
        "image",
        "image",
        "image",
        "other",
        "text",
        "text",
    ]
    assert row["items"][2]["bytes"] == picture()
    assert row["items"][4]["ref"]["path"] == str(tmp_path / "in" / "cat.png")
    run(reader, ChatJsonlWriter(str(tmp_path / "out")))
    [out] = (tmp_path / "out").glob("*.jsonl")
    assert json.loads(out.read_text()) == given


def test_explode_and_implode_give_the_same_documents(tmp_path: Path) -> None:
    source = str(write_mint(tmp_path / "mint"))
    found = rows(InterleavedWebdatasetReader(source), InterleavedExplodeStage(), InterleavedImplodeStage())
    assert contents(found) == contents(rows(InterleavedWebdatasetReader(source)))


def test_html_keeps_pictures_in_their_places(tmp_path: Path) -> None:
    paragraph = (
        "This is the first paragraph of an article that has many words in it, and it is about the things that we know "
        "of the world and what is in it, so that it is clear that this is the content of the page and not a menu. "
    ) * 2
    page = f"""<html><body><div class=nav><a href=/><img src=/logo.png></a> <a href=/a>Home</a></div>
    <h1>A title</h1><p>{paragraph}</p><figure><img src="cat.png" alt="A &amp; B" width=40 height=30></figure>
    <p>{paragraph}<img data-src='https://example.com/in.jpg'> And so on, as it was said at the beginning of it.</p>
    <div id=foot><img src=ad.gif><a href=x>Terms</a></div></body></html>"""
    (tmp_path / "page.html").write_text(page)
    (tmp_path / "cat.png").write_bytes(picture())
    [row] = rows(InterleavedHtmlReader(str(tmp_path)))
    pictures = [item for item in row["items"] if item["kind"] == "image"]
    assert [one["ref"]["path"] for one in pictures] == [str(tmp_path / "cat.png"), "https://example.com/in.jpg"]
    assert (pictures[0]["meta"], pictures[0]["width"]) == ('{"alt":"A & B"}', 40)
    assert [item["kind"] for item in row["items"]][-4:] == ["image", "text", "image", "text"]


def test_names_in_a_tar_are_found_in_each_way(tmp_path: Path) -> None:
    files = mint_files("a", ["x", None, None], [None, "one.jpg", "https://example.com/b.jpg"])
    files |= {"b.json": json.dumps({"texts": [None, None], "images": ["p0", "p1"]}).encode()}
    files |= {"b.10.png": picture(2), "b.2.png": picture(1)}
    (tmp_path / "a.tar").write_bytes(
        tar_bytes({"a.json": files.pop("a.json"), "a.one.jpg": files.pop("one.jpg"), **files})
    )
    first, second = rows(
        InterleavedWebdatasetReader(str(tmp_path / "a.tar")), InterleavedMaterializeStage(on_materialize_error="warn")
    )
    assert [item["ref"]["path"].rpartition("/")[2] for item in first["items"][1:] if item["ref"]] == ["a.tar", "b.jpg"]
    assert [item["bytes"] for item in second["items"]] == [picture(1), picture(2)]


def pages_of_tiff() -> bytes:
    out = io.BytesIO()
    pages = [Image.open(io.BytesIO(picture(at))) for at in range(3)]
    pages[0].save(out, "TIFF", save_all=True, append_images=pages[1:])
    return out.getvalue()


@pytest.mark.parametrize("packed", [False, True])
def test_pages_of_a_tiff_are_pictures_of_their_own(packed: bool, tmp_path: Path) -> None:
    described = json.dumps({"texts": [None, "a", None, None], "images": ["p0", None, "p1", "p2"]}).encode()
    data = tar_bytes({"d.json": described, "d.tiff": pages_of_tiff()})
    (tmp_path / ("a.tar.gz" if packed else "a.tar")).write_bytes(gzip.compress(data) if packed else data)
    [row] = rows(InterleavedWebdatasetReader(str(tmp_path)), InterleavedMaterializeStage())
    pictures = [item for item in row["items"] if item["kind"] == "image"]
    assert [item["ref"]["frame"] for item in pictures] == [0, 1, 2]
    for at, item in enumerate(pictures):
        with Image.open(io.BytesIO(item["bytes"])) as page, Image.open(io.BytesIO(picture(at))) as wanted:
            assert getattr(page, "n_frames", 1) == 1
            assert page.tobytes() == wanted.tobytes()


def test_pages_in_a_column_become_documents(tmp_path: Path) -> None:
    paragraph = (
        "This is a paragraph of an article with many words that say what there is to be said of the matter. " * 4
    )
    html = f"<html><body><p>{paragraph}</p><img src=a.png><p>{paragraph}</p></body></html>"
    given = [{"url": "https://example.com/x/", "html": html, "lang": "en"}, {"url": "u", "html": html, "lang": "en"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in given))
    first, second = rows(JsonlReader(str(tmp_path)), InterleavedHtmlStage())
    assert [item["kind"] for item in first["items"]] == ["text", "image", "text"]
    assert first["items"][1]["ref"]["path"] == "https://example.com/x/a.png"
    assert (first["doc_id"], first["lang"], "html" in first) == ("https://example.com/x/", "en", False)
    assert [item["kind"] for item in second["items"]] == ["text", "text"]  # an address that is none


def test_a_recipe_gives_filters_to_items(tmp_path: Path) -> None:
    write_mint(tmp_path / "mint")
    (tmp_path / "recipe.yaml").write_text(
        f"""stages:
  - InterleavedWebdatasetReader: {{file_paths: {tmp_path / "mint"}}}
  - InterleavedEach: {{filter_obj: {{ImageResolutionFilter: {{min_side: 1000}}}}, on_drop: item}}
  - InterleavedModify: {{modifier_fn: [{{UrlRemover: {{}}}}, {{LineCleaner: {{}}}}]}}
  - ChatJsonlWriter: {{path: {tmp_path / "out"}}}
"""
    )
    load_recipe(str(tmp_path / "recipe.yaml")).build().run(LocalExecutor(num_workers=0))
    lines = [json.loads(line) for path in (tmp_path / "out").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert len(lines) == 6
    assert {part["type"] for line in lines for part in line["messages"][0]["content"]} == {"text"}


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=[PLACEHOLDER]), max_size=8)
described = st.fixed_dictionaries(
    {"kind": st.sampled_from(["text", "image", "audio", "table"])},
    optional={
        "text": words,
        "bytes": st.binary(max_size=8),
        "mime": st.sampled_from(["image/png", "audio/wav", "x/y"]),
        "width": st.integers(0, 9),
        "start": st.floats(0, 9),
        "meta": st.dictionaries(words, st.integers(0, 9), max_size=2),
        "ref": st.fixed_dictionaries({"path": words.filter(bool)}, optional={"offset": st.integers(0, 9)}),
    },
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.lists(described, max_size=5), st.none() | st.just('{"a":1}')), min_size=1, max_size=5))
def test_rows_of_items_hold_all_that_documents_hold(given_documents: list[Any]) -> None:
    documents = [
        {"doc_id": f"d{at}", "items": items, "metadata": metadata, "score": at / 2}
        for at, (items, metadata) in enumerate(given_documents)
    ]
    batch = InterleavedBatch(documents)
    table = rows_of_documents(batch.data, batch.items())
    assert table.num_rows == len(documents) + batch.count()
    again = InterleavedBatch(table)
    assert again.items().to_pylist() == batch.items().to_pylist()
    for name in ("doc_id", "text", "metadata", "score"):
        assert again.data.column(name).to_pylist() == batch.data.column(name).to_pylist()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(described, max_size=5), min_size=1, max_size=4))
def test_tars_hold_all_that_documents_hold(given_documents: list[Any]) -> None:
    batch = InterleavedBatch([{"doc_id": f"d{at}", "items": items} for at, items in enumerate(given_documents)])
    out = io.BytesIO()
    for row in batch.to_rows():
        write_document(out, row, set())
    with TemporaryDirectory() as folder:
        Path(folder, "a.tar").write_bytes(out.getvalue() + bytes(1024))
        again = rows(InterleavedWebdatasetReader(folder, materialize_on_read=True))
    left_out = ("ref", "mime", "meta")  # places are new ones, kinds of files are those of their names
    for row, wanted in zip(again, batch.to_rows(), strict=True):
        assert row["doc_id"] == wanted["doc_id"]
        for item, whole in zip(row["items"], wanted["items"], strict=True):
            kept = [name for name in item if name not in left_out and (name, item["kind"]) != ("bytes", "text")]
            assert [item[name] for name in kept] == [whole[name] for name in kept]
