"""Tokenizers of three libraries behind one interface, for counting tokens and for writing them.

    a `tokenizer.json`, or a directory with one     Hugging Face `tokenizers`
    a `.model` file                                 `sentencepiece`
    "owner/name" of a model on the hub              `tokenizers`, which downloads it or finds it in its cache
    the name of an encoding, such as "o200k_base"   `tiktoken`, which downloads it or finds it in TIKTOKEN_CACHE_DIR
    an object of one of these libraries, or one with `encode` that returns a list of numbers

Nothing is loaded before `load`. Texts are encoded in full: truncation and padding in a `tokenizer.json` are meant for
the inputs of models, and are ignored.
"""

from __future__ import annotations

import copy
import inspect
import os
import re
import socket
import tempfile
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from gristmill.core.errors import InputError, did_you_mean, printable, require

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ENCODE_BATCH_DOCUMENTS = 256
"""Documents per call of the library. Tokens are Python objects on the way, so larger batches need much memory."""

_CONNECT_S = 3.0
_CONNECT_ATTEMPTS = 2


@dataclass(frozen=True)
class HubAccess:
    """How to download from the Hugging Face hub."""

    token: str | None = None
    cache_dir: str | None = None

    def load(self, name: str) -> Any:
        import tokenizers
        from huggingface_hub import hf_hub_download

        path = hf_hub_download(name, "tokenizer.json", token=self.token, cache_dir=self.cache_dir)
        return tokenizers.Tokenizer.from_file(path)

    def url_unless_cached(self, name: str) -> str | None:
        """The address of the hub; None if the tokenizer was downloaded before."""
        hub = require("huggingface_hub", "tokenizers", name)
        found = hub.try_to_load_from_cache(name, "tokenizer.json", cache_dir=self.cache_dir)
        return (
            None if isinstance(found, str) else str(require("huggingface_hub.constants", "tokenizers", name).ENDPOINT)
        )


def _encodings_url_unless_cached() -> str | None:
    """The address that tiktoken downloads from; None if its cache has files."""
    variables = (os.environ.get("TIKTOKEN_CACHE_DIR"), os.environ.get("DATA_GYM_CACHE_DIR"))
    cache = next((Path(place) for place in variables if place), Path(tempfile.gettempdir(), "data-gym-cache"))
    return None if cache.is_dir() and any(cache.iterdir()) else "https://openaipublic.blob.core.windows.net"


def _answers(url: str) -> bool:
    """Whether a server accepts connections. Behind a proxy that is not known, and taken for granted."""
    parts = urlsplit(url)
    if urllib.request.getproxies().get(parts.scheme):
        return True
    port = parts.port or (80 if parts.scheme == "http" else 443)
    for _ in range(_CONNECT_ATTEMPTS):
        with suppress(OSError):
            socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_S).close()
            return True
    return False


