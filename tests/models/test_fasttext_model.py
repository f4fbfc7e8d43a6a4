"""The kernel for fastText models tells what the library tells; damaged files are told, unknown ones left to it."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import fasttext
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import InputError
from gristmill.models.fasttext_file import DamagedFastText, WrongFastText, huffman_tree, parse_parts, read_parts
from gristmill.models.fasttext_model import UNKNOWN, FastTextKernel, FastTextLibrary, FastTextModel
from tests.models.fasttext_fixtures import Recipe, model_bytes

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "data"
PIECES = [
    *("the", "of", "rights", "и", "größe", "人", "a", "<b>", "</s>", "__label__l1", "__label__l99", "__label__seen"),
    *("x" * 60, "y" * 49, "z" * 48, "é" * 500, "ａｂ", "👩‍👩‍👧", "Ω", "né", "</s", "人人生而自由"),
    *(" ", " ", " ", "\n", "\t", "\v", "\f", "\r", "\0", "\x1c", "\x85", "\u3000", "\u2028", "\xa0"),
]
RECIPES = [
    Recipe(),
    Recipe(dim=16, most=6, least=3),
    Recipe(dim=5, labels=1),
    Recipe(labels=2, least=0, most=1),
    Recipe(loss=2),
    Recipe(loss=3, dim=19),
    Recipe(loss=4),
    Recipe(run=2),
    Recipe(run=5, most=0, least=0, loss=3),
    Recipe(most=0, least=0, bucket=0),
    Recipe(words=("a", "b")),
    Recipe(words=("a", "b"), most=0, least=0, bucket=0, loss=3),
    Recipe(bucket=1),
    Recipe(piece=2),
    Recipe(piece=2, scaled=True, dim=16),
    Recipe(piece=3, scaled=True, output_too=True),
    Recipe(piece=3, output_too=True, loss=3),
    Recipe(piece=2, cutoff=100),
    Recipe(piece=2, cutoff=500, scaled=True, run=3, loss=4),
    Recipe(piece=2, cutoff=0),
    Recipe(labels=150, bucket=3000, dim=16),
]


def both(data: bytes, folder: Path) -> tuple[FastTextKernel, FastTextLibrary]:
    path = folder / "model.bin"
    path.write_bytes(data)
    return FastTextKernel(read_parts(path)), FastTextLibrary(fasttext.load_model(str(path)))


def same(ours: FastTextKernel, library: FastTextLibrary, texts: pa.Array) -> None:
    found, wanted = ours.best(texts), library.best(texts)
    assert [label for label, _ in found] == [label for label, _ in wanted]
    assert [chance for _, chance in found] == pytest.approx([chance for _, chance in wanted], abs=1e-6)
    for label in [*ours.labels()[:3], "__label__none"]:
        assert ours.probability(texts, label) == pytest.approx(library.probability(texts, label), abs=1e-6)


def some_texts(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices(PIECES, k=draw.randrange(30))) for _ in range(count)]


def test_floats_that_are_read_as_such_lie_where_floats_should() -> None:
    parts = read_parts(FastTextModel(None, "a test").file())
    assert all(np.asarray(buffer).flags.aligned for buffer in parts.buffers[1:])  # the first is read byte by byte


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_all_kinds_of_models(recipe: Recipe, tmp_path: Path) -> None:
    ours, library = both(model_bytes(recipe), tmp_path)
    assert sorted(ours.labels()) == sorted(library.labels())
    assert len(ours.labels()) == recipe.labels
    texts = some_texts(recipe.seed, 120)
    same(ours, library, pa.array([*texts, "", None, " \u3000\n"]))
    same(ours, library, pa.array([*texts, None], pa.large_string())[3:])


@pytest.fixture(scope="module")
def languages() -> tuple[FastTextKernel, FastTextLibrary]:
    path = FastTextModel(None, "a test").file()
    return FastTextKernel(read_parts(path)), FastTextLibrary(fasttext.load_model(str(path)))


def documents() -> Iterator[str]:
    for path in sorted(DEMO.glob("web-*.jsonl")):
        for line in path.read_bytes().splitlines():
            with suppress(ValueError, TypeError, KeyError):  # some are damaged, as the web is
                yield str(json.loads(line)["text"])


def test_real_text_of_many_languages(languages: tuple[FastTextKernel, FastTextLibrary]) -> None:
    ours, library = languages
    texts = pa.array([*list(documents())[::4], *some_texts(1, 100)])
    found, wanted = ours.best(texts), library.best(texts)
    assert [label for label, _ in found] == [label for label, _ in wanted]
    assert [chance for _, chance in found] == pytest.approx([chance for _, chance in wanted], abs=1e-6)
    assert len({label for label, _ in found}) >= 11


@given(st.lists(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join), st.none()), max_size=6))
def test_any_text(languages: tuple[FastTextKernel, FastTextLibrary], texts: list[str | None]) -> None:
    same(*languages, pa.array(texts, pa.string()))


def test_more_words_than_are_kept_in_mind(languages: tuple[FastTextKernel, FastTextLibrary]) -> None:
    draw = random.Random(1)
    texts = [" ".join(f"w{draw.randrange(10**9)}" for _ in range(20_000)) for _ in range(5)]
    ours, library = languages
    found = ours.best(pa.array([*texts, texts[0]]))
    assert found[0] == found[-1]
    assert found[0] == pytest.approx(library.best(pa.array(texts[:1]))[0], abs=1e-6)
    assert found[:-1] == [
        FastTextKernel(read_parts(FastTextModel(None, "a test").file())).best(pa.array([text]))[0] for text in texts
    ]


def test_threads_share_a_model(languages: tuple[FastTextKernel, FastTextLibrary]) -> None:
    ours, _ = languages
    texts = pa.array(some_texts(3, 1000))
    wanted = ours.best(texts)
    with ThreadPoolExecutor(4) as pool:
        assert all(found == wanted for found in pool.map(ours.best, [texts] * 12))


def test_a_model_without_an_answer_says_so(tmp_path: Path) -> None:
    ours, library = both(model_bytes(Recipe(words=("a",), most=0, least=0, bucket=0)), tmp_path)
    assert ours.best(pa.array(["b"])) == library.best(pa.array(["b"])) == [(UNKNOWN, 0.0)]


def test_the_rarest_are_joined_first() -> None:
    assert huffman_tree([10, 5, 1, 1]).tolist() == [3, 2, 4, 1, 5, 0]
    assert huffman_tree([3]).tolist() == []


def test_files_that_are_cut_short_or_lie_are_told(tmp_path: Path) -> None:
    whole = model_bytes(Recipe(piece=3, scaled=True, output_too=True, cutoff=20))
    path = tmp_path / "cut.ftz"
    for size in {0, 10, 64, 100, *range(150, len(whole), 997), len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="cut.ftz is damaged"):
            FastTextModel(path, "a test").load()
    draw = random.Random(1)
    texts = pa.array(some_texts(1, 5))
    read = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(8, 1200)] = draw.choice([0, 1, 2, 127, 128, 255])
        ours = opened(bytes(data))
        if ours is not None:
            ours.best(texts)
            read += 1
    assert 0 < read < 400


def opened(data: bytes) -> FastTextKernel | None:
    try:
        return FastTextKernel(parse_parts(data))
    except ValueError:
        return None


@pytest.mark.parametrize(("place", "value"), [(0, 1), (4, 10), (8 + 4 * 6, 9), (8 + 4 * 7, 2)])
def test_other_kinds_of_files_are_refused(place: int, value: int, tmp_path: Path) -> None:
    data = bytearray(model_bytes(Recipe()))
    data[place] = value
    with pytest.raises(WrongFastText):
        parse_parts(bytes(data))
    path = tmp_path / "other.bin"
    path.write_bytes(data)
    with pytest.raises(InputError, match="other.bin cannot be used: not a"):
        FastTextModel(path, "a test").load()


def test_models_of_the_older_version_have_no_ngrams_of_characters(tmp_path: Path) -> None:
    data = bytearray(model_bytes(Recipe(loss=3)))
    data[4] = 11
    ours, library = both(bytes(data), tmp_path)
    same(ours, library, pa.array(some_texts(2, 100)))


@pytest.mark.parametrize("counts", [[2**62] * 7, [-1] * 7, [1, 2, 3, 4, 5, 6, 2**50], [2**50, 1, 1, 1, 1, 1, 1]])
def test_no_count_of_a_label_leads_out_of_the_tree(counts: list[int]) -> None:
    with pytest.raises(DamagedFastText, match="counts"):
        huffman_tree(counts)


def test_a_header_that_lies_takes_no_memory() -> None:
    """A file of 10 kB that claims 2^27 buckets, of which it has three."""
    data = bytearray(model_bytes(Recipe(piece=2, cutoff=3)))
    data[8 + 4 * 8 : 8 + 4 * 9] = struct.pack("<i", 2**27)
    tracemalloc.start()
    parse_parts(bytes(data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20


def test_sound_models_that_are_too_large_are_left_to_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gristmill.models.fasttext_file.MAX_BYTES", 100)
    path = tmp_path / "large.ftz"
    path.write_bytes(model_bytes(Recipe(piece=2)))
    assert isinstance(FastTextModel(path, "a test").load(), FastTextLibrary)
    path.write_bytes(model_bytes(Recipe(piece=2))[:-1])
    with pytest.raises(InputError, match="damaged"):
        FastTextModel(path, "a test").load()


def test_without_kernels_the_library_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.models.fasttext_model.kernels", None)
    model = FastTextModel(None, "a test")
    assert isinstance(model.load(), FastTextLibrary)
    assert model.best(pa.array(["Alle Menschen sind frei und gleich an Würde."]))[0][0] == "de"
    assert {"en", "de"} <= set(model.labels())
