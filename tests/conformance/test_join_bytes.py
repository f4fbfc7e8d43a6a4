"""Joins give the same bytes whoever does the work and however the input is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill import Join, LocalExecutor, Pipeline
from gristmill.text import JsonlReader, JsonlWriter
from tests.conformance.executor_params import CLUSTER
from tests.conformance.test_exchange_bytes import contents, rows_of

ROWS = (120, 1, 60)
HERE = [(LocalExecutor(0), 10**9), (LocalExecutor(0, fuse=False), 700)]
WORKERS = {("inner", False): [(LocalExecutor(3), 1_500)]}


def _page(file: int, index: int) -> dict[str, Any]:
    row: dict[str, Any] = {"id": f"{file}-{index}", "domain": "hot" if index % 2 else f"d{index % 7}"}
    row["domain"] = None if index % 11 == 0 else row["domain"]
    return row | ({"late": [index]} if file == 2 else {})


def _owner(number: int) -> dict[str, Any]:
    return {"domain": "hot" if number % 3 == 0 else f"d{number}", "owner": {"name": f"o{number}"}, "since": number / 2}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("joined")
    for side in ("pages", "owners"):
        (folder / side).mkdir()
    for number, rows in enumerate(ROWS):
        _write(folder / "pages" / f"part-{number}.jsonl", [_page(number, index) for index in range(rows)])
    _write(folder / "pages" / "part-3.jsonl", [])
    _write(folder / "owners" / "part-0.jsonl", [_owner(number) for number in range(5)])
    _write(folder / "owners" / "part-1.jsonl", [_owner(number) for number in range(5, 9)])
    return folder


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(corpus: Path, out: Path, how: str, small: bool, executor: Any, blocksize: int) -> dict[str, bytes]:
    owners = JsonlReader(str(corpus / "owners"), blocksize=max(blocksize // 10, 1))
    stages = [
        JsonlReader(str(corpus / "pages"), blocksize=blocksize),
        Join(owners, "domain", how, broadcast=small, num_partitions=3),
        JsonlWriter(str(out)),
    ]
    Pipeline("joined", stages=stages).run(executor)
    return contents(out)


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("small", [False, True])
def test_same_bytes(corpus: Path, tmp_path: Path, how: str, small: bool) -> None:
    ways = [*HERE, *WORKERS.get((how, small), [])]
    one, *others = (run(corpus, tmp_path / str(number), how, small, *way) for number, way in enumerate(ways))
    assert all(other == one for other in others)
    wanted = _wanted(how)
    key = None if small else lambda row: json.dumps(row, sort_keys=True)  # looked up: in the order of the input
    rows = [{name: value for name, value in row.items() if value is not None} for row in rows_of(one)]
    assert (rows if key is None else sorted(rows, key=key)) == (wanted if key is None else sorted(wanted, key=key))


def _wanted(how: str) -> list[dict[str, Any]]:
    rows = []
    for page in (_page(file, index) for file, count in enumerate(ROWS) for index in range(count)):
        partners = [owner for owner in map(_owner, range(9)) if owner["domain"] == page["domain"]]
        if how in ("inner", "left"):
            rows += [page | owner for owner in partners] or ([page] if how == "left" else [])
        elif bool(partners) == (how == "semi"):
            rows.append(page)
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


@pytest.mark.slow
def test_same_bytes_of_workers_that_look_up(corpus: Path, tmp_path: Path) -> None:
    here = run(corpus, tmp_path / "here", "left", True, LocalExecutor(0), 10**9)
    assert run(corpus, tmp_path / "there", "left", True, LocalExecutor(2), 1_500) == here


@pytest.mark.ray
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("name", CLUSTER)
def test_same_bytes_on_a_cluster(corpus: Path, tmp_path: Path, cluster: str, name: str, small: bool) -> None:
    if name == "xenna":
        pytest.importorskip("cosmos_xenna")
    here = run(corpus, tmp_path / "here", "left", small, LocalExecutor(0), 10**9)
    assert run(corpus, tmp_path / "there", "left", small, CLUSTER[name](), 3_000) == here
