"""Limits on pages, checked before a library parses them: no page is made that takes minutes.

The time of HTML libraries grows with the square of the depth of a tree: Resiliparse takes 8 s for 20,000 nested
elements. Browsers stop at a depth of 512, so a page beyond the limit is an attack or
damaged. The check is a linear scan, which is left out for most pages: the tags are counted first.
"""

from __future__ import annotations

from collections import Counter

from gristmill.core.errors import BadRecordError
from gristmill.io.formats.html_tags import END, START, read_tags

MAX_DEPTH = 2000
"""The default limit of open elements, one in another."""

MAX_DEPTH_TRAFILATURA = 500
"""trafilatura, in Python, is slower."""

_NOT_NESTED = frozenset(
    "area base br col embed hr img input link meta param source track wbr "  # noqa: SIM905
    "p li dt dd td th tr thead tbody tfoot option optgroup rp rt colgroup html head body".split()
)
"""Elements that are empty, or that end where the next one begins."""


class PageLimitError(BadRecordError):
    """A page is nested too deep to be parsed in reasonable time."""


def check_max_depth(name: str, max_depth: int) -> int:
    if max_depth < 1:
        raise ValueError(f"{name}: max_depth is {max_depth!r}, must be at least 1")
    return max_depth


def check_depth(html: str, max_depth: int) -> None:
    """Raise a PageLimitError if more than `max_depth` elements may be open at one place."""
    if html.count("<") - html.count("</") <= max_depth:
        return
    open_tags: Counter[str] = Counter()
    depth = 0
    for kind, name in read_tags(html):
        if kind == START and name not in _NOT_NESTED:
            open_tags[name] += 1
            depth += 1
            if depth > max_depth:
                raise PageLimitError(
                    f"the page has more than {max_depth:,} nested elements (max_depth), the last one <{name[:20]}>"
                )
        elif kind == END and open_tags[name] > 0:
            open_tags[name] -= 1
            depth -= 1
