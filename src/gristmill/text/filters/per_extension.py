"""PerExtensionFilter: rules for source files, by language and extension.

The rules are those that StarCoder's data was cleaned by: no very long lines, lines of a moderate mean length, and
enough letters and digits. Languages that hold data or prose, and those that are written in signs, have their own.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from gristmill.core.errors import InputError, did_you_mean
from gristmill.text.document_filter import DocumentFilter, within_bounds

BUNDLED_TABLE = "code_meta.csv"
"""What stands for the table that comes with Gristmill."""

_COLUMNS = ("language", "extension", "max_line_length", "max_mean_line_length", "min_alphanum", "min_alpha")


@dataclass(frozen=True)
class SourceFileRule:
    """What a file must keep to. None: anything."""

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
_SIGNS = SourceFileRule(min_alphanum=None)  # written in brackets and signs
_DATA = SourceFileRule(
    max_line_length=100_000, max_mean_line_length=None, min_alpha=0.25
)  # long lines, but not of numbers
_PROSE = SourceFileRule(max_line_length=100_000, max_mean_line_length=None, min_alpha=0.25)
_SHEET = SourceFileRule(max_line_length=100_000, max_mean_line_length=None)

_LANGUAGES: dict[str, tuple[str, SourceFileRule]] = {
    "ada": ("adb ads ada", _CODE), "agda": ("agda", _SIGNS), "alloy": ("als", _CODE), "antlr": ("g4", _CODE),
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
    "idris": ("idr", _SIGNS), "ini": ("ini cfg", _CODE), "isabelle": ("thy", _SIGNS), "java": ("java", _CODE),
    "java-server-pages": ("jsp", _CODE), "javascript": ("js jsx mjs cjs", _CODE),
    "json": ("json jsonl geojson", _DATA), "julia": ("jl", _CODE), "jupyter-notebook": ("ipynb", _DATA),
    "kotlin": ("kt kts", _CODE), "lean": ("lean", _SIGNS), "less": ("less", _CODE),
    "literate-agda": ("lagda", _SIGNS), "lua": ("lua", _CODE), "makefile": ("mk mak makefile", _CODE),
    "maple": ("mpl", _CODE), "markdown": ("md markdown", _PROSE), "mathematica": ("nb wl", _DATA),
    "matlab": ("m", _CODE), "nim": ("nim", _CODE), "nix": ("nix", _CODE), "objective-c": ("m mm h", _CODE),
    "ocaml": ("ml mli", _CODE), "pascal": ("pas pp dpr", _CODE), "perl": ("pl pm t", _CODE),
    "php": ("php phtml", _CODE), "powershell": ("ps1 psm1 psd1", _CODE), "prolog": ("pro prolog yap", _CODE),
    "protocol-buffer": ("proto", _CODE), "python": ("py pyi pyw", _CODE), "r": ("r rd rsx", _CODE),
    "racket": ("rkt", _CODE), "restructuredtext": ("rst rest", _PROSE), "rmarkdown": ("rmd", _PROSE),
    "ruby": ("rb rake gemspec", _CODE), "rust": ("rs", _CODE), "sas": ("sas", _CODE),
    "scala": ("scala sbt sc", _CODE), "scheme": ("scm ss sld", _CODE), "scss": ("scss sass", _CODE),
    "shell": ("sh bash zsh ksh", _CODE), "smalltalk": ("st", _CODE), "solidity": ("sol", _CODE),
    "sparql": ("sparql rq", _CODE), "sql": ("sql", _DATA), "stan": ("stan", _CODE),
    "standard-ml": ("sml sig fun", _CODE), "stata": ("do ado", _CODE), "svelte": ("svelte", _CODE),
    "swift": ("swift", _CODE), "systemverilog": ("sv svh", _CODE), "tcl": ("tcl tm", _CODE),
    "tcsh": ("tcsh csh", _CODE), "tex": ("tex sty cls bib", _PROSE), "text": ("txt", _PROSE),
    "thrift": ("thrift", _CODE), "toml": ("toml", _CODE), "typescript": ("ts tsx mts cts", _CODE),
    "verilog": ("v vh", _CODE), "vhdl": ("vhd vhdl", _CODE), "visual-basic": ("vb bas vbs", _CODE),
    "vue": ("vue", _CODE), "xml": ("xml xsd xsl xslt svg", _DATA), "xslt": ("xsl xslt", _DATA),
    "yacc": ("y yy", _CODE), "yaml": ("yaml yml", _DATA), "zig": ("zig", _CODE),
}  # fmt: skip

SOURCE_FILE_RULES = {
    (language, extension): rule for language, (names, rule) in _LANGUAGES.items() for extension in names.split()
}
"""The rule of each language and extension."""


class PerExtensionFilter(DocumentFilter):
    """1 if a source file keeps to the rules of its language and extension, else 0; keeps 1.

    The rules are the longest line, the mean length of lines, and the shares of letters and digits, and of letters. They
    come from a table of Gristmill's, or from a CSV file of your own: `metadata_file`, with the columns language,
    extension, max_line_length, max_mean_line_length, min_alphanum and min_alpha; what is left empty is not asked for.
    An empty file has no letters: 0 where they are asked for.
    """

    score_type = pa.int64()

    def __init__(self, lang: str, extension: str, metadata_file: str = BUNDLED_TABLE) -> None:
        self.lang, self.extension, self.metadata_file = lang, extension, metadata_file
        if metadata_file == BUNDLED_TABLE:
            self._found(SOURCE_FILE_RULES)

    def check(self) -> None:
        self._rule  # noqa: B018  (reads the table)

    @cached_property
    def _rule(self) -> SourceFileRule:
        return self._found(
            SOURCE_FILE_RULES if self.metadata_file == BUNDLED_TABLE else read_source_file_rules(self.metadata_file)
        )

    def _found(self, rules: dict[tuple[str, str], SourceFileRule]) -> SourceFileRule:
        key = self.lang.lower(), self.extension.lower().lstrip(".")
        if key in rules:
            return rules[key]
        languages = list(dict.fromkeys(language for language, _ in rules))
        if key[0] not in languages:
            hint = did_you_mean(key[0], languages)
            raise ValueError(f"PerExtensionFilter: no language {self.lang!r}.{hint} There are: {', '.join(languages)}")
        known = ", ".join(extension for language, extension in rules if language == key[0])
        raise ValueError(f"PerExtensionFilter: {self.lang} has no extension {self.extension!r}. It has: {known}")

    def score_document(self, text: str) -> int:
        return int(self._rule.allows(text))

    def keep_document(self, score: float) -> bool:
        return score == 1

    def keep_batch(self, scores: pa.Array) -> pa.BooleanArray:
        return within_bounds(scores, 1, 1)


def read_source_file_rules(path: str) -> dict[tuple[str, str], SourceFileRule]:
    """The rules of a CSV file."""
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
        raise InputError(f"PerExtensionFilter: {path}: a limit is no number: {error}") from error


def _rule(row: dict[str, Any]) -> SourceFileRule:
    limits = {name: float(row[name]) if row.get(name) else None for name in _COLUMNS[2:]}
    return SourceFileRule(**limits)  # type: ignore[arg-type]
