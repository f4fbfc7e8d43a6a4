"""Finding comments in source code of many languages, by their marks and by what strings look like.

Gives up: grammars. Regular expressions of JavaScript, here-documents and nested comments are not known for what they
are, which matters for few files and by few characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

_DOUBLE, _SINGLE = r'"(?:\\.|[^"\\\n])*"', r"'(?:\\.|[^'\\\n])*'"
_BACKTICK, _RAW = r"`(?:\\.|[^`\\])*`", r"`[^`]*`"
_TRIPLE = r'"""(?:\\.|[^\\])*?"""' + r"|'''(?:\\.|[^\\])*?'''"


@dataclass(frozen=True)
class CommentSyntax:
    """What comments and strings of a language begin and end with. `line` marks are patterns."""

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
        """The text of all comments, without their marks. Raises ValueError when one does not end."""
        found = []
        for match in self.pattern.finditer(source):
            kind = match.lastgroup
            if kind and kind.startswith("open"):
                raise ValueError(f"a comment that begins at {match.start()} does not end")
            if kind:
                found.append(match[kind])
        return found


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
"""The languages that are known, by name."""

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
"""The same by MIME type."""
