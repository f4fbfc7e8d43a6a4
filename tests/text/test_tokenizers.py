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

from gristmill import DocumentBatch
from gristmill.core.errors import InputError, MissingDependencyError, PlanError
from gristmill.core.stage import WorkerMetadata
from gristmill.text import ScoreFilter, TokenCountFilter, TokenizeDocuments
from gristmill.text.tokens.tokenizer import Tokenizer


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


def test_a_text_is_encoded_whole_whatever_the_file_says(words: Path, tmp_path: Path) -> None:
    cutting = tokenizers.Tokenizer.from_file(str(words))
    cutting.enable_truncation(8)
    cutting.enable_padding(length=12, pad_id=2)
    cutting.save(str(tmp_path / "tokenizer.json"))
    for source in (str(tmp_path), cutting):
        assert TokenCountFilter(source).score_batch(pa.array(["a " * 100, "a", None])).to_pylist() == [101, 2, 1]
    assert cutting.truncation["max_length"] == 8  # the user's own is left as it is
    assert Tokenizer(str(tmp_path), "x", special_tokens=False).encode(["a b", ""]) == [[2, 3], []]


class Slow:
    """A tokenizer with the methods of those of `transformers`."""

    bos_token_id, eos_token_id, unk_token_id = 1, 2, 0

    def __len__(self) -> int:
        return 10

    def encode(self, text: str, text_pair: str | None = None, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [9 for _ in text.split()]

    def convert_tokens_to_ids(self, token: str) -> int:
        return {"</s>": 2, "<s>": 1}.get(token, 0)


def test_a_tokenizer_of_transformers_adds_nothing_of_its_own() -> None:
    one = Tokenizer(Slow(), "x", special_tokens=False)
    assert (one.encode(["a b"]), one.vocabulary, one.end) == ([[9, 9]], 10, 2)
    assert (one.id_of("</s>"), one.id_of("<|endoftext|>")) == (2, None)
    assert TokenCountFilter(Slow()).score_document("a b") == 3
    stage = TokenizeDocuments(Slow(), append_eod=True)
    assert stage.process(DocumentBatch([{"text": "a b"}])).to_rows()[0]["__tokens__"] == [9, 9, 2]
    for wrong, message in [
        ({"eod_token": 10}, "eod_token is 10, must be below the vocabulary size of 10"),
        ({"pad_token": 70000}, "pad_token"),
    ]:
        with pytest.raises(PlanError, match=message):
            TokenizeDocuments(Slow(), append_eod=True, **wrong).setup(WorkerMetadata())


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


def test_what_is_missing_is_told_by_the_planner(words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="does not exist"):
        ScoreFilter(TokenCountFilter("/no/tokenizer.json")).check()
    for wrong, message in [
        ("o200k_bas", "'o200k_bas' is neither a file nor an encoding.*Did you mean 'o200k_base'"),
        ("nope", "neither a file nor an encoding"),
    ]:
        with pytest.raises(InputError, match=message):
            ScoreFilter(TokenCountFilter(wrong)).check()
    for name, content in {"a.json": "{}", "b.json": "[", "tokenizer.json": "[1]"}.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(InputError, match=f"TokenCountFilter: .*{name} is not a tokenizer.json"):
            TokenCountFilter(str(tmp_path / name)).check()
    for name in ("c.json", "d.model"):
        (tmp_path / name).write_text('{"model": 1}')
        with pytest.raises(InputError, match=f"TokenCountFilter: .*{name} could not be loaded by"):
            TokenCountFilter(str(tmp_path / name)).setup()
    for library, source in [("tokenizers", str(words)), ("tiktoken", "o200k_base"), ("sentencepiece", "x.model")]:
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(MissingDependencyError, match=r"pip install 'gristmill\[tokenizers\]'"):
            TokenCountFilter(source).check()
    with pytest.raises(MissingDependencyError, match="tokenizers"):
        TokenCountFilter(hf_model_name="gpt2").check()


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="either tokenizer"):
        TokenCountFilter()
    with pytest.raises(ValueError, match="min at most max"):
        TokenCountFilter("x", min_tokens=5, max_tokens=1)
