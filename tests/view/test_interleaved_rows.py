"""A document of text and pictures is shown with the pictures in their places."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from gristmill.interleaved import InterleavedBatch, InterleavedDocumentsWriter, InterleavedWebdatasetReader
from tests.interleaved.interleaved_fixtures import picture, run, write_mint
from tests.view.test_server import View, ask, look


def test_pictures_stand_in_the_text(tmp_path: Path) -> None:
    items = [
        {"kind": "text", "text": "Before."},
        {"kind": "image", "bytes": picture(1)},
        {"kind": "text", "text": "Between <b>."},
        {"kind": "image", "ref": {"path": "https://example.com/a.png"}},
        {"kind": "text", "text": "After."},
    ]
    pq.write_table(InterleavedBatch([{"doc_id": "a", "items": items}]).data, tmp_path / "rows.parquet")
    with View(str(tmp_path)) as view:
        listed = look(view, **{"in": "rows"})
        assert len([tag for tag, _ in listed.elements if tag == "img"]) == 1
        answer, body = ask(view, listed.links("row?")[0])
        page = body.decode()
        assert answer.status == 200
        places = [
            page.index(words) for words in ("Before.", "<img", "Between &lt;b&gt;.", "example.com/a.png]", "After.")
        ]
        assert places == sorted(places)
        [source] = [found["src"] for tag, found in listed.elements if tag == "img"]
        answer, body = ask(view, source)
        assert (answer.getheader("Content-Type"), body) == ("image/png", picture(1))
        assert ask(view, source.replace("items.1", "items.3"))[0].status == 404
        assert ask(view, source.replace("items.1", "items.99"))[0].status == 404


def test_pictures_in_archives_are_shown_only_from_the_folder_of_the_data(tmp_path: Path) -> None:
    source = write_mint(tmp_path / "data" / "tars", documents=2)
    for target in (tmp_path / "data" / "out", tmp_path / "elsewhere"):
        run(InterleavedWebdatasetReader(str(source)), InterleavedDocumentsWriter(str(target)))
    found = {}
    for place in ("data/out", "elsewhere"):
        with View(str(tmp_path / place)) as view:
            page = look(view, **{"in": "rows"})
            found[place] = [ask(view, one["src"])[1] for tag, one in page.elements if tag == "img"]
    assert found == {"data/out": [], "elsewhere": []}
    with View(str(tmp_path / "data" / "out"), follow_paths=True) as view:
        page = look(view, **{"in": "rows"})
        first = next(found["src"] for tag, found in page.elements if tag == "img")
        assert ask(view, first)[1] == picture(0)