class Tokenizer:
    """Encodes texts as token ids. `source` is one of the above; `batch` documents are encoded at a time."""

    def __init__(
        self,
        source: Any,
        purpose: str,
        special_tokens: bool = True,
        batch: int = ENCODE_BATCH_DOCUMENTS,
        hub: HubAccess | None = None,
    ) -> None:
        self.source, self.purpose, self.special_tokens = source, purpose, special_tokens
        self.batch, self.hub = batch, hub or HubAccess()
        self._encode: Callable[[list[str]], list[Sequence[int]]] | None = None
        self._vocabulary_size = 0
        self._ids: Callable[[str], int | None] = lambda _: None
        self._end: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        names = ("source", "purpose", "special_tokens", "batch", "hub")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def check(self) -> None:
        """Raise if the library or the file is missing, or if the file is not a tokenizer."""
        if not isinstance(self.source, str | os.PathLike):
            return
        kind, path = self._library_and_path()
        library = require(kind, "tokenizers", self.purpose)
        if kind == "tiktoken" and self.source not in (known := library.list_encoding_names()):
            raise InputError(
                f"{self.purpose}: {self.source!r} is neither a file nor an encoding of tiktoken."
                f"{did_you_mean(str(self.source), known)} Encodings: {', '.join(known)}"
            )
        if path is None:
            self._check_download(kind)
        elif not path.is_file():
            raise InputError(
                f"{self.purpose}: the file {path} does not exist. Give a tokenizer.json, a directory with one, a "
                "SentencePiece .model file, or the name of a tiktoken encoding"
            )
        if path is not None and kind == "tokenizers" and not _has_model(path):
            raise InputError(f'{self.purpose}: {path} is not a tokenizer.json, a JSON object with a "model"')

    def _check_download(self, kind: str) -> None:
        """Raise if the tokenizer is not in the cache and its server cannot be reached: libraries try again for long."""
        name = os.fspath(self.source)
        url = self.hub.url_unless_cached(name) if kind == "tokenizers" else _encodings_url_unless_cached()
        if url is not None and not _answers(url):
            raise InputError(
                f"{self.purpose}: the tokenizer {name!r} is not in the cache, and {url} cannot be reached to download "
                "it. Check the network, or give the path of a tokenizer.json or a SentencePiece .model file"
            )

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """The tokens of each text."""
        if self._encode is None:
            self.load()
        assert self._encode is not None
        size = self.batch
        return [ids for start in range(0, len(texts), size) for ids in self._encode(list(texts[start : start + size]))]

    @property
    def vocabulary(self) -> int:
        """The size of the vocabulary. All token ids are below it."""
        if self._encode is None:
            self.load()
        return self._vocabulary_size

    @property
    def end(self) -> int | None:
        """The id of the token that ends a text, if the tokenizer has one."""
        if self._encode is None:
            self.load()
        return self._end

    def id_of(self, token: str) -> int | None:
        """The id of a token, or None if there is no such token."""
        if self._encode is None:
            self.load()
        return self._ids(token)

    def load(self) -> None:
        tool = self.source
        if isinstance(tool, str | os.PathLike):
            self.check()
            kind, path = self._library_and_path()
            try:
                tool = _LOADERS[kind](path, os.fspath(tool), self.hub)
            except Exception as error:  # these libraries raise errors of many types that do not name the file
                raise InputError(
                    f"{self.purpose}: {path or tool} could not be loaded by {kind}: {printable(error, 300)}. Give "
                    "another file, or a name that can be downloaded or is in the cache"
                ) from error
        self._adopt_library(tool)

    def _library_and_path(self) -> tuple[str, Path | None]:
        name = os.fspath(self.source)
        path = Path(name).expanduser()
        if path.is_dir():
            return "tokenizers", path / "tokenizer.json"
        if name.endswith(".model"):
            return "sentencepiece", path
        if name.endswith(".json") or path.is_file():
            return "tokenizers", path
        if "/" in name:
            return "tokenizers", None if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else path
        return "tiktoken", None

    def _adopt_library(self, tool: Any) -> None:
        home = type(tool).__module__.partition(".")[0]
        special = self.special_tokens
        if home == "tokenizers":
            tool = _without_truncation(tool)
            fast = getattr(tool, "encode_batch_fast", None) or tool.encode_batch
            self._encode = lambda texts: [one.ids for one in fast(texts, add_special_tokens=special)]
            self._vocabulary_size, self._ids = tool.get_vocab_size(), tool.token_to_id
        elif home == "tiktoken":
            self._encode = lambda texts: tool.encode_ordinary_batch(texts, num_threads=1)
            self._vocabulary_size, self._ids = tool.n_vocab, tool._special_tokens.get
        elif home == "sentencepiece":
            self._encode = lambda texts: tool.encode(texts, num_threads=1)
            self._vocabulary_size = tool.get_piece_size()
            self._ids = lambda token: None if tool.piece_to_id(token) == tool.unk_id() else tool.piece_to_id(token)
        elif hasattr(tool, "encode"):
            options = {"add_special_tokens": special} if _accepts_parameter(tool.encode, "add_special_tokens") else {}
            self._encode = lambda texts: [tool.encode(text, **options) for text in texts]
            self._vocabulary_size = len(tool) if hasattr(tool, "__len__") else int(getattr(tool, "vocab_size", 0))
            self._ids = lambda token: _known_id(tool, token)
            self._end = getattr(tool, "eos_token_id", None)
        else:
            raise TypeError(f"{self.purpose}: a tokenizer must have encode(text), which {type(tool).__name__} lacks")


def _has_model(path: Path) -> bool:
    try:
        content = orjson.loads(path.read_bytes())
    except ValueError:
        return False
    return isinstance(content, dict) and "model" in content


def _without_truncation(tool: Any) -> Any:
    """The tokenizer without truncation and padding: a copy, if it has any."""
    if tool.truncation is None and tool.padding is None:
        return tool
    tool = copy.deepcopy(tool)
    tool.no_truncation()
    tool.no_padding()
    return tool


def _accepts_parameter(function: Any, parameter: str) -> bool:
    try:
        return parameter in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a C function without a signature
        return False


def _known_id(tool: Any, token: str) -> int | None:
    """The id of a token, or None if it is that of the unknown token, which `transformers` returns for others."""
    if not hasattr(tool, "convert_tokens_to_ids"):
        return None
    number: int | None = tool.convert_tokens_to_ids(token)
    return None if number == getattr(tool, "unk_token_id", None) else number


def check_no_kwargs(name: str, transformers_init_kwargs: Mapping[str, Any] | None) -> None:
    if transformers_init_kwargs:
        raise ValueError(
            f"{name}: transformers_init_kwargs is not supported, because AutoTokenizer of transformers is not used. "
            "Give the tokenizer itself, as in AutoTokenizer.from_pretrained(..., **transformers_init_kwargs)"
        )


def _load_tokenizers(path: Path | None, name: str, hub: HubAccess) -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # each worker has one core
    import tokenizers

    return hub.load(name) if path is None else tokenizers.Tokenizer.from_file(str(path))


def _load_sentencepiece(path: Path | None, _: str, __: HubAccess) -> Any:
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def _load_tiktoken(_: Path | None, name: str, __: HubAccess) -> Any:
    import tiktoken

    return tiktoken.get_encoding(name)


_LOADERS = {"tokenizers": _load_tokenizers, "sentencepiece": _load_sentencepiece, "tiktoken": _load_tiktoken}
