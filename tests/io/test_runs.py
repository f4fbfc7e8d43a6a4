"""Files of runs: how large they say that they are."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gristmill.io.write_parquet import array_bytes, value_bytes

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
