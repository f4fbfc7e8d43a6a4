"""Readers of datasets in every layout: the rows that they give, and that the recordings can be decoded."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.audio import (
    AudioDirectoryReader,
    AudioParquetReader,
    AudioWebDatasetReader,
    CommonVoiceReader,
    CreateInitialManifestFleursStage,
    KaldiReader,
    LhotseCutsReader,
    LibriSpeechReader,
    LJSpeechReader,
    ManifestWriterStage,
    TarredManifestReader,
)
from gristmill.audio.layouts.read_archives import expand_shards
from gristmill.core.errors import InputError
from tests.audio.sound_fixtures import encoded, read_manifest_file, tone, wav, write_manifest_file
from tests.audio.test_manifest import Loudest, run

WAV = wav(tone(2.0))


def tar(path: Path, members: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w") as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))


def put(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def kaldi(root: Path) -> Any:
    put(root / "a.wav", WAV)
    put(root / "wav.scp", "rec1 a.wav\nrec2 sox a.wav -t wav - |\n")
    put(root / "text", "utt1 hello there\nutt2 you\n")
    put(root / "utt2spk", "utt1 anna\n")
    put(root / "segments", "utt1 rec1 0.25 1.25\nutt2 rec1 1.5 2.0\nutt3 rec2 0 1\nutt4\n")
    return KaldiReader(str(root))


def kaldi_without_segments(root: Path) -> Any:
    put(root / "a.wav", WAV)
    put(root / "text", "rec1 hello there")
    put(root / "wav.scp", "rec1 a.wav\n")
    return KaldiReader(str(root))


def common_voice(root: Path) -> Any:
    put(root / "clips" / "a.mp3", wav(tone(2.0), form="MP3"))
    text = "client_id\tpath\tsentence\tage\nx\ta.mp3\tHello there\ttwenties\nbroken line\n"
    return CommonVoiceReader(str(put(root / "validated.tsv", text)))


def ljspeech(root: Path) -> Any:
    put(root / "wavs" / "LJ1.wav", WAV)
    return LJSpeechReader(str(put(root / "metadata.csv", "LJ1|Hello 2|Hello two\nLJ2\n")))


def librispeech(root: Path) -> Any:
    put(root / "1" / "2" / "1-2-0.flac", wav(tone(2.0), form="FLAC"))
    put(root / "1" / "2" / "1-2.trans.txt", "1-2-0 HELLO THERE\n")
    return LibriSpeechReader(str(root))


def fleurs(root: Path) -> Any:
    put(root / "dev" / "1.wav", WAV)
    put(root / "dev.tsv", "7\t1.wav\tHello, there\thello there\th e\t32000\tMALE\n")
    return CreateInitialManifestFleursStage("en_us", "dev", str(root))


def lhotse(root: Path) -> Any:
    put(root / "a.wav", WAV)
    cut = {
        "id": "c1", "start": 0.5, "duration": 1.0, "channel": 0,
        "supervisions": [{"text": "hello there", "speaker": "anna", "language": "en"}],
        "recording": {"id": "a", "sources": [{"type": "file", "channels": [0], "source": "a.wav"}]},
    }  # fmt: skip
    lines = json.dumps(cut) + "\n" + json.dumps({**cut, "recording": {"sources": [{"type": "command"}]}}) + "\n"
    path = root / "cuts.jsonl.gz"
    put(path, gzip.compress(lines.encode()))
    return LhotseCutsReader(str(path))


def directory(root: Path) -> Any:
    put(root / "a.wav", WAV)
    put(root / "a.txt", "hello there\n")
    put(root / "b" / "c.mp4", encoded(tone(2.0, 48_000), 48_000, "mp4", "aac", video=True))
    put(root / "b" / "c.lab", b"\xff\xfe")
    put(root / "d.opus", encoded(tone(2.0, 48_000), 48_000, "ogg", "libopus"))
    return AudioDirectoryReader(str(root))


def webdataset(root: Path) -> Any:
    meta = json.dumps({"text": "hello there", "duration": 2.0}).encode()
    tar(
        root / "0.tar",
        {"a.wav": WAV, "a.json": meta, "b.flac": wav(tone(1.0), form="FLAC"), "b.txt": b"you", "c.txt": b"-"},
    )
    return AudioWebDatasetReader(str(root))


def parquet(root: Path) -> Any:
    audio = [{"bytes": WAV, "path": "a.wav"}, {"bytes": None, "path": "b.wav"}]
    pq.write_table(pa.table({"audio": audio, "text": ["hello there", "none"]}), root / "0.parquet")
    return AudioParquetReader(str(root))


def tarred(root: Path) -> Any:
    tar(root / "audio_0.tar", {"a.wav": WAV, "unused.wav": WAV})
    tar(root / "audio_1.tar", {"b.wav": WAV})
    lines = [
        {"audio_filepath": "a.wav", "duration": 2.0, "text": "hello there", "shard_id": 0},
        {"audio_filepath": "b-sub1.wav", "offset": 0.5, "duration": 1.0, "text": "you", "shard_id": 1},
        {"audio_filepath": "b-sub2.wav", "offset": 1.5, "duration": 0.5, "text": "me", "shard_id": 1},
        {"audio_filepath": "gone.wav", "duration": 1.0, "text": "-", "shard_id": 1},
    ]
    manifest = write_manifest_file(root / "tarred_audio_manifest.json", lines)
    return TarredManifestReader(manifest, f"{root}/audio__OP_0..1_CL_.tar")


CASES: list[tuple[Any, list[str | None], list[float], int]] = [
    (kaldi, ["hello there", "you"], [1.0, 0.5], 2),
    (kaldi_without_segments, ["hello there"], [2.0], 0),
    (common_voice, ["Hello there"], [2.0], 1),
    (ljspeech, ["Hello 2"], [2.0], 1),
    (librispeech, ["HELLO THERE"], [2.0], 0),
    (fleurs, ["hello there"], [2.0], 0),
    (lhotse, ["hello there"], [1.0], 1),
    (directory, ["hello there", None], [2.0, 2.0], 1),
    (webdataset, ["hello there", "you"], [2.0, 1.0], 1),
    (parquet, ["hello there"], [2.0], 1),
    (tarred, ["hello there", "you", "me"], [2.0, 1.0, 0.5], 1),
]


@pytest.mark.parametrize(("layout", "texts", "seconds", "bad"), CASES)
def test_a_layout_is_read_and_can_be_heard(
    tmp_path: Path, layout: Any, texts: list[str], seconds: list[float], bad: int
) -> None:
    (tmp_path / "in").mkdir()
    reader = layout(tmp_path / "in")
    result = run([reader, Loudest(), ManifestWriterStage(tmp_path / "out.jsonl")])
    found = read_manifest_file(tmp_path / "out.jsonl")
    assert [row["text"] for row in found] == texts
    assert [row["heard"] for row in found] == pytest.approx(seconds, abs=0.05)
    assert len(list(result.quarantined())) == bad
    assert all("audio" not in row for row in found)


def test_lists_are_read_by_several_workers(tmp_path: Path) -> None:
    lines = "".join(f"LJ{number}|Text {number}|\n" for number in range(3000))
    source = str(put(tmp_path / "metadata.csv", lines))
    for blocksize in (None, 5000):
        out = tmp_path / f"{blocksize}.jsonl"
        run([LJSpeechReader(source, blocksize=blocksize), ManifestWriterStage(out)], workers=2 if blocksize else 0)
    assert (tmp_path / "None.jsonl").read_bytes() == (tmp_path / "5000.jsonl").read_bytes()
    assert len(read_manifest_file(tmp_path / "None.jsonl")) == 3000


def test_shards_are_expanded() -> None:
    assert expand_shards("a__OP_8..11_CL_.tar") == ["a_8.tar", "a_9.tar", "a_10.tar", "a_11.tar"]
    assert expand_shards("a_{00..02}.tar") == ["a_00.tar", "a_01.tar", "a_02.tar"]
    assert expand_shards("a.tar") == ["a.tar"]


def test_a_missing_list_says_where_it_should_be(tmp_path: Path) -> None:
    stage = CreateInitialManifestFleursStage("en_us", "dev", str(tmp_path))
    with pytest.raises(InputError, match="neither .*dev.tsv nor .*en_us/dev.tsv"):
        run([stage, ManifestWriterStage(tmp_path / "out.jsonl")])
