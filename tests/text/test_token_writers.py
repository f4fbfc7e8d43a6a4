"""Tokens in files: Megatron's pairs and packed sequences. The same bytes for every way to cut the input."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiktoken
import tokenizers

from gristmill import DocumentBatch, LocalExecutor, Pipeline
from gristmill.core.errors import GristmillError, InputError
from gristmill.core.stage import WorkerMetadata
from gristmill.core.stage_roles import RunStateRole
from gristmill.text import (
    JsonlReader,
    MegatronTokenizerWriter,
    PackedSequenceWriter,
    TokenCountFilter,
    TokenizeDocuments,
    merge_megatron,
)
from gristmill.text.tokens.packed_sequences import npy_header
from tests.io.fragment_writing import batches, gathered, tree

LETTERS = tiktoken.Encoding(
    "bytes", pat_str=r"\S+|\s+", mergeable_ranks={bytes([code]): code for code in range(256)},
    special_tokens={"<|endoftext|>": 256},
)  # fmt: skip
WIDE = tiktoken.Encoding(
    "wide", pat_str=r"\S+|\s+", mergeable_ranks={bytes([code]): code for code in range(256)},
    special_tokens={"<|endoftext|>": 70_000},
)  # fmt: skip
TEXTS = ["abc", "", "é", None, "hello world", "x" * 40]
TOKENS = [list((text or "").encode()) for text in TEXTS if text]
HERE = LocalExecutor(num_workers=0)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        lines = [json.dumps({"text": text, "n": n}) for n, text in enumerate(TEXTS * (number + 1))]
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def run(source: Path, writer, blocksize: str = "1MB") -> dict[str, bytes]:
    Pipeline("p", stages=[JsonlReader(str(source), blocksize=blocksize), writer]).run(HERE)
    found = tree(writer.path)
    return {name: data for name, data in found.items() if not name.startswith("_")}


def documents(folder: Path, stem: str) -> list[list[int]]:
    """What Megatron would read, by its own rules: the index, then the tokens at the places that it gives."""
    index, tokens = (folder / f"{stem}.idx").read_bytes(), (folder / f"{stem}.bin").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, places = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    assert places == sequences + 1
    kind = {8: np.uint16, 4: np.int32}[code]
    sizes = np.frombuffer(index, np.int32, sequences, 34)
    starts = np.frombuffer(index, np.int64, sequences, 34 + 4 * sequences)
    firsts = np.frombuffer(index, np.int64, places, 34 + 12 * sequences)
    assert len(index) == 34 + 20 * sequences + 8
    assert firsts.tolist() == list(range(places))
    assert len(tokens) == sizes.sum() * np.dtype(kind).itemsize
    return [np.frombuffer(tokens, kind, size, start).tolist() for size, start in zip(sizes, starts, strict=True)]


def test_megatron_reads_what_was_written(source: Path, tmp_path: Path) -> None:
    files = run(source, MegatronTokenizerWriter(str(tmp_path / "out"), LETTERS))
    stems = sorted({name.partition(".")[0] for name in files})
    assert sorted(files) == sorted(stem + end for stem in stems for end in (".bin", ".idx"))
    assert [documents(tmp_path / "out", stem) for stem in stems] == [TOKENS, TOKENS * 2]
    run(source, MegatronTokenizerWriter(str(tmp_path / "ended"), LETTERS, append_eod=True))
    assert documents(tmp_path / "ended", stems[0]) == [[*tokens, 256] for tokens in TOKENS]
    run(source, MegatronTokenizerWriter(str(tmp_path / "wide"), WIDE, append_eod=True))
    assert documents(tmp_path / "wide", stems[0])[0] == [97, 98, 99, 70_000]


WRITERS = [
    lambda path: MegatronTokenizerWriter(path, LETTERS),
    lambda path: MegatronTokenizerWriter(path, WIDE, append_eod=True),
    lambda path: PackedSequenceWriter(path, LETTERS, 7),
    lambda path: PackedSequenceWriter(path, LETTERS, 7, file_format="parquet", remainder="drop"),
]


@pytest.mark.parametrize("make", WRITERS)
def test_the_bytes_do_not_depend_on_the_blocks_and_a_second_run_changes_nothing(
    make, source: Path, tmp_path: Path
) -> None:
    whole = run(source, make(str(tmp_path / "whole")))
    assert len(whole) >= 2
    assert run(source, make(str(tmp_path / "cut")), "40") == whole
    assert run(source, make(str(tmp_path / "cut")), "90") == whole
    assert not (tmp_path / "cut.run" / "_tmp").exists()


@pytest.mark.parametrize("make", WRITERS)
def test_a_commit_may_be_repeated(make, tmp_path: Path) -> None:
    tokenize, write, commit = make(str(tmp_path / "out")).decompose()
    for stage in (tokenize, write, commit):
        stage.check()
        if isinstance(stage, RunStateRole):
            stage.prepare_run({})
    tokenize.setup(WorkerMetadata())
    rows = [{"text": text} for text in TEXTS]
    fragments = [write.process(tokenize.process(batch)).named(batch.lineage) for batch in batches(rows, [2, 4])]
    first = commit.process(gathered(fragments))
    before = tree(tmp_path / "out")
    again = commit.process(gathered(fragments))  # the fragments are gone: an earlier attempt had come this far
    assert again.written == first.written != ()
    assert tree(tmp_path / "out") == before
    assert first.num_items == len(TOKENS)
    empty = [write.process(tokenize.process(batch)).named(batch.lineage) for batch in batches([{"text": ""}])]
    assert commit.process(gathered(empty)).data == []
    assert tree(tmp_path / "out") == {}  # the input has become empty: no old output stays behind


@pytest.mark.parametrize("make", WRITERS)
def test_scores_hold_no_tokens_and_do_not_depend_on_the_blocks(make, source: Path, tmp_path: Path) -> None:
    def scores(blocksize: str) -> dict[str, bytes]:
        stages = [JsonlReader(str(source), blocksize=blocksize), make(str(tmp_path / blocksize))]
        Pipeline("p", stages=stages).run(HERE, scores=True)
        return tree(tmp_path / f"{blocksize}.run" / "scores")

    whole = scores("1MB")
    assert scores("40") == whole
    tables = [pq.read_table(io.BytesIO(data)) for name, data in whole.items() if name.endswith(".parquet")]
    assert [table.num_rows for table in tables] == [len(TEXTS), 2 * len(TEXTS)]
    for table in tables:
        assert not [column for column in table.schema if pa.types.is_nested(column.type)]
        assert table.column("TokenizeDocuments").to_pylist().count(0) * 3 == table.num_rows


def test_pairs_are_merged(source: Path, tmp_path: Path) -> None:
    run(source, MegatronTokenizerWriter(str(tmp_path / "out"), LETTERS))
    for name in ("all", "all", "second"):
        merge_megatron(tmp_path / "out", tmp_path / "merged" / name)
        assert documents(tmp_path / "merged", name) == TOKENS * 3
    with pytest.raises(InputError, match="choose a prefix outside of"):
        merge_megatron(tmp_path / "out", tmp_path / "out" / "all")
    with pytest.raises(InputError, match="no .idx files"):
        merge_megatron(tmp_path / "in", tmp_path / "x")
    (tmp_path / "in" / "a.idx").write_bytes(b"?")
    with pytest.raises(InputError, match="not an index of Megatron"):
        merge_megatron(tmp_path / "in", tmp_path / "x")


@pytest.mark.parametrize("bytes_left", [None, 0, 9, 12, 40, -1])
def test_damaged_pairs_are_told_before_they_are_merged(source: Path, tmp_path: Path, bytes_left: int | None) -> None:
    run(source, MegatronTokenizerWriter(str(tmp_path / "out"), LETTERS))
    for ending in (".idx", ".bin"):
        damaged = sorted((tmp_path / "out").glob(f"*{ending}"))[0]
        whole = damaged.read_bytes()
        damaged.unlink()
        if bytes_left is not None:
            damaged.write_bytes(whole[:bytes_left])
        if ending == ".bin" or bytes_left is not None:
            with pytest.raises(InputError, match=f"{damaged.name} "):
                merge_megatron(tmp_path / "out", tmp_path / "merged" / "all")
        damaged.write_bytes(whole)
    merge_megatron(tmp_path / "out", tmp_path / "merged" / "all")


def test_what_migrated_code_passes_is_taken_or_told(source: Path, tmp_path: Path) -> None:
    plain = run(source, MegatronTokenizerWriter(str(tmp_path / "a"), LETTERS))
    options = {"cache_dir": "c", "hf_token": "t", "tokenization_batch_size": 2, "transformers_init_kwargs": {}}
    assert run(source, MegatronTokenizerWriter(str(tmp_path / "b"), LETTERS, **options)) == plain
    with pytest.raises(ValueError, match=r"Give the tokenizer itself, as in AutoTokenizer.from_pretrained"):
        MegatronTokenizerWriter("out", "x", transformers_init_kwargs={"use_fast": True})
    with pytest.raises(ValueError, match="tokenization_batch_size is 0"):
        MegatronTokenizerWriter("out", "x", tokenization_batch_size=0)
    with pytest.raises(ValueError, match="TokenCountFilter: transformers_init_kwargs"):
        TokenCountFilter("x", transformers_init_kwargs={"use_fast": True})


def packed(tokens: list[list[int]], length: int, pad: int | None) -> list[list[int]]:
    stream = [token for document in tokens for token in [*document, 256]]
    if pad is not None:
        stream += [pad] * (-len(stream) % length)
    return [stream[start : start + length] for start in range(0, len(stream) - length + 1, length)]


@pytest.mark.parametrize("length", [1, 7, 16, 1000])
@pytest.mark.parametrize(("options", "pad"), [({}, 256), ({"pad_token": 9}, 9), ({"remainder": "drop"}, None)])
def test_sequences_have_one_length(length: int, options: dict, pad: int | None, source: Path, tmp_path: Path) -> None:
    files = run(source, PackedSequenceWriter(str(tmp_path / "npy"), LETTERS, length, **options))
    arrays = [np.load(io.BytesIO(files[name])) for name in sorted(files)]
    wanted = [packed(TOKENS * times, length, pad) for times in (1, 2)]
    assert [one.shape for one in arrays] == [(len(rows), length) for rows in wanted]
    assert [one.tolist() for one in arrays] == wanted
    assert arrays[0].dtype == np.uint16
    run(source, PackedSequenceWriter(str(tmp_path / "parquet"), LETTERS, length, file_format="parquet", **options))
    tables = [pq.read_table(path) for path in sorted((tmp_path / "parquet").glob("*.parquet"))]
    assert [table.column("input_ids").to_pylist() for table in tables] == wanted


def test_long_partitions_are_cut_into_row_groups(monkeypatch: pytest.MonkeyPatch, source: Path, tmp_path: Path) -> None:
    monkeypatch.setattr("gristmill.text.tokens.packed_sequences.TOKENS_PER_WRITE", 20)
    files = run(source, PackedSequenceWriter(str(tmp_path / "npy"), LETTERS, 7), "40")
    assert np.load(io.BytesIO(files[sorted(files)[1]])).tolist() == packed(TOKENS * 2, 7, 256)
    run(source, PackedSequenceWriter(str(tmp_path / "pq"), LETTERS, 7, file_format="parquet"), "40")
    path = sorted((tmp_path / "pq").glob("*.parquet"))[1]
    assert pq.read_metadata(path).row_group(0).num_rows == 2
    assert pq.read_table(path).column(0).to_pylist() == packed(TOKENS * 2, 7, 256)


def test_headers_are_aligned() -> None:
    for rows in (0, 1, 10**12):
        header = npy_header("<i4", rows, 2048)
        assert len(header) % 64 == 0
        assert np.lib.format.read_array_header_1_0(io.BytesIO(header[8:])) == ((rows, 2048), False, np.dtype("<i4"))


def test_tokens_as_a_column(tmp_path: Path) -> None:
    stage = TokenizeDocuments(LETTERS, tokens_field="ids")
    stage.setup(WorkerMetadata())
    out = stage.process(DocumentBatch([{"text": text} for text in TEXTS]))
    assert [row["ids"] for row in out.to_rows()] == TOKENS
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "</s>": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    for end, number in [(None, 2), ("a", 1), (0, 0)]:
        stage = TokenizeDocuments(str(tmp_path), tokens_field="ids", append_eod=True, eod_token=end)
        stage.setup(WorkerMetadata())
        assert stage.process(DocumentBatch([{"text": "a b"}])).to_rows()[0]["ids"] == [1, 0, number]
    with pytest.raises(GristmillError, match="no token nope"):
        TokenizeDocuments(str(tmp_path), append_eod=True, eod_token="nope").setup(WorkerMetadata())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MegatronTokenizerWriter("", LETTERS), "path is empty"),
        (lambda: MegatronTokenizerWriter("x", LETTERS, mode="add"), "mode is 'add', must be one of"),
        (lambda: PackedSequenceWriter("x", LETTERS, 0), "1 or more"),
        (lambda: PackedSequenceWriter("x", LETTERS, file_format="bin"), "must be one of: npy, parquet"),
        (lambda: PackedSequenceWriter("x", LETTERS, append_eod=False), "pad_token"),
    ],
)
def test_bad_parameters_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
