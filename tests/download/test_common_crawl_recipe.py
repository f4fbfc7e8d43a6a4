"""The bundled recipe for Common Crawl, from the command: a WARC file in, curated Parquet out."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gristmill.cli.main import app
from tests.download.warc_fixtures import MUEHLE, page, write_warc
from tests.recipes.test_bundled_recipes import ENGLISH

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # warcio leaves files open


def test_a_warc_file_becomes_curated_parquet(tmp_path: Path) -> None:
    other = ENGLISH.replace("miller", "smith").replace("stream", "forge") + " The bellows had a hole, and they knew it."
    texts = {
        "good": [ENGLISH],
        "copy": [ENGLISH],
        "near": [ENGLISH + " So they said."],
        "other": [
            other,
            "A second paragraph that is quite its own, and that has nothing of the first one in it at all.",
        ],
        "german": [MUEHLE * 3],
        "short": ["It was cold, and that was that."],
    }
    source = tmp_path / "in"
    source.mkdir()
    pages = [(f"http://example.org/{name}", page(name, body).encode(), "text/html") for name, body in texts.items()]
    write_warc(source / "a.warc.gz", pages)
    settings = ["--set", f"input={source}", "--set", f"output={tmp_path / 'out'}"]
    done = CliRunner().invoke(app, ["run", "common-crawl", *settings, "--workers", "0", "--quiet"])
    assert done.exit_code == 0, done.output
    table = pq.read_table(tmp_path / "out", columns=["url", "language", "text", "warc_id", "file_name"])
    assert [url.rpartition("/")[2] for url in table.column("url").to_pylist()] == ["good", "other"]
    assert set(table.column("language").to_pylist()) == {"en"}
    assert "home" not in table.column("text")[0].as_py()
