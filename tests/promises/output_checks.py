"""What must be true of an output, in the middle of a run and at its end."""

from __future__ import annotations

import gzip
import json
import threading
from collections import Counter
from collections.abc import Iterable, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from typer.testing import CliRunner

from gristmill.cli.main import app
from gristmill.core.records.run_directory import Run
from gristmill.io.storage.output_directory import TEMPORARY_DIRECTORY
from gristmill.io.write.manifest import MANIFEST

SHARED = Path("/dev/shm")
_one_at_a_time = threading.Lock()


def contents(output: Path) -> dict[str, bytes]:
    """The files of an output, byte for byte."""
    return comparable({path.name: path.read_bytes() for path in output.iterdir() if path.is_file()})


def comparable(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files, with what the manifest tells of them, but not of the place and the program."""
    manifest = orjson.loads(files.get(MANIFEST, b"{}"))
    return files | {MANIFEST: orjson.dumps([manifest.get("rows"), manifest.get("files")])}


def half_files(output: Path, whole: dict[str, bytes], kept: Set[str], joins: bool) -> list[str]:
    """At every moment, what bears a final name is final; and files that are still to be joined are whole."""
    wrong = []
    for path in output.glob("*") if output.is_dir() else ():
        with suppress(FileNotFoundError):  # it was replaced, or put away, while we looked
            if path.name in (TEMPORARY_DIRECTORY, MANIFEST) or path.suffix == ".draft":
                continue
            if joins and path.name not in whole:
                wrong += [] if _is_whole(path, kept) else [f"{path.name}, which is to be joined, is not whole"]
            elif path.read_bytes() != whole.get(path.name):
                wrong.append(f"{path.name} is not what it will be, and bears its final name")
    return wrong


def _is_whole(path: Path, kept: Set[str]) -> bool:
    """Whether a file can be read to its end, with rows that are to be kept, each once."""
    try:
        found = _ids_of(path)
    except (ValueError, pa.ArrowInvalid):
        return False
    return len(found) == len(set(found)) and kept >= set(found)


def wrong_output(output: Path, whole: dict[str, bytes]) -> list[str]:
    """What is wrong with a finished output, in words."""
    found = contents(output)
    problems = [f"{name} is missing" for name in whole.keys() - found.keys()]
    problems += [f"{name} should not be there" for name in found.keys() - whole.keys()]
    problems += [f"{name} has other bytes" for name in whole.keys() & found.keys() if whole[name] != found[name]]
    problems += [f"{path} is left over" for path in output.rglob("*") if path.is_dir() or path.suffix == ".draft"]
    with _one_at_a_time:  # it takes the place of the standard output
        verdict = CliRunner().invoke(app, ["verify", str(output)])
    return problems + ([f"gristmill verify: {verdict.output}"] if verdict.exit_code else [])


def left_over(drivers: Iterable[int], folders: Iterable[Path]) -> list[Path]:
    """Temporary files that outlived the drivers that made them."""
    return [path for folder in folders for driver in drivers for path in folder.glob(f"gristmill-{driver}-*")]


def ids(output: Path) -> Counter[str]:
    """How often each record is in the output."""
    found = Counter[str]()
    for path in output.iterdir():
        if path.name != MANIFEST and path.is_file():
            found.update(_ids_of(path))
    return found


def _ids_of(path: Path) -> list[str]:
    if path.suffix == ".parquet":
        found: list[str] = pq.read_table(path, columns=["id"])["id"].to_pylist()
        return found
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line)["id"] for line in raw.splitlines()]


def quarantined(run_dir: str) -> Counter[str]:
    """How often each record is in quarantine."""
    return Counter(record.row["id"] for record in Run(run_dir).quarantined() if record.row)


def recorded(run_dir: Path) -> dict[Path, tuple[int, int]]:
    """The files that the ledger calls done, as they are now: a run that goes on leaves them alone."""
    lines: list[dict[str, Any]] = []
    for path in sorted(run_dir.glob("ledger/*.jsonl")):
        lines += map(orjson.loads, path.read_bytes().splitlines())
    return {path: state(path) for line in lines for file in line["written"] if (path := Path(file["path"])).exists()}


def state(path: Path) -> tuple[int, int]:
    """What changes when a file is written again, even with the same bytes."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def changed(path: Path, before: tuple[int, int]) -> bool:
    return not path.exists() or state(path) != before
