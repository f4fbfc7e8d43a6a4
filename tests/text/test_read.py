"""Readers as stages: what they give, what they count, what they say when something is wrong."""

import gzip
import json
import time

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import Pipeline, processing_stage
from gristmill.core.arrow.table_conversion import POSITION
from gristmill.core.errors import BadRecordError, ColumnError, InputError, StageError
from gristmill.core.stage import ProcessingStage, take_counts
from gristmill.core.task import FileGroupTask
from gristmill.io.read.file_partitions import FilePartitioningStage
from gristmill.text.read import (
    ArrowReader,
    CsvReader,
    JsonlReader,
    JsonlReaderStage,
    ParquetReader,
    ParquetReaderStage,
    TextReader,
)

GOOD = "".join(json.dumps({"id": n, "text": f"text {n}"}) + "\n" for n in range(100))


def batches(reader):
    lister, stage = reader.decompose()
    return [batch for source in lister.sources() for task in source for batch in stage.process(task)]


def rows(reader):
    return [row for batch in batches(reader) for row in batch.to_rows()]


@pytest.fixture
def data(tmp_path):
    root = tmp_path / "web"
    root.mkdir()
    (root / "a.jsonl").write_text(GOOD)
    (root / "b.jsonl.gz").write_bytes(gzip.compress(GOOD.encode()))
    return root


def test_a_reader_lists_and_reads(data):
    lister, stage = JsonlReader(data).decompose()
    assert (lister.name, stage.name) == ("list_files", "read_jsonl")
    found = batches(JsonlReader(data))
    assert [batch.num_items for batch in found] == [100, 100]
    assert [batch.dataset_name for batch in found] == ["web", "web"]
    assert [batch.metadata["file"] for batch in found] == ["a.jsonl", "b.jsonl.gz"]
    assert [batch.metadata["partition"].rpartition("-")[0] for batch in found] == ["a", "b"]
    assert found[0].get_columns() == ["id", "text", POSITION]


@pytest.mark.parametrize("blocksize", [50, 333, "1KiB"])
def test_blocksize_changes_batches_not_rows(data, blocksize):
    assert rows(JsonlReader(data, blocksize=blocksize)) == rows(JsonlReader(data))
    assert len(batches(JsonlReader(data, blocksize=blocksize))) >= 5


def test_a_task_without_slices_is_read_whole(data):
    stage = JsonlReaderStage()
    [batch] = stage.process(FileGroupTask([f"{data}/a.jsonl"], metadata={"mine": 1}, dataset_name="mine"))
    assert (batch.num_items, batch.dataset_name) == (100, "mine")
    assert batch.metadata == {"mine": 1, "file": f"{data}/a.jsonl"}


def test_counts(data):
    (data / "a.jsonl").write_text(GOOD + "broken\n")
    lister, stage = JsonlReader(data / "a.jsonl", on_bad_record="skip").decompose()
    for source in lister.sources():
        for task in source:
            assert sum(batch.num_items for batch in stage.process(task)) == 100
    assert take_counts(stage) == {"bytes_read": len(GOOD) + 7, "bad_records": 1}


def test_a_bad_record_says_where_and_what_to_do(data):
    (data / "a.jsonl").write_text(GOOD + "{broken\n" + GOOD)
    with pytest.raises(BadRecordError) as raised:
        rows(JsonlReader(data / "a.jsonl"))
    message = str(raised.value)
    assert message.startswith(f"{data}/a.jsonl, line 101 (byte {len(GOOD):,}): not JSON: ")
    assert "b'{broken'" in message
    assert 'on_error="quarantine"' in message
    assert message.endswith('use on_bad_record="skip"')
    with pytest.raises(BadRecordError) as again:
        rows(JsonlReader(data / "a.jsonl", on_bad_record="raise"))
    assert str(again.value) == message
    assert len(rows(JsonlReader(data / "a.jsonl", on_bad_record="skip"))) == 200


def test_batches_before_a_bad_record_come_first(data):
    (data / "a.jsonl").write_text(GOOD + "{broken\n" + GOOD)
    [task] = next(FilePartitioningStage(data / "a.jsonl").sources())
    stream = JsonlReaderStage(blocksize=500).process(task)
    assert next(stream).num_items > 0
    with pytest.raises(BadRecordError):
        list(stream)


def test_a_cut_gzip_gives_what_can_be_read(data):
    (data / "b.jsonl.gz").write_bytes(gzip.compress(GOOD.encode())[:-40])
    with pytest.raises(BadRecordError, match="truncated"):
        rows(JsonlReader(data / "b.jsonl.gz"))
    found = rows(JsonlReader(data / "b.jsonl.gz", on_bad_record="skip"))
    assert [row["id"] for row in found] == list(range(len(found)))
    assert len(found) > 50


@pytest.mark.parametrize("content", ["", "\n \n\n"])
def test_files_without_rows(data, content):
    (data / "a.jsonl").write_text(content)
    [batch] = batches(JsonlReader(data / "a.jsonl"))  # for the writer to know of
    assert batch.num_items == 0
    assert batch.metadata["partition"].startswith("a-")


def test_fields(data):
    assert batches(JsonlReader(data, fields=["text", "lang"]))[0].get_columns() == ["text", "lang", POSITION]


def test_memory_url_and_storage_options(data):
    fsspec.filesystem("memory").pipe("/in/ä b.jsonl", GOOD.encode())
    assert len(rows(JsonlReader("memory://in", blocksize=100))) == 100
    assert (
        len(rows(JsonlReader("memory://in/*.jsonl", read_kwargs={"storage_options": {"skip_instance_cache": True}})))
        == 100
    )
    fsspec.filesystem("memory").rm("/in", recursive=True)


