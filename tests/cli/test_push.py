"""`gristmill push`: an output goes to another place, and what was removed from it stays where it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gristmill import LocalExecutor, Pipeline, Route
from gristmill.cli.main import app
from gristmill.core.errors import InputError
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.push_files import Pushed, push_files, verified_output
from gristmill.io.write.push_to_hub import commit_contents, parse_hub_url
from gristmill.text import JsonlReader, JsonlWriter, ParquetWriter, ScoreFilter, WordCountFilter

HERE = LocalExecutor(0)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output of three files, with rejected rows, scores, a report and a quarantined record beside it."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        rows = [{"id": f"{number}-{row}", "text": "word " * row} for row in range(10)]
        lines = [json.dumps(row) for row in rows] + ["{broken"]
        (tmp_path / "in" / f"{number}.jsonl").write_text("\n".join(lines))
    write(tmp_path, tmp_path / "out")
    return tmp_path / "out"


def write(tmp_path: Path, out: Path | str, **options: Any) -> None:
    writer = JsonlWriter(out, mode="overwrite", **options)
    stages = [JsonlReader(tmp_path / "in"), ScoreFilter(WordCountFilter(4)), writer]
    run_dir = tmp_path / "out.run" if isinstance(out, Path) else None
    Pipeline("pushed", stages=stages).run(HERE, run_dir=run_dir, rejected=True, scores=True, max_errors=None)


def push(out: Path | str, target: Path | str, **options: Any) -> Pushed:
    source, entries = verified_output(str(out))
    return push_files(source, entries, OutputDirectory(target), **options)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names(folder)}


def gristmill(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["push", *map(str, arguments)])


def test_only_data_and_the_card_are_pushed(out: Path, tmp_path: Path) -> None:
    done = gristmill(out, tmp_path / "public")
    assert done.exit_code == 0, done.stderr
    assert "3 files" in done.stdout
    assert "3/3  100%" in done.stderr
    assert names(tmp_path / "public") == sorted([*names(out), "README.md"])
    assert contents(out).items() < contents(tmp_path / "public").items()
    assert "# pushed" in (tmp_path / "public" / "README.md").read_text()
    bare = gristmill(out.with_suffix(".run"), tmp_path / "bare", "--no-card", "--quiet")
    assert (bare.stdout, bare.stderr) == ("", "")
    assert contents(tmp_path / "bare") == contents(out)


def test_a_push_that_was_stopped_goes_on(out: Path, tmp_path: Path) -> None:
    def stop(name: str, size: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push(out, tmp_path / "public", on_file=stop)
    assert len(names(tmp_path / "public")) == 1
    again = push(out, tmp_path / "public")
    assert (again.copied, again.kept) == (2, 1)
    assert contents(tmp_path / "public") == contents(out)
    assert push(out, tmp_path / "other").copied == 3


def test_a_file_that_changed_or_is_missing_is_not_pushed(out: Path, tmp_path: Path) -> None:
    last = sorted(out.iterdir())[-1]
    raw = last.read_bytes()
    last.write_bytes(raw.replace(b"word", b"ward"))
    with pytest.raises(InputError, match=r"is not as it was written.*checksum differs"):
        push(out, tmp_path / "public")
    last.unlink()
    with pytest.raises(InputError, match="is missing"):
        push(out, tmp_path / "public")
    last.write_bytes(raw)
    (out / "secret.txt").write_text("not listed")
    with pytest.raises(InputError, match=r"has .*secret.txt.*manifest does not list"):
        push(out, tmp_path / "public")
    assert not (tmp_path / "public").exists()


def test_data_of_others_in_the_target_is_an_error(out: Path, tmp_path: Path) -> None:
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "older.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"older.jsonl.*would be read as part of this output"):
        push(out, tmp_path / "public")
    assert names(tmp_path / "public") == ["older.jsonl"]


def test_files_that_are_no_longer_in_the_output_go(out: Path, tmp_path: Path) -> None:
    push(out, tmp_path / "public")
    (tmp_path / "in" / "1.jsonl").unlink()
    write(tmp_path, out)
    for path in out.glob("1-*"):  # a run leaves the output of inputs that are gone
        path.unlink()
    write(tmp_path, out)
    assert push(out, tmp_path / "public").removed == 1
    assert contents(tmp_path / "public") == contents(out)


def test_a_card_that_was_edited_is_kept(out: Path, tmp_path: Path) -> None:
    readme = tmp_path / "public" / "README.md"
    push(out, tmp_path / "public", card="first")
    assert push(out, tmp_path / "public", card="second").notes == ()
    assert readme.read_text() == "second"
    readme.write_text("licence: mine")
    assert "was not replaced" in push(out, tmp_path / "public", card="third").notes[0]
    assert readme.read_text() == "licence: mine"


def test_outputs_of_a_route_are_pushed_one_by_one(out: Path, tmp_path: Path) -> None:
    to = {"0-9": ParquetWriter(tmp_path / "many" / "a")}
    route = Route("id", to, otherwise=JsonlWriter(tmp_path / "many" / "b"))
    Pipeline("p", stages=[JsonlReader(tmp_path / "in"), route]).run(HERE, run_dir=tmp_path / "run", max_errors=None)
    with pytest.raises(InputError, match=r"several outputs.*many/a.*many/b"):
        verified_output(str(tmp_path / "run"))
    push(tmp_path / "many" / "b", tmp_path / "public")
    assert contents(tmp_path / "public") == contents(tmp_path / "many" / "b")


# -- object stores ----------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(s3: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3["client_kwargs"]["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3["secret"])
    system = s3fs.S3FileSystem(**s3, use_listings_cache=False)
    system.mkdir("pushed")
    yield system
    system.rm("pushed", recursive=True)


def test_a_push_to_s3_and_from_it(out: Path, tmp_path: Path, bucket: Any, s3: dict[str, Any]) -> None:
    done = gristmill(out, "s3://pushed/")
    assert done.exit_code == 0, done.stderr
    found = {path.removeprefix("pushed/"): bucket.cat(path) for path in bucket.find("pushed")}
    assert "# pushed" in found.pop("README.md").decode()
    assert found == contents(out)
    assert "3 were there" in gristmill(out, "s3://pushed").stdout
    bucket.rm("pushed", recursive=True)
    bucket.mkdir("pushed")
    write(tmp_path, "s3://pushed/made", storage_options=s3)
    done = gristmill("s3://pushed/made", tmp_path / "here")
    assert done.exit_code == 0, done.stderr
    assert {path.read_bytes() for path in (tmp_path / "here").glob("*.jsonl")} == set(found.values())


# -- the hub ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("hf://datasets/me/words", ("me/words", None, "")),
        ("hf://datasets/me/words/", ("me/words", None, "")),
        ("hf://datasets/me/words@new/data/en", ("me/words", "new", "data/en")),
        ("hf://me/words", None),
        ("hf://datasets/words", None),
    ],
)
def test_urls_of_the_hub(url: str, parts: tuple[str, str | None, str] | None) -> None:
    if parts is not None:
        assert parse_hub_url(url) == parts
        return
    with pytest.raises(InputError, match="hf://datasets/OWNER/NAME"):
        parse_hub_url(url)


def test_a_commit_to_the_hub_replaces_what_an_earlier_push_wrote() -> None:
    entries, done = {"a.parquet": {}, "b.parquet": {}}, {"a.parquet": "x", "c.parquet": "x"}
    there = ["README.md", ".gitattributes", "data/a.parquet", "data/c.parquet", "other/d.parquet"]
    added, deleted, notes = commit_contents(entries, there, done, "data", with_card=True)
    assert added == [("a.parquet", "data/a.parquet"), ("b.parquet", "data/b.parquet")]
    assert deleted == ["data/c.parquet"]
    assert "left as it is" in notes[0]
    added, deleted, notes = commit_contents(entries, [], {}, "", with_card=True)
    assert [path for _, path in added] == ["a.parquet", "b.parquet", "README.md"]
    assert (deleted, notes) == ([], ())
    with pytest.raises(InputError, match=r"z\.parquet"):
        commit_contents(entries, ["z.parquet"], {}, "", with_card=False)
