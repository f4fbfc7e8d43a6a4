"""Token counts with tokenizers of three libraries, each made here: nothing is downloaded."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import sentencepiece
import tiktoken
import tokenizers

from gristmill.core.errors import InputError, MissingDependencyError
from gristmill.text import ScoreFilter, TokenCountFilter
from gristmill.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json of words, which puts [CLS] before every text."""
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "a": 2, "b": 3, "é": 4}
    one = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    one.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    one.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 1)])
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    one.save(str(path))
    return path


@pytest.fixture(scope="module")
def letters() -> tiktoken.Encoding:
    ranks = {bytes([code]): code for code in range(256)}
    return tiktoken.Encoding("bytes", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 256})


def pieces(path: Path) -> str:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c ab bc abc"] * 20), model_writer=model, vocab_size=12, model_type="bpe",
        minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    path.write_bytes(model.getvalue())
    return str(path)


def test_tokens_are_counted_with_those_that_are_added(words: Path) -> None:
    one = TokenCountFilter(str(words), min_tokens=2, max_tokens=4)
    texts = ["", " ", "a", "a é zzz", "a b a b", None]
    assert one.score_batch(pa.array(texts)).to_pylist() == [1, 1, 2, 4, 5, 1]
    assert [one.score_document(text or "") for text in texts] == [1, 1, 2, 4, 5, 1]
    assert one.keep_batch(one.score_batch(pa.array(texts))).to_pylist() == [False, False, True, True, False, False]
    assert TokenCountFilter(str(words.parent)).score_document("a b") == 3
    assert TokenCountFilter(tokenizers.Tokenizer.from_file(str(words))).keep_document(10**9)


def test_any_of_the_libraries_will_do(words: Path, letters: tiktoken.Encoding, tmp_path: Path) -> None:
    assert TokenCountFilter(letters).score_batch(pa.array(["abc", "é", "<|endoftext|>"])).to_pylist() == [3, 2, 13]
    one = TokenCountFilter(pieces(tmp_path / "x.model"))
    assert one.score_document("") == 0
    assert 1 <= one.score_document("abc abc") < 8

    class Own:
        vocab_size = 9

        def encode(self, text: str) -> list[int]:
            return [1] * len(text)

    assert TokenCountFilter(Own()).score_document("four") == 4
    with pytest.raises(TypeError, match="must have encode"):
        TokenCountFilter(object()).setup()


def test_what_a_writer_asks(words: Path, letters: tiktoken.Encoding, tmp_path: Path) -> None:
    hf, tik = Tokenizer(str(words), "x", special_tokens=False), Tokenizer(letters, "x")
    assert (hf.vocabulary, hf.id_of("b"), hf.id_of("q"), hf.encode(["a b"])) == (5, 3, None, [[2, 3]])
    assert (tik.vocabulary, tik.id_of("<|endoftext|>"), tik.id_of("a")) == (257, 256, None)
    piece = Tokenizer(pieces(tmp_path / "y.model"), "x")
    assert piece.id_of("</s>") == 2
    assert piece.id_of("no such") is None
    assert len(hf.encode(["a"] * 600)) == 600


def test_it_survives_pickling_after_use_and_takes_no_model_along(words: Path) -> None:
    one = TokenCountFilter(str(words))
    one.setup()
    assert len(pickle.dumps(one)) < 500
    assert pickle.loads(pickle.dumps(one)).score_document("a") == 2


def test_what_is_missing_is_told_by_the_planner(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no file"):
        ScoreFilter(TokenCountFilter("/no/tokenizer.json")).check()
    with pytest.raises(InputError, match="no encoding 'nope'"):
        TokenCountFilter("nope").setup()
    for library, source in [("tokenizers", str(words)), ("tiktoken", "o200k_base"), ("sentencepiece", "x.model")]:
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(MissingDependencyError, match=r"pip install 'gristmill\[tokenizers\]'"):
            TokenCountFilter(source).check()
    with pytest.raises(MissingDependencyError, match="tokenizers"):
        TokenCountFilter(hf_model_name="gpt2").check()


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="either tokenizer"):
        TokenCountFilter()
    with pytest.raises(ValueError, match="min not above max"):
        TokenCountFilter("x", min_tokens=5, max_tokens=1)