def test_other_formats(tmp_path):
    table = pa.table({"id": range(1000), "text": [f"text {n}" * 10 for n in range(1000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100, compression="none")
    want = table.append_column(POSITION, pa.array(range(1000), pa.int64())).to_pylist()
    assert rows(ParquetReader(tmp_path)) == want
    assert rows(ParquetReader(tmp_path, blocksize=5000)) == want
    assert len(next(ParquetReader(tmp_path, blocksize=5000).decompose()[0].sources())) > 5
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    assert rows(ArrowReader(tmp_path)) == want
    (tmp_path / "a.csv").write_text("id,text\n1,x\n")
    assert rows(CsvReader(tmp_path)) == [{"id": "1", "text": "x", POSITION: 0}]
    assert rows(CsvReader(tmp_path, read_kwargs={"column_types": {"id": "int64"}}))[0]["id"] == 1


def test_text(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("three\n")
    (tmp_path / "c.txt").touch()
    assert rows(TextReader(tmp_path, per="line")) == [
        {"text": "one", POSITION: 0},
        {"text": "two", POSITION: 4},
        {"text": "three", POSITION: 0},
    ]
    [batch] = batches(TextReader(tmp_path, files_per_partition=3))
    assert batch.to_rows() == [
        {"text": "one\ntwo\n", "file_name": "a.txt", POSITION: 0},
        {"text": "three\n", "file_name": "b.txt", POSITION: 1},
    ]
    assert batches(TextReader(tmp_path, fields=["text"]))[0].get_columns() == ["text", POSITION]


# -- wrong use -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: JsonlReader("x", task_type="image"), "task_type"),
        (lambda: JsonlReader("x", on_bad_record="ignore"), "on_bad_record"),
        (lambda: JsonlReader("x", read_kwargs={"max_line_byte": 1}), "Did you mean 'max_line_bytes'?"),
        (lambda: CsvReader("x", read_kwargs={"delimeter": ";"}), "Did you mean 'delimiter'?"),
        (lambda: ParquetReader("x", blocksize="huge"), "size"),
        (lambda: ParquetReader("x", limit=-1), "limit"),
        (lambda: TextReader("x", per="page"), "per"),
        (lambda: TextReader("x", fields=["title"]), "plain text has only"),
    ],
)
def test_wrong_parameters_are_told_at_once(make, words):
    with pytest.raises(ValueError, match=words.replace("?", r"\?")):
        make()


def test_fields_must_be_a_list():
    with pytest.raises(TypeError, match=r"\['text'\]"):
        JsonlReader("x", fields="text")


# -- in a plan -------------------------------------------------------------------------------------------


class NeedsText(ProcessingStage):
    name = "needs_text"

    def __init__(self, column="text"):
        self.column = column

    def inputs(self):
        return [], {self.column: "string"}

    def process(self, task):
        return task


def plan(reader, *stages):
    began = time.perf_counter()
    try:
        return Pipeline(stages=[reader, *(stages or [NeedsText()])]).plan()
    finally:
        assert time.perf_counter() - began < 1


def test_a_missing_path_is_told_when_planning(data):
    with pytest.raises(InputError, match=r"stage 'list_files': .*/wep does not exist\. Did you mean 'web'"):
        plan(JsonlReader(data.parent / "wep"))


@pytest.mark.parametrize("reader", [ParquetReader, ArrowReader, CsvReader])
def test_a_wrong_reader_is_told_when_planning(data, reader):
    with pytest.raises(
        InputError, match=r"stage 'read_\w+': .*a\.jsonl is not .*it looks like JSON lines: use JsonlReader"
    ):
        plan(reader(data / "a.jsonl"))


def test_a_missing_column_is_told_when_planning(data):
    with pytest.raises(ColumnError, match="Did you mean 'text'"):
        plan(JsonlReader(data), NeedsText("txt"))
    with pytest.raises(ColumnError, match="needs text in column 'id', which holds int64"):
        plan(JsonlReader(data), NeedsText("id"))


def test_an_empty_first_file_leaves_columns_open(data):
    (data / "0.jsonl").touch()
    plan(JsonlReader(data))


def test_a_pipeline_gives_every_row_once(data):
    @processing_stage(name="count")
    def count(batch):
        return batch

    result = list(Pipeline(stages=[JsonlReader(data, blocksize=700), count]).run())
    assert sorted(row["id"] for batch in result for row in batch.to_rows()) == sorted(list(range(100)) * 2)


def test_parts_of_a_reader_can_be_changed(data):
    reader = JsonlReader(data).with_({"read_jsonl": {"num_workers": 2}})
    assert [stage.num_workers for stage in reader.stages()] == [None, 2]
    assert ParquetReaderStage().name == "read_parquet"


def test_a_large_text_file(tmp_path):
    (tmp_path / "a.txt").write_text("some words\n" * 10_000)
    assert Pipeline("p", stages=[TextReader(tmp_path)]).preview(1)[0].data["file_name"] == "a.txt"


def test_lines_too_deep_are_counted(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": ' + "[" * 600 + "]" * 600 + '}\n{"a": 1}\n')
    [row] = Pipeline("p", stages=[JsonlReader(tmp_path, on_bad_record="skip")]).preview()
    assert row.data["a"] == 1
    with pytest.raises(StageError, match="line 1 .*350 levels"):
        Pipeline("p", stages=[JsonlReader(tmp_path, on_bad_record="raise")]).preview()
    preview = Pipeline("p", stages=[JsonlReader(tmp_path)]).preview()
    assert [row.data["a"] for row in preview] == [1]
    assert str(preview).splitlines()[-1].startswith("could not be used: a.jsonl, at 0: a value is nested")
