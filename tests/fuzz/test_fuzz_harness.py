"""The harness finds what it must find, does the same again for the same seed, and a few inputs of each kind pass."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.fuzz.__main__ import load_progress, read_block
from tests.fuzz.file_mutations import MUTATIONS, damaged
from tests.fuzz.fuzz_process import input_bytes, make_corpus, try_one
from tests.fuzz.fuzz_targets import REFUSALS, Target, targets

ALL = {target.name: target for target in targets()}


@pytest.mark.parametrize("name", list(ALL))
@pytest.mark.filterwarnings("ignore")
def test_damaged_files_are_refused_or_read_in_part(name: str, tmp_path: Path) -> None:
    target, home = ALL[name], tmp_path / "corpus"
    corpus = make_corpus(target, home)
    for data in corpus:
        assert try_one(target, data, corpus, tmp_path, home) is None
    assert any(_is_read(target, data, tmp_path / "scratch", home) for data in corpus)
    for number in range(4):
        assert try_one(target, input_bytes(target, 7, number, corpus), corpus, tmp_path, home) is None, number


def _is_read(target: Target, data: bytes, folder: Path, home: Path) -> bool:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / f"a{target.suffix}").write_bytes(data)
    if (home / "run.tar").exists():
        shutil.copy(home / "run.tar", folder)
    try:
        return target.check(folder / f"a{target.suffix}", folder)[0] > 0
    except REFUSALS:
        return False


def test_the_same_seed_gives_the_same_inputs_and_others_differ(tmp_path: Path) -> None:
    target = ALL["jsonl"]
    corpus = make_corpus(target, tmp_path)
    first = [input_bytes(target, 1, number, corpus) for number in range(50)]
    assert first == [input_bytes(target, 1, number, corpus) for number in range(50)]
    assert len(set(first)) > 45


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_mutation_does_damage_whatever_it_is_given(mutation: object) -> None:
    assert callable(mutation)
    done = 0
    for seed in range(60):
        data = bytearray(random.Random(seed).randbytes(seed))
        before = bytes(data)
        mutation(random.Random(seed), data, [b"other", b"12345"])
        done += bytes(data) != before
    assert done > 15
    assert damaged(random.Random(1), [b""]) is not None


def test_a_loss_and_a_strange_error_are_found(tmp_path: Path) -> None:
    def deaf(path: Path, _: Path) -> tuple[int, int]:
        return path.read_bytes().count(b"\n"), 0

    def broken(path: Path, _: Path) -> tuple[int, int]:
        raise IndexError(path)

    corpus = [b"a\nb\n"]
    found = try_one(Target("x", ".x", lambda _: corpus, deaf, framed=True), b"a\n", corpus, tmp_path, tmp_path)
    assert found is not None
    assert "cut short" in found
    found = try_one(Target("x", ".x", lambda _: corpus, broken), b"a\n", corpus, tmp_path, tmp_path)
    assert found is not None
    assert "IndexError" in found


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    assert read_block("latex", 3, 5, 4, tmp_path) == 0
    assert (tmp_path / "latex" / "at").read_text() == "9"
    (tmp_path / "progress.json").write_text('{"seed": 3, "done": {"latex": 9}}')
    assert load_progress(tmp_path / "progress.json", None) == {"seed": 3, "done": {"latex": 9}}
    assert load_progress(tmp_path / "progress.json", 4) == {"seed": 4, "done": {}}
