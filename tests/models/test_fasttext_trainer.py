"""Training of fastText models: as good as can be expected, the same bytes, and files that the library reads."""

from __future__ import annotations

from pathlib import Path

import fasttext
import numpy as np
import pyarrow as pa
import pytest

from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.errors import PlanError
from gristmill.models.fasttext_model import FastTextModel
from gristmill.models.text.fasttext_trainer import FastTextSettings, label_counts, train_fasttext

GOOD = ["theorem", "proof", "lemma", "because", "therefore", "measure", "experiment", "result", "data", "method"]
BAD = ["buy", "click", "free", "offer", "winner", "casino", "cheap", "now", "subscribe", "deal"]
COMMON = [f"word{number}" for number in range(300)]


def examples(count: int, seed: int = 0) -> tuple[pa.Array, list[str]]:
    draw = np.random.default_rng(seed)
    texts, labels = [], []
    for _ in range(count):
        label = "good" if draw.random() < 0.4 else "bad"
        own = draw.choice(GOOD if label == "good" else BAD, size=draw.integers(1, 4))
        texts.append(" ".join([*draw.choice(COMMON, size=draw.integers(3, 30)), *own]))
        labels.append(label)
    return pa.array(texts), labels


def trained(tmp_path: Path, name: str = "model.bin", **settings: object) -> Path:
    path = tmp_path / name
    train_fasttext(*examples(2000), FastTextSettings(**settings)).write(path)  # type: ignore[arg-type]
    return path


SHAPES = [
    {},
    {"word_ngrams": 1},
    {"word_ngrams": 3, "dim": 7, "bucket": 1000},
    {"minn": 2, "maxn": 4, "word_ngrams": 1, "dim": 10},
]


@pytest.mark.parametrize("settings", SHAPES)
def test_it_learns_and_the_library_reads_the_same(settings: dict, tmp_path: Path) -> None:
    model, library = (path := trained(tmp_path, **settings)), fasttext.load_model(str(path))
    texts, labels = examples(500, seed=1)
    found = FastTextModel(model, "a test").best(texts)
    assert np.mean([label == wanted for (label, _), wanted in zip(found, labels, strict=True)]) > 0.98
    for text, (label, chance) in zip(texts.to_pylist(), found, strict=True):
        [theirs], [probability] = library.predict(text)
        assert theirs == f"__label__{label}"
        assert chance == pytest.approx(min(1.0, probability), abs=1e-6)


def test_the_same_texts_give_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    first, second = trained(tmp_path, "1.bin"), trained(tmp_path, "2.bin")
    assert first.read_bytes() == second.read_bytes()
    assert trained(tmp_path, "3.bin", seed=7).read_bytes() != first.read_bytes()


def test_labels_become_words_and_the_most_frequent_is_first() -> None:
    assert label_counts(["b", "high quality", "b"]) == [("__label__b", 2), ("__label__high-quality", 1)]


def test_empty_texts_null_and_nul_are_no_obstacle(tmp_path: Path) -> None:
    texts = pa.array(["", None, "a\0b", "__label__x \n c", "a b c"] * 20)
    model = train_fasttext(texts, ["x", "y", "x", "y", "x"] * 20, FastTextSettings(min_count=1))
    assert [word for word, _ in model.words] == ["</s>", "a", "b", "c"]
    model.write(tmp_path / "model.bin")
    assert len(FastTextModel(tmp_path / "model.bin", "a test").best(texts)) == 100


def test_one_label_is_not_enough() -> None:
    with pytest.raises(PlanError, match="two labels or more, and there is __label__x"):
        train_fasttext(pa.array(["a"]), ["x"])


@pytest.mark.parametrize(
    ("ends", "rows", "labels"),
    [
        ([1], [9], [0]), ([1], [-1], [0]), ([2], [0], [0]), ([1], [0], [2]), ([1], [0], [-1]), ([1], [0], []),
        ([3, 1], [0] * 3, [0, 0]),
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(ends: list[int], rows: list[int], labels: list[int]) -> None:
    examples = (np.array(ends, np.int64), np.array(rows, np.int32), np.array(labels, np.int32))
    matrices = (np.zeros((9, 4), np.float32), np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match="out of range|for each text|of these rows"):
        kernels.fasttext_fit(examples, matrices, (4, 1, 0), 0.1)
