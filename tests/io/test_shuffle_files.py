"""Files of runs: how large they say that they are, and what is the same in all rows of a run."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gristmill.core.arrow.array_building import literal
from gristmill.core.arrow.hash_partitioning import constant_column
from gristmill.io.exchange.shuffle_files import (
    ShuffleFileIndex,
    ShuffleFileWriter,
    decoded_schema,
    read_index,
    read_partition_blocks,
    table_from_stream,
    table_to_stream,
)
from gristmill.io.storage.output_directory import OutputDirectory
from gristmill.io.write.parquet_format import array_bytes, value_bytes

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["", "één", "three"]),
    (pa.large_string(), ["a", "", "three"]),
    (pa.binary(), [b"\x00", b"", b"three"]),
    (pa.large_binary(), [b"one", b"", b"three"]),
    (pa.binary(8), [b"12345678"] * 3),
    (pa.int64(), [1, 2, 3]),
    (pa.float32(), [1.0, 2.0, 3.0]),
    (pa.bool_(), [True, False, True]),
    (pa.list_(pa.string()), [["a"], [], ["b", "cd"]]),
    (pa.struct([("a", pa.string())]), [{"a": "x"}, {"a": None}, {"a": "yz"}]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda one: str(one) if isinstance(one, pa.DataType) else "")
def test_the_bytes_of_a_run_are_those_of_its_values_however_it_was_cut(kind: pa.DataType, values: list[Any]) -> None:
    for rows in (values, [None, *values, None], [None, None], []):
        array = pa.array(rows, kind)
        for start in range(len(rows) + 1):
            some = array.slice(start, 3)
            assert value_bytes(pa.table([some], ["a"])) == (pc.sum(array_bytes(some)).as_py() or 0)


HASH = pa.array([bytes([number % 251]) * 16 for number in range(1000)], pa.binary(16))


def keys_of(task: str, rows: int) -> pa.Table:
    """Keys as they are sent: the name of their batch is the same for all."""
    return pa.table([HASH.slice(0, rows), constant_column(literal(task, pa.string()), rows)], ["hash", "task"])


def written(path: Path, *runs: list[pa.Table]) -> tuple[OutputDirectory, ShuffleFileIndex]:
    target = OutputDirectory(str(path.parent))
    with target.create(str(path)) as file:
        writer = ShuffleFileWriter(file, ShuffleFileIndex(decoded_schema(runs[0][0].schema)))
        for pieces in runs:
            writer.add(0, pieces)
        writer.close()
    return target, read_index(target, str(path))


def test_what_is_the_same_in_all_rows_is_written_once_and_read_in_each(tmp_path: Path) -> None:
    path = tmp_path / "a.runs"
    target, index = written(path, [keys_of("a" * 1000, 1000)])
    assert path.stat().st_size < 20_000
    (table,) = read_partition_blocks(target, str(path), index, 0)
    assert table.schema == index.schema == pa.schema([("hash", pa.binary(16)), ("task", pa.string())])
    assert table["task"].to_pylist() == ["a" * 1000] * 1000
    assert index.blocks[0].nbytes == value_bytes(table)


def test_runs_that_become_one_hold_the_value_of_each_once(tmp_path: Path) -> None:
    path = tmp_path / "a.runs"
    target, index = written(path, [keys_of("a" * 1000, 600), keys_of("b" * 1000, 400)])
    assert (len(index.blocks), path.stat().st_size < 22_000) == (1, True)
    (table,) = read_partition_blocks(target, str(path), index, 0)
    assert table["task"].to_pylist() == ["a" * 1000] * 600 + ["b" * 1000] * 400
    assert index.blocks[0].nbytes == value_bytes(table)


def test_a_column_may_be_the_same_in_one_piece_only(tmp_path: Path) -> None:
    path = tmp_path / "a.runs"
    target, index = written(path, [keys_of("a", 2), pa.table({"hash": HASH.slice(0, 2), "task": ["b", "c"]})])
    (table,) = read_partition_blocks(target, str(path), index, 0)
    assert table["task"].to_pylist() == ["a", "a", "b", "c"]


def test_what_is_the_same_in_all_rows_is_a_part_of_what_has_moved(tmp_path: Path) -> None:
    moved = [written(tmp_path / "a.runs", [keys_of(task, 5)])[1].moved_rows_hash for task in ("a", "a", "b")]
    assert moved[0] == moved[1] != moved[2]


def test_hashes_are_not_compressed_and_texts_are() -> None:
    hashes = pa.table([HASH, pa.array(range(1000), pa.int64())], ["hash", "row"])
    texts = pa.table([HASH, pa.array(["one and the same text"] * 1000)], ["hash", "text"]).append_column("more", HASH)
    assert len(table_to_stream(hashes)) > 24_000
    assert len(table_to_stream(texts.drop_columns("more").append_column("again", texts["text"]))) < 20_000
    assert table_from_stream(table_to_stream(texts)) == texts
