"""Filters for source code: comments, lines, tokens, markup, and rules per language and file extension.

Comments are found by their delimiters and by the form of string literals, not by a grammar. Regular expression literals
in JavaScript, here-documents and nested comments can therefore be misread, which affects few files by few characters.
The rules of `PerExtensionFilter` are those by which the data of StarCoder was cleaned.
"""

from __future__ import annotations

import ast
import csv
import io
import re
import tokenize
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.arrow.array_building import literal, make_array
from gristmill.core.arrow.lazy_compute import pc
from gristmill.core.errors import InputError, did_you_mean
from gristmill.io.formats.html_tags import END, START, TEXT, read_tags
from gristmill.samples.argument_checks import check_bounds, check_count, check_number, check_ratio
from gristmill.text.document_filter import BoundedFilter, DocumentFilter, within_bounds
from gristmill.text.text_columns import as_array
from gristmill.text.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    import os

    from gristmill.text.text_columns import Texts

UNPARSED_SCORE = 9999.0
"""The score of code with a comment that does not end."""


_DOUBLE, _SINGLE = r'"(?:\\.|[^"\\\n])*"', r"'(?:\\.|[^'\\\n])*'"
_BACKTICK, _RAW = r"`(?:\\.|[^`\\])*`", r"`[^`]*`"
_TRIPLE = r'"""(?:\\.|[^\\])*?"""' + r"|'''(?:\\.|[^\\])*?'''"


@dataclass(frozen=True)
class CommentSyntax:
    """The delimiters of comments and strings of a language. `line` and `strings` are regular expressions."""

    line: tuple[str, ...] = ()
    block: tuple[tuple[str, str], ...] = ()
    strings: tuple[str, ...] = (_DOUBLE, _SINGLE)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        blocks = [f"{re.escape(start)}(?P<block{n}>.*?){re.escape(end)}" for n, (start, end) in enumerate(self.block)]
        opened = [f"(?P<open{n}>{re.escape(start)})" for n, (start, _) in enumerate(self.block)]
        lines = [f"(?:{mark})(?P<line{n}>[^\n]*)" for n, mark in enumerate(self.line)]
        return re.compile("|".join([*blocks, *opened, *lines, *self.strings]), re.DOTALL)

    def comments(self, source: str) -> list[str]:
        """The text of all comments, without their delimiters. Raises ValueError when one does not end."""
        comments = []
        for match in self.pattern.finditer(source):
            group = match.lastgroup  # none for a string literal, in which comment delimiters mean nothing
            if group and group.startswith("open"):
                raise ValueError(f"a comment that begins at {match.start()} does not end")
            if group:
                comments.append(match[group])
        return comments


_C = CommentSyntax((r"//",), (("/*", "*/"),))
_SCRIPT = CommentSyntax((r"//",), (("/*", "*/"),), (_DOUBLE, _SINGLE, _BACKTICK))
_HASH = CommentSyntax((r"#",))
_MARKUP = CommentSyntax((), (("<!--", "-->"),), ())

COMMENT_SYNTAX = {
    "c": _C,
    "c#": _C,
    "c++": _C,
    "css": CommentSyntax((), (("/*", "*/"),)),
    "dart": _C,
    "go": CommentSyntax((r"//",), (("/*", "*/"),), (_DOUBLE, r"'(?:\\.|[^'\\\n])+'", _RAW)),
    "haskell": CommentSyntax((r"--(?![!#$%&*+./<=>?@\\^|~:])",), (("{-", "-}"),), (_DOUBLE,)),
    "html": _MARKUP,
    "java": _C,
    "javascript": _SCRIPT,
    "kotlin": CommentSyntax((r"//",), (("/*", "*/"),), (_TRIPLE, _DOUBLE, _SINGLE)),
    "lua": CommentSyntax((r"--(?!\[\[)",), (("--[[", "]]"),)),
    "perl": CommentSyntax((r"(?<![$\w])#",)),
    "php": CommentSyntax((r"//", r"#(?!\[)"), (("/*", "*/"),)),
    "python": CommentSyntax((r"#",), (), (_TRIPLE, _DOUBLE, _SINGLE)),
    "r": _HASH,
    "ruby": CommentSyntax((r"#(?!\{)",), (("\n=begin", "\n=end"),)),
    "rust": CommentSyntax((r"//",), (("/*", "*/"),), (_DOUBLE, r"'(?:\\.|[^'\\\n])'")),
    "scala": CommentSyntax((r"//",), (("/*", "*/"),), (_TRIPLE, _DOUBLE)),
    "shell": CommentSyntax((r"(?:(?<=\s)|(?<![\s\S]))#",)),
    "sql": CommentSyntax((r"--",), (("/*", "*/"),)),
    "swift": CommentSyntax((r"//",), (("/*", "*/"),), (_TRIPLE, _DOUBLE)),
    "toml": CommentSyntax((r"#",), (), (_TRIPLE, _DOUBLE, _SINGLE)),
    "typescript": _SCRIPT,
    "xml": _MARKUP,
    "yaml": CommentSyntax((r"(?:(?<=\s)|(?<![\s\S]))#",)),
}
"""By the name of the language."""

