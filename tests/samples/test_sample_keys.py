"""Names of files for samples: ids may be of any length, and all the same."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa

from gristmill.audio import AudioBatch
from gristmill.samples.shard_formats import safe_key, unique_key


def test_an_id_of_any_length_names_a_file(tmp_path: Path) -> None:
    ids = ["a" * 300, "a" * 301, "é" * 200, "d/" * 3000 + "x", "b" * 180, "plain", "../" * 500 + "x"]
    keys = [safe_key(one, AudioBatch) for one in ids]
    assert len(set(keys)) == len(ids)
    assert keys[4:6] == ["b" * 180, "plain"]
    for key in keys:
        path = tmp_path / f"{key}.json.0123abcd.draft"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        assert path.resolve().is_relative_to(tmp_path)
    assert pa.array(keys).null_count == 0


def test_keys_of_one_id_are_numbered_in_proportionate_time() -> None:
    taken = set[str]()
    assert [unique_key("x", taken) for _ in range(5)] == ["x", "x_2", "x_3", "x_4", "x_5"]
    began = time.process_time()
    assert len({unique_key("y", taken) for _ in range(20_000)}) == 20_000
    assert time.process_time() - began < 5
