"""Tarred NeMo datasets and Lhotse Shar: written, read back, and the same however the work is divided."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.audio import (
    LhotseSharReader,
    LhotseSharWriter,
    ManifestReader,
    ManifestWriterStage,
    SegmentExtractionStage,
    TarredManifestReader,
    TarredManifestWriter,
    decode_audio,
)
from tests.audio.sound_fixtures import noise, read_manifest_file, wav, write_manifest_file
from tests.audio.test_manifest import run


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two manifests: whole files, parts of one file, two files of one name, and what is no recording."""
    root = tmp_path_factory.mktemp("shards")
    for number, name in enumerate(("a", "b", "c-sub1", "other/a")):
        path = root / f"{name}.wav"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(wav(noise(3.0, 8000, seed=number), 8000))
    (root / "bad.wav").write_bytes(b"no sound")
    for part in range(2):
        rows: list[dict[str, Any]] = [{"audio_filepath": "../a.wav", "text": f"whole {part}", "lang": "en"}]
        for start in (0.0, 1.0, 2.5):
            rows.append({"audio_filepath": "../b.wav", "offset": start, "duration": 0.5, "text": f"b {start}"})
        rows += [{"audio_filepath": "../bad.wav", "text": "bad"}, {"audio_filepath": "../other/a.wav", "text": "other"}]
        rows += [{"audio_filepath": "../c-sub1.wav", "text": "c"}]
        rows += [{"audio_filepath": "../b.wav", "offset": 2.0, "duration": 0.5, "text": "b again"}]
        write_manifest_file(root / "in" / f"{part}.jsonl", rows)
    return root


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_tarred_dataset_has_the_files_that_nemo_reads(manifests: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run([ManifestReader(str(manifests / "in")), TarredManifestWriter(out, samples_per_tar=4)])
    assert [record.error.count("bad.wav") for record in result.quarantined()] == [1, 1]
    names = set(contents(out))
    assert {"tarred_audio_manifest.json", "metadata.yaml", "sharded_manifests/manifest_0.json"} <= names
    assert sorted(name for name in names if name.endswith(".tar")) == [f"audio_{number}.tar" for number in range(4)]
    lines = read_manifest_file(out / "tarred_audio_manifest.json")
    assert [line["shard_id"] for line in lines] == [0] * 4 + [1] * 3 + [2] * 4 + [3] * 3
    assert [line["audio_filepath"] for line in lines[:7]] == [
        "a.wav", "b.wav", "b-sub1.wav", "b-sub2.wav", "a.wav", "c_sub1.wav", "b.wav",
    ]  # fmt: skip
    assert [line.get("offset") for line in lines[:4]] == [None, 0.0, 1.0, 2.5]
    assert lines[:4] == read_manifest_file(out / "sharded_manifests" / "manifest_0.json")
    with tarfile.open(out / "audio_0.tar") as tar:
        assert tar.getnames() == ["a.wav", "b.wav"]
        assert tar.extractfile("b.wav").read() == (manifests / "b.wav").read_bytes()  # type: ignore[union-attr]


def test_a_tarred_dataset_is_read_back(manifests: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run([ManifestReader(str(manifests / "in")), TarredManifestWriter(out, samples_per_tar=4)])
    reader = TarredManifestReader(str(out / "tarred_audio_manifest.json"), str(out / "audio__OP_0..3_CL_.tar"))
    back = tmp_path / "back.jsonl"
    run([reader, SegmentExtractionStage(tmp_path / "wavs"), ManifestWriterStage(back)])
    rows = read_manifest_file(back)
    assert sorted(row["text"] for row in rows) == sorted(
        [*(f"b {one}" for one in (0.0, 1.0, 2.5)), "other", "c", "b again"] * 2 + ["whole 0", "whole 1"]
    )
    [cut] = {row["audio_filepath"] for row in rows if row["text"] == "b 1.0" and row["shard_id"] == 0}
    assert np.array_equal(decode_audio(cut).samples, decode_audio(str(manifests / "b.wav"), 1.0, 0.5).samples)


def test_lhotse_shar_is_written_and_read_back(manifests: Path, tmp_path: Path) -> None:
    out, back = tmp_path / "out", tmp_path / "back.jsonl"
    run([ManifestReader(str(manifests / "in")), LhotseSharWriter(out, samples_per_tar=5)])
    assert {name for name in contents(out) if "000002" in name} == {"cuts.000002.jsonl.gz", "recording.000002.tar"}
    cuts = [json.loads(line) for line in gzip.decompress((out / "cuts.000000.jsonl.gz").read_bytes()).splitlines()]
    with tarfile.open(out / "recording.000000.tar") as tar:
        names = tar.getnames()
    kinds = {cut["id"]: "flac" if "b_" in cut["id"] else "wav" for cut in cuts}
    assert names == [f"{key}.{extension}" for key in kinds for extension in (kinds[key], "json")]
    assert (cuts[0]["type"], cuts[0]["recording"]["num_samples"], cuts[0]["supervisions"][0]["text"]) == (
        "MonoCut", 24_000, "whole 0",
    )  # fmt: skip
    run([LhotseSharReader(str(out)), SegmentExtractionStage(tmp_path / "wavs"), ManifestWriterStage(back)])
    rows = read_manifest_file(back)
    assert [row["text"] for row in rows[:4]] == ["whole 0", "b 0.0", "b 1.0", "b 2.5"]
    assert (rows[0]["lang"], [row["duration"] for row in rows[:4]]) == ("en", [3.0, 0.5, 0.5, 0.5])
    part = decode_audio(rows[2]["audio_filepath"]).samples
    assert np.array_equal(part, decode_audio(str(manifests / "b.wav"), 1.0, 0.5).samples)


@pytest.mark.parametrize("writer", [TarredManifestWriter, LhotseSharWriter])
def test_workers_and_blocks_change_no_byte(manifests: Path, tmp_path: Path, writer: Any) -> None:
    found = []
    for index, (workers, blocksize, rows) in enumerate([(0, None, 4000), (0, 150, 1), (2, 300, 2)]):
        reader = ManifestReader(str(manifests / "in"), blocksize=blocksize, task_batch_size=rows)
        run([reader, writer(tmp_path / str(index), samples_per_tar=3)], workers)
        found.append(contents(tmp_path / str(index)))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("writer", [TarredManifestWriter, LhotseSharWriter])
def test_a_run_that_finds_more_input_numbers_all_shards_anew(manifests: Path, tmp_path: Path, writer: Any) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "1.jsonl").write_text((manifests / "in" / "1.jsonl").read_text().replace("../", f"{manifests}/"))

    def curate(out: Path, run_dir: Path) -> dict[str, bytes]:
        pipeline = Pipeline("shards", stages=[ManifestReader(str(source)), writer(out, samples_per_tar=3)])
        pipeline.run(LocalExecutor(num_workers=0), run_dir=str(run_dir), max_errors=10)
        return contents(out)

    curate(tmp_path / "out", tmp_path / "run")
    (source / "0.jsonl").write_text((manifests / "in" / "0.jsonl").read_text().replace("../", f"{manifests}/"))
    assert curate(tmp_path / "out", tmp_path / "run") == curate(tmp_path / "anew", tmp_path / "other")