LANGUAGE_OF_MIME_TYPE = {
    "application/javascript": "javascript",
    "application/x-httpd-php": "php",
    "application/xml": "xml",
    "text/css": "css",
    "text/html": "html",
    "text/javascript": "javascript",
    "text/rust": "rust",
    "text/typescript": "typescript",
    "text/x-c": "c",
    "text/x-c++": "c++",
    "text/x-csharp": "c#",
    "text/x-go": "go",
    "text/x-haskell": "haskell",
    "text/x-java": "java",
    "text/x-java-source": "java",
    "text/x-javascript": "javascript",
    "text/x-kotlin": "kotlin",
    "text/x-lua": "lua",
    "text/x-perl": "perl",
    "text/x-php": "php",
    "text/x-python": "python",
    "text/x-r": "r",
    "text/x-ruby": "ruby",
    "text/x-rust": "rust",
    "text/x-scala": "scala",
    "text/x-shellscript": "shell",
    "text/x-sql": "sql",
    "text/x-swift": "swift",
    "text/x-toml": "toml",
    "text/x-yaml": "yaml",
    "text/xml": "xml",
}
"""The name of the language in `COMMENT_SYNTAX`, by MIME type."""


class _CommentFilter(BoundedFilter):
    """Base of the filters of the comment-to-code ratio."""

    score_type = pa.float64()
    min_comment_to_code_ratio: float
    max_comment_to_code_ratio: float

    def _set_bounds(self, low: float, high: float) -> None:
        check_bounds(self.name, "comment_to_code_ratio", low, high)
        self.min_comment_to_code_ratio, self.max_comment_to_code_ratio = low, high

    def bounds(self) -> tuple[float, float]:
        return self.min_comment_to_code_ratio, self.max_comment_to_code_ratio


