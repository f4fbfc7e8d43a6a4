"""Checksums: made while files are written, by whatever writer; and those of earlier versions."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import fsspec
import orjson
import pytest
import xxhash

from gristmill import LocalExecutor, Pipeline
from gristmill.dedup import ExactDeduplicationStage
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.manifest import check_manifest
from gristmill.text import JsonlReader, JsonlWriter, ParquetWriter

ROWS = [{"id": f"row-{number}", "text": f"The {number % 7}th text of {number % 9}."} for number in range(90)]


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "in" / "a.jsonl"
    path.parent.mkdir()
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in ROWS))
    return str(path)


def run(source: str, *stages: Any, **options: Any) -> Any:
    return Pipeline("p", stages=[JsonlReader(source, blocksize=700), *stages]).run(LocalExecutor(0), **options)


@pytest.mark.parametrize("writer", [JsonlWriter, ParquetWriter])
@pytest.mark.parametrize("options", [{}, {"target_file_size": 300}, {"compression": "zstd"}, {"compression": "gzip"}])
@pytest.mark.parametrize("place", ["here", "memory://checksums/out"])
def test_a_checksum_is_that_of_the_file_which_is_not_read_for_it(
    source: str, tmp_path: Path, writer: Any, options: dict[str, Any], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "out") if place == "here" else f"{place}/{tmp_path.name}"
    with monkeypatch.context() as patched:
        patched.setattr(OutputDirectory, "checksum", lambda *_: pytest.fail("read again"))
        run(source, ExactDeduplicationStage(), writer(out, **options))
    manifest, problems = check_manifest(OutputDirectory(out))
    assert not problems
    assert len(manifest["files"]) > 1 or "target_file_size" not in options
    for entry in manifest["files"]:
        with fsspec.open(f"{out}/{entry['name']}", "rb") as file:
            raw = file.read()
        assert (entry["bytes"], entry["checksum"]) == (len(raw), f"xxh128:{xxhash.xxh128_hexdigest(raw)}")


def as_before(path: Path, raw: bytes) -> None:
    """Change what is noted in a file of JSON into what earlier versions noted."""
    content = path.read_text()
    now = f'"checksum": "xxh128:{xxhash.xxh128_hexdigest(raw)}"'
    assert now.replace(" ", "") in content.replace(" ", "")
    before = f'"sha256":"{hashlib.sha256(raw).hexdigest()}"'
    path.write_text(content.replace(now, before).replace(now.replace(" ", ""), before))


def test_a_manifest_of_an_earlier_version_is_checked(source: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(source, JsonlWriter(str(out)))
    [path] = out.glob("*.jsonl")
    as_before(out.with_suffix(".run") / "manifest.json", path.read_bytes())
    assert check_manifest(OutputDirectory(out))[1] == []
    path.write_bytes(path.read_bytes().replace(b"row-8", b"row-9"))
    assert check_manifest(OutputDirectory(out))[1] == [f"{path.name} has changed: its checksum differs"]


def test_a_run_of_an_earlier_version_goes_on(source: str, tmp_path: Path) -> None:
    out, room = tmp_path / "out", tmp_path / "run"
    run(source, JsonlWriter(str(out)), run_dir=room)
    [path], [ledger] = out.glob("*.jsonl"), (room / "ledger").glob("*.jsonl")
    as_before(ledger, path.read_bytes())
    written = path.stat().st_mtime_ns
    run(source, JsonlWriter(str(out)), run_dir=room)
    assert path.stat().st_mtime_ns == written
    assert json.loads((out.with_suffix(".run") / "manifest.json").read_text())["files"][0]["checksum"].startswith(
        "sha256:"
    )
    assert check_manifest(OutputDirectory(out))[1] == []


@pytest.mark.parametrize("checksum", ["blake9:00", "", "shake_128:00", None])
def test_a_checksum_of_an_unknown_kind_is_told_and_the_others_are_checked(
    source: str, tmp_path: Path, checksum: str | None
) -> None:
    out = tmp_path / "out"
    run(source, JsonlWriter(str(out), target_file_size=2000))
    manifest = json.loads((out.with_suffix(".run") / "manifest.json").read_text())
    first, second, *_ = manifest["files"]
    first.pop("checksum") if checksum is None else first.update(checksum=checksum)
    (out.with_suffix(".run") / "manifest.json").write_text(json.dumps(manifest))
    changed = out / second["name"]
    changed.write_bytes(changed.read_bytes().replace(b"text", b"TEXT"))
    problems = check_manifest(OutputDirectory(out))[1]
    assert [problem.partition(" ")[0] for problem in problems] == [first["name"], second["name"]]
    assert "of a kind unknown to this version" in problems[0]


def test_a_new_file_can_be_written_to_as_to_any_other(tmp_path: Path) -> None:
    target = OutputDirectory(tmp_path)
    with target.create(target.file("a")) as file:
        file.writelines([b"one\n", b"two\n"])
        with io.TextIOWrapper(file, newline="\n") as text:
            text.write("three\n")
        assert file.writable()
        with pytest.raises(io.UnsupportedOperation):
            file.seek(0)
    raw = (tmp_path / "a").read_bytes()
    assert (raw, file.size) == (b"one\ntwo\nthree\n", 14)
    assert file.checksum == f"xxh128:{xxhash.xxh128_hexdigest(raw)}"
