"""All functions of the catalogue that take a text, as calls with one text."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from gristmill import DocumentBatch
from gristmill.core.stage import ProcessingStage
from gristmill.download.arxiv.latex import LatexCleaner
from gristmill.download.documents.docx_epub import xhtml_text
from gristmill.download.web.charset import decode_page
from gristmill.download.wiki.wikitext import WikitextCleaner
from gristmill.recipes.stage_catalogue import Entry, catalogue
from gristmill.text import (
    DocumentFilter,
    DocumentModifier,
    DocumentSplitter,
    IdentifyLanguage,
    RedactPii,
    TokenizeDocuments,
)
from tests.models.fasttext_fixtures import Recipe, model_bytes

Call = Callable[[str], object]

_ARGUMENTS: dict[str, Any] = {
    "words": ["the", "bad", "very bad words"],
    "label": "__label__a",
    "patterns": ["cookies", "privacy"],
    "pattern": "(a|b)+c",
    "function": len,
    "substring": "the",
    "position": "any",
    "lang": "c",
    "table": {"the": 10, "of": 5},
    "language": "c",
    "extension": "c",
}
"""What is given for parameters that have no default."""

_PATTERNS = {"LineRemover", "RegexFilter"}
"""Their time is that of the expressions they are given."""

_ALWAYS = {"UrlBlocklistFilter": {"words": ["bad"], "domains": ["a.example"], "subwords": ["worse"]}}
"""Parameters of which one must be given."""

_MORE = [
    ("StopWordRatioFilter", {"lang": "zh", "words": ["中"]}),
    ("FlaggedWordsFilter", {"lang": "zh"}),
    ("C4BadWordsFilter", {"lang": "zh"}),
    ("GeneralCommentToCodeFilter", {"language": "python"}),
    ("PiiRedactor", {"countries": ["US", "DE", "GB", "IN"]}),
]


def _tokenizer(folder: Path) -> str:
    import tokenizers

    one = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    one.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = folder / "tokenizer.json"
    one.save(str(path))
    return str(path)


def _models(folder: Path) -> dict[str, Any]:
    model = folder / "model.bin"
    model.write_bytes(model_bytes(Recipe()))
    tokenizer = _tokenizer(folder)
    return {"model_path": str(model), "path_to_tokenizer": tokenizer, "tokenizer": tokenizer}


def _column(method: Callable[[pa.Array], object], text: str) -> object:
    return method(pa.array([text]))


def _stage(stage: ProcessingStage[Any, Any], text: str) -> object:
    return stage.process(DocumentBatch({"text": pa.array([text])}))


def _parts(entry: Entry, given: dict[str, Any]) -> Iterator[tuple[str, Call]]:
    own = {"label": "a", "model_path": given["model_path"]} if entry.name == "FastTextQualityFilter" else given
    names = entry.parameters
    needed = {name: own.get(name) for name, one in names.items() if one.required or name in ("model_path", "tokenizer")}
    needed |= _ALWAYS.get(entry.name, {})
    variants = [({}, ""), *((more, str(more)) for name, more in _MORE if name == entry.name)]
    for more, found in variants:
        part = entry.cls(**{**{name: value for name, value in needed.items() if value is not None}, **more})
        part.check()
        part.setup()
        if isinstance(part, DocumentFilter):
            yield f"{entry.name} {found} column", partial(_column, part.score_batch)
            yield f"{entry.name} {found}", part.score_document
        else:
            assert isinstance(part, DocumentModifier)
            yield f"{entry.name} {found} column", partial(_column, part.modify_batch)
            yield f"{entry.name} {found}", part.modify_document


def text_functions() -> Iterator[tuple[str, Call]]:
    """Every filter and modifier of texts, in both of its forms, and the stages and extractors that look into texts."""
    with tempfile.TemporaryDirectory() as folder:
        given = {**_ARGUMENTS, **_models(Path(folder))}
        for entry in catalogue().values():
            model = entry.parameters.get("model")
            if model and model.required:  # the time is that of the model
                continue
            if issubclass(entry.cls, DocumentFilter | DocumentModifier) and entry.name not in _PATTERNS:
                yield from _parts(entry, given)
        stages = [RedactPii(), DocumentSplitter("\n\n"), IdentifyLanguage(), TokenizeDocuments(given["tokenizer"])]
        for stage in stages:
            stage.setup(None)
            yield type(stage).__name__, partial(_stage, stage)
    yield "wikitext", WikitextCleaner("en").clean
    yield "LaTeX", LatexCleaner().clean
    yield "LaTeX without formulas", LatexCleaner("drop").clean
    yield "XHTML", xhtml_text
    yield "decode_page", lambda text: decode_page(text.encode())
