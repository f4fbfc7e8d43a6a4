"""Filters for source code."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.errors import did_you_mean
from gristmill.io.formats.html_tags import TEXT, read_tags
from gristmill.text.document_filter import (
    DocumentFilter,
    as_array,
    check_bounds,
    check_count,
    check_number,
    check_ratio,
    within_bounds,
)
from gristmill.text.filters.comment_syntax import COMMENT_SYNTAX, LANGUAGE_OF_MIME_TYPE
from gristmill.text.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    import os

    from gristmill.text.document_filter import Texts

UNPARSED_SCORE = 9999.0
"""The score of code whose comments cannot be told."""


class _CommentFilter(DocumentFilter):
    score_type = pa.float64()
    min_comment_to_code_ratio: float
    max_comment_to_code_ratio: float

    def _set_bounds(self, low: float, high: float) -> None:
        check_bounds(self.name, "comment_to_code_ratio", low, high)
        self.min_comment_to_code_ratio, self.max_comment_to_code_ratio = low, high

    def keep_document(self, score: float) -> bool:
        return self.min_comment_to_code_ratio <= score <= self.max_comment_to_code_ratio

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within_bounds(scores, self.min_comment_to_code_ratio, self.max_comment_to_code_ratio)


class PythonCommentToCodeFilter(_CommentFilter):
    """The characters of docstrings and comments in Python code, per character of code.

    Docstrings count without their quotes and indentation, comments with their #. Code that Python cannot parse has 0.0,
    and so has an empty file.
    """

    def __init__(self, min_comment_to_code_ratio: float = 0.01, max_comment_to_code_ratio: float = 0.85) -> None:
        self._set_bounds(min_comment_to_code_ratio, max_comment_to_code_ratio)

    def score_document(self, text: str) -> float:
        if '"' not in text and "'" not in text and "#" not in text:
            return 0.0
        try:
            return _python_comments(text) / len(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
            return 0.0


def _python_comments(source: str) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the code's own faults are not ours
        tree = ast.parse(source)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
    comments = 0
    if "#" in source:
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = sum(len(token.string) for token in tokens if token.type == tokenize.COMMENT)
    return comments + sum(map(len, docstrings))


class GeneralCommentToCodeFilter(_CommentFilter):
    """The characters of comments, without their marks, per character of code.

    `language` is a MIME type, such as "text/x-java", or a name, such as "java". Code with a comment that does not end
    has 9999, and an empty file 0.0.
    """

    def __init__(
        self, language: str, min_comment_to_code_ratio: float = 0.01, max_comment_to_code_ratio: float = 0.85
    ) -> None:
        if language not in LANGUAGE_OF_MIME_TYPE and language not in COMMENT_SYNTAX:
            hint = did_you_mean(language, [*COMMENT_SYNTAX, *LANGUAGE_OF_MIME_TYPE])
            raise ValueError(
                f"GeneralCommentToCodeFilter: the comments of {language!r} are not known.{hint} "
                f"There are: {', '.join(COMMENT_SYNTAX)}"
            )
        self.language = language
        self._set_bounds(min_comment_to_code_ratio, max_comment_to_code_ratio)

    def score_document(self, text: str) -> float:
        if not text:
            return 0.0
        try:
            comments = COMMENT_SYNTAX[LANGUAGE_OF_MIME_TYPE.get(self.language, self.language)].comments(text)
        except ValueError:
            return UNPARSED_SCORE
        return sum(map(len, comments)) / len(text)


class NumberOfLinesOfCodeFilter(DocumentFilter):
    """The number of lines: one more than there are line feeds, so an empty file has 1."""

    score_type = pa.int64()

    def __init__(self, min_lines: int = 10, max_lines: int = 20000) -> None:
        check_bounds("NumberOfLinesOfCodeFilter", "lines", min_lines, max_lines)
        self.min_lines, self.max_lines = min_lines, max_lines

    def score_document(self, text: str) -> int:
        return text.count("\n") + 1

    def score_batch(self, texts: Texts) -> pa.Array:
        feeds = pc.count_substring(as_array(texts).fill_null(literal("", pa.string())), "\n").cast(pa.int64())
        return pc.add(feeds, literal(1, pa.int64()))

    def keep_document(self, score: float) -> bool:
        return self.min_lines <= score <= self.max_lines

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within_bounds(scores, self.min_lines, self.max_lines)


class TokenizerFertilityFilter(DocumentFilter):
    """Characters per token. A document without tokens has -1.

    `path_to_tokenizer` is a `.model` file of SentencePiece, a `tokenizer.json` of Hugging Face, or the name of a
    tiktoken encoding. Tokens that a tokenizer adds to every text are not counted.
    """

    score_type = pa.float64()

    def __init__(self, path_to_tokenizer: str | os.PathLike[str], min_char_to_token_ratio: float = 2.5) -> None:
        if not path_to_tokenizer:
            raise ValueError("TokenizerFertilityFilter: path_to_tokenizer is empty: give the file of a tokenizer")
        check_number("TokenizerFertilityFilter", "min_char_to_token_ratio", min_char_to_token_ratio)
        self.path_to_tokenizer, self.min_char_to_token_ratio = path_to_tokenizer, min_char_to_token_ratio

    def check(self) -> None:
        self._tokenizer.check()

    def setup(self) -> None:
        self._tokenizer.load()

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer(self.path_to_tokenizer, "TokenizerFertilityFilter", special_tokens=False)

    def score_document(self, text: str) -> float:
        [tokens] = self._tokenizer.encode([text])
        return len(text) / len(tokens) if tokens else -1.0

    def score_batch(self, texts: Texts) -> pa.Array:
        documents = [text or "" for text in texts.to_pylist()]
        pairs = zip(documents, self._tokenizer.encode(documents), strict=True)
        return make_array([len(text) / len(tokens) if tokens else -1.0 for text, tokens in pairs], pa.float64())

    def keep_document(self, score: float) -> bool:
        return score >= self.min_char_to_token_ratio

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within_bounds(scores, low=self.min_char_to_token_ratio)


class XMLHeaderFilter(DocumentFilter):
    """1 if `<?xml version=` is in the first `char_prefix_search_length` characters, else 0; keeps 0."""

    score_type = pa.int64()

    def __init__(self, char_prefix_search_length: int = 100) -> None:
        check_count("XMLHeaderFilter", "char_prefix_search_length", char_prefix_search_length, least=1)
        self.char_prefix_search_length = char_prefix_search_length

    def score_document(self, text: str) -> int:
        return int("<?xml version=" in text[: self.char_prefix_search_length])

    def score_batch(self, texts: Texts) -> pa.Array:
        start = pc.utf8_slice_codeunits(as_array(texts), 0, self.char_prefix_search_length)
        found = pc.match_substring(start, "<?xml version=")
        return found.fill_null(literal(False, pa.bool_())).cast(pa.int64())

    def keep_document(self, score: float) -> bool:
        return score != 1

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return pc.invert(within_bounds(scores, 1, 1))


class AlphaFilter(DocumentFilter):
    """The share of characters that are letters, of any script. An empty document has 0.0."""

    score_type = pa.float64()

    _LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

    def __init__(self, min_alpha_ratio: float = 0.25) -> None:
        check_ratio(self.name, "min_alpha_ratio", min_alpha_ratio)
        self.min_alpha_ratio = min_alpha_ratio

    def score_document(self, text: str) -> float:
        if not text:
            return 0.0
        if text.isascii():
            return 1 - len(text.encode().translate(None, self._LETTERS)) / len(text)
        return sum(map(str.isalpha, text)) / len(text)

    def keep_document(self, score: float) -> bool:
        return score >= self.min_alpha_ratio

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within_bounds(scores, low=self.min_alpha_ratio)


class HTMLBoilerplateFilter(DocumentFilter):
    """The share of an HTML file that is text, outside of scripts, styles and comments, white space included.

    It is 0.0 when the text has fewer than `min_lang_content_num_chars` characters, and for an empty file.
    """

    score_type = pa.float64()

    def __init__(self, min_lang_content_ratio: float = 0.2, min_lang_content_num_chars: int = 100) -> None:
        check_ratio(self.name, "min_lang_content_ratio", min_lang_content_ratio)
        check_count("HTMLBoilerplateFilter", "min_lang_content_num_chars", min_lang_content_num_chars)
        self.min_lang_content_ratio = min_lang_content_ratio
        self.min_lang_content_num_chars = min_lang_content_num_chars

    def score_document(self, text: str) -> float:
        seen = sum(len(piece) for kind, piece in read_tags(text) if kind == TEXT)
        return seen / len(text) if text and seen >= self.min_lang_content_num_chars else 0.0

    def keep_document(self, score: float) -> bool:
        return score >= self.min_lang_content_ratio

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within_bounds(scores, low=self.min_lang_content_ratio)