class PythonCommentToCodeFilter(_CommentFilter):
    """The characters of docstrings and comments in Python code, per character of code.

    Docstrings count without their quotes and indentation, with one character between two; comments count with their #.
    Code that Python cannot parse has 0.0, and so has an empty file.
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
        warnings.simplefilter("ignore")  # SyntaxWarnings about the code that is scored
        tree = ast.parse(source)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
    comments = 0
    if "#" in source:
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = sum(len(token.string) for token in tokens if token.type == tokenize.COMMENT)
    return comments + len("\n".join(filter(None, docstrings)))


class GeneralCommentToCodeFilter(_CommentFilter):
    """The characters of comments, without their delimiters and with one between two, per character of code.

    `language` is a MIME type, such as "text/x-java", or a name, such as "java". Code with a comment that does not end
    has 9999, and an empty file 0.0.
    """

    def __init__(
        self, language: str, min_comment_to_code_ratio: float = 0.01, max_comment_to_code_ratio: float = 0.85
    ) -> None:
        if language not in LANGUAGE_OF_MIME_TYPE and language not in COMMENT_SYNTAX:
            hint = did_you_mean(language, [*COMMENT_SYNTAX, *LANGUAGE_OF_MIME_TYPE])
            raise ValueError(
                f"GeneralCommentToCodeFilter: the comment syntax of {language!r} is not known.{hint} "
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
        return len(" ".join(comments)) / len(text)


class NumberOfLinesOfCodeFilter(BoundedFilter):
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

    def bounds(self) -> tuple[float, float]:
        return self.min_lines, self.max_lines


class TokenizerFertilityFilter(BoundedFilter):
    """Characters per token. A document without tokens has -1.

    `path_to_tokenizer` is a `.model` file of SentencePiece, a `tokenizer.json` of Hugging Face, or the name of a
    tiktoken encoding. Tokens that a tokenizer adds to every text are not counted.
    """

    score_type = pa.float64()

    def __init__(self, path_to_tokenizer: str | os.PathLike[str], min_char_to_token_ratio: float = 2.5) -> None:
        if not path_to_tokenizer:
            raise ValueError("TokenizerFertilityFilter: path_to_tokenizer is empty: give a file or a tiktoken encoding")
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

    def bounds(self) -> tuple[float, None]:
        return self.min_char_to_token_ratio, None


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


class AlphaFilter(BoundedFilter):
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

    def bounds(self) -> tuple[float, None]:
        return self.min_alpha_ratio, None


class HTMLBoilerplateFilter(BoundedFilter):
    """The share of an HTML file that is text, outside of scripts, styles, templates, ruby annotations and comments.

    White space counts, but what stands between two tags without other text is one character, however long: it is the
    indentation of the markup. The score is 0.0 when the text has fewer than `min_lang_content_num_chars` characters,
    and for an empty file.
    """

    score_type = pa.float64()

    def __init__(self, min_lang_content_ratio: float = 0.2, min_lang_content_num_chars: int = 100) -> None:
        check_ratio(self.name, "min_lang_content_ratio", min_lang_content_ratio)
        check_count("HTMLBoilerplateFilter", "min_lang_content_num_chars", min_lang_content_num_chars)
        self.min_lang_content_ratio = min_lang_content_ratio
        self.min_lang_content_num_chars = min_lang_content_num_chars

    def score_document(self, text: str) -> float:
        seen = _visible_characters(text)
        return seen / len(text) if text and seen >= self.min_lang_content_num_chars else 0.0

    def bounds(self) -> tuple[float, None]:
        return self.min_lang_content_ratio, None


def _visible_characters(html: str) -> int:
    total = verbatim = 0
    hidden = ""  # the element that hides what it contains
    for kind, part in read_tags(html):
        if kind == TEXT:
            if not hidden:
                total += len(part) if verbatim or part.strip(_ASCII_SPACE) else 1
        elif hidden:
            if kind == END and part in (hidden, *_CLOSED_BY.get(hidden, ())):
                hidden = ""
        elif kind == START and part in _HIDING:
            hidden = part
        elif part in _VERBATIM:
            verbatim = max(0, verbatim + (kind == START) - (kind == END))
    return total


_ASCII_SPACE = " \n\t\f\r"
_VERBATIM = frozenset({"pre", "textarea"})
"""Elements in which white space is part of the text."""
_HIDING = frozenset({"template", "rt", "rp"})
_CLOSED_BY = {"rt": ("ruby",), "rp": ("ruby",)}
"""End tags of other elements that end these, whose own end tags may be left out."""


# -- rules per language and extension ------------------------------------------------------------------------

BUNDLED_TABLE = "code_meta.csv"
"""The value of `metadata_file` for the table that comes with Gristmill."""

_COLUMNS = ("language", "extension", "max_line_length", "max_mean_line_length", "min_alphanum", "min_alpha")


@dataclass(frozen=True)
class SourceFileRule:
    """The limits of a source file. None is no limit."""

    max_line_length: int | None = 1000
    max_mean_line_length: float | None = 100
    min_alphanum: float | None = 0.25
    min_alpha: float | None = None

    def allows(self, text: str) -> bool:
        lines = text.split("\n")
        if self.max_line_length is not None and max(map(len, lines)) > self.max_line_length:
            return False
        if self.max_mean_line_length is not None and sum(map(len, lines)) > self.max_mean_line_length * len(lines):
            return False
        size = len(text) or 1
        if self.min_alphanum is not None and sum(map(str.isalnum, text)) < self.min_alphanum * size:
            return False
        return self.min_alpha is None or sum(map(str.isalpha, text)) >= self.min_alpha * size


_CODE = SourceFileRule()
_SYMBOLS = SourceFileRule(min_alphanum=None)  # languages written mostly in symbols
# Data and prose may have long lines, but not of numbers only.
_DATA = SourceFileRule(max_line_length=100_000, max_mean_line_length=None, min_alpha=0.25)

_SHEET = SourceFileRule(max_line_length=100_000, max_mean_line_length=None)

_LANGUAGES: dict[str, tuple[str, SourceFileRule]] = {
    "ada": ("adb ads ada", _CODE), "agda": ("agda", _SYMBOLS), "alloy": ("als", _CODE), "antlr": ("g4", _CODE),
    "applescript": ("applescript scpt", _CODE), "assembly": ("asm s nasm", _CODE), "augeas": ("aug", _CODE),
    "awk": ("awk", _CODE), "batchfile": ("bat cmd", _CODE), "bluespec": ("bsv", _CODE), "c": ("c h", _CODE),
    "c#": ("cs csx", _CODE), "c++": ("cpp cc cxx hpp hh hxx h++ c++ inl ipp", _CODE),
    "clojure": ("clj cljs cljc edn", _CODE), "cmake": ("cmake", _CODE), "coffeescript": ("coffee cson", _CODE),
    "common-lisp": ("lisp cl lsp asd", _CODE), "css": ("css", _CODE), "csv": ("csv tsv", _SHEET),
    "cuda": ("cu cuh", _CODE), "d": ("d di", _CODE), "dart": ("dart", _CODE), "dockerfile": ("dockerfile", _CODE),
    "elixir": ("ex exs", _CODE), "elm": ("elm", _CODE), "emacs-lisp": ("el", _CODE), "erlang": ("erl hrl", _CODE),
    "f#": ("fs fsi fsx", _CODE), "fortran": ("f f77 f90 f95 f03 for", _CODE),
    "glsl": ("glsl vert frag geom comp", _CODE), "go": ("go", _CODE), "graphql": ("graphql gql", _CODE),
    "groovy": ("groovy gradle", _CODE), "haskell": ("hs hsc lhs", _CODE), "html": ("html htm xhtml", _DATA),
    "idris": ("idr", _SYMBOLS), "ini": ("ini cfg", _CODE), "isabelle": ("thy", _SYMBOLS), "java": ("java", _CODE),
    "java-server-pages": ("jsp", _CODE), "javascript": ("js jsx mjs cjs", _CODE),
    "json": ("json jsonl geojson", _DATA), "julia": ("jl", _CODE), "jupyter-notebook": ("ipynb", _DATA),
    "kotlin": ("kt kts", _CODE), "lean": ("lean", _SYMBOLS), "less": ("less", _CODE),
    "literate-agda": ("lagda", _SYMBOLS), "lua": ("lua", _CODE), "makefile": ("mk mak makefile", _CODE),
    "maple": ("mpl", _CODE), "markdown": ("md markdown", _DATA), "mathematica": ("nb wl", _DATA),
    "matlab": ("m", _CODE), "nim": ("nim", _CODE), "nix": ("nix", _CODE), "objective-c": ("m mm h", _CODE),
    "ocaml": ("ml mli", _CODE), "pascal": ("pas pp dpr", _CODE), "perl": ("pl pm t", _CODE),
    "php": ("php phtml", _CODE), "powershell": ("ps1 psm1 psd1", _CODE), "prolog": ("pro prolog yap", _CODE),
    "protocol-buffer": ("proto", _CODE), "python": ("py pyi pyw", _CODE), "r": ("r rd rsx", _CODE),
    "racket": ("rkt", _CODE), "restructuredtext": ("rst rest", _DATA), "rmarkdown": ("rmd", _DATA),
    "ruby": ("rb rake gemspec", _CODE), "rust": ("rs", _CODE), "sas": ("sas", _CODE),
    "scala": ("scala sbt sc", _CODE), "scheme": ("scm ss sld", _CODE), "scss": ("scss sass", _CODE),
    "shell": ("sh bash zsh ksh", _CODE), "smalltalk": ("st", _CODE), "solidity": ("sol", _CODE),
    "sparql": ("sparql rq", _CODE), "sql": ("sql", _DATA), "stan": ("stan", _CODE),
    "standard-ml": ("sml sig fun", _CODE), "stata": ("do ado", _CODE), "svelte": ("svelte", _CODE),
    "swift": ("swift", _CODE), "systemverilog": ("sv svh", _CODE), "tcl": ("tcl tm", _CODE),
    "tcsh": ("tcsh csh", _CODE), "tex": ("tex sty cls bib", _DATA), "text": ("txt", _DATA),
    "thrift": ("thrift", _CODE), "toml": ("toml", _CODE), "typescript": ("ts tsx mts cts", _CODE),
    "verilog": ("v vh", _CODE), "vhdl": ("vhd vhdl", _CODE), "visual-basic": ("vb bas vbs", _CODE),
    "vue": ("vue", _CODE), "xml": ("xml xsd xsl xslt svg", _DATA), "xslt": ("xsl xslt", _DATA),
    "yacc": ("y yy", _CODE), "yaml": ("yaml yml", _DATA), "zig": ("zig", _CODE),
}  # fmt: skip

SOURCE_FILE_RULES = {
    (language, extension): rule for language, (names, rule) in _LANGUAGES.items() for extension in names.split()
}
"""By language and extension."""


class PerExtensionFilter(BoundedFilter):
    """1 if a source file is within the limits of its language and extension, else 0; keeps 1.

    There are limits of the longest line, the mean line length, and the shares of alphanumeric characters and letters.
    They come with Gristmill, or from a CSV file of yours, `metadata_file`, with the columns language, extension,
    max_line_length, max_mean_line_length, min_alphanum and min_alpha. An empty cell is no limit. An empty file has no
    letters, and so 0 where a share is required.
    """

    score_type = pa.int64()

    def __init__(self, lang: str, extension: str, metadata_file: str = BUNDLED_TABLE) -> None:
        self.lang, self.extension, self.metadata_file = lang, extension, metadata_file
        if metadata_file == BUNDLED_TABLE:
            self._find_rule(SOURCE_FILE_RULES)

    def check(self) -> None:
        self._rule  # noqa: B018  (reads the table)

    @cached_property
    def _rule(self) -> SourceFileRule:
        return self._find_rule(
            SOURCE_FILE_RULES if self.metadata_file == BUNDLED_TABLE else read_source_file_rules(self.metadata_file)
        )

    def _find_rule(self, rules: dict[tuple[str, str], SourceFileRule]) -> SourceFileRule:
        key = self.lang.lower(), self.extension.lower().lstrip(".")
        if key in rules:
            return rules[key]
        languages = list(dict.fromkeys(language for language, _ in rules))
        if key[0] not in languages:
            hint = did_you_mean(key[0], languages)
            raise ValueError(
                f"PerExtensionFilter: the language {self.lang!r} is not known.{hint} There are: {', '.join(languages)}"
            )
        known = ", ".join(extension for language, extension in rules if language == key[0])
        raise ValueError(
            f"PerExtensionFilter: the extension {self.extension!r} is not known for {self.lang}. There are: {known}"
        )

    def score_document(self, text: str) -> int:
        return int(self._rule.allows(text))

    def bounds(self) -> tuple[float, float]:
        return 1, 1


def read_source_file_rules(path: str) -> dict[tuple[str, str], SourceFileRule]:
    """The limits in a CSV file, by language and extension."""
    try:
        with Path(path).expanduser().open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _COLUMNS[:2] if name not in (reader.fieldnames or [])]
            if missing:
                raise InputError(
                    f"PerExtensionFilter: {path} has no column {', '.join(missing)}. Its first line names the columns: "
                    f"{', '.join(_COLUMNS)}"
                )
            return {(row["language"].lower(), row["extension"].lower().lstrip(".")): _rule(row) for row in reader}
    except OSError as error:
        raise InputError(f"PerExtensionFilter: {path} cannot be read: {error}") from error
    except ValueError as error:
        raise InputError(f"PerExtensionFilter: {path}: a limit is not a number: {error}") from error


def _rule(row: dict[str, Any]) -> SourceFileRule:
    limits = {name: float(row[name]) if row.get(name) else None for name in _COLUMNS[2:]}
    return SourceFileRule(**limits)  # type: ignore[arg-type]
