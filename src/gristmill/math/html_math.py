"""Formulas of web pages as LaTeX, before the text of a page is extracted.

    <script type="math/tex">            what MathJax reads
    <annotation encoding="...tex">      in MathML, as KaTeX, MathJax, Wikipedia and arXiv write it
    alttext of <math>                   LaTeXML
    <math> without any of these         converted (`mathml.py`)
    alt of <img class="... tex ...">    Wikipedia, WordPress and forums

Each becomes `$...$`, or `$$...$$` if it is displayed. What is shown beside it, the same formula as HTML or as a
picture, is removed, so that no formula is there twice. LaTeX that is written in the text stays as it is.

What is given up: formulas that are pictures without a text, and those that only a script draws.
"""

from __future__ import annotations

import re
from typing import Any

from gristmill.math.mathml import mathml_to_latex

_TEX_SCRIPT = re.compile(r"math/(?:tex|asciimath|latex)", re.IGNORECASE)
_TEX_CLASS = re.compile(r"\b(?:tex|latex|math|mwe-math-fallback-image\w*|ee_img|latexImg)\b", re.IGNORECASE)
_RENDERED = re.compile(r"\b(?:katex-html|MathJax(?:_Preview|_Display|_SVG|_CHTML)?|mjx-chtml|MJX_Assistive_MathML)\b")
_DISPLAY_STYLE = re.compile(r"^\{\\displaystyle\s*(.*)\}$", re.DOTALL)
_LATEX = re.compile(r"\\[a-zA-Z]+|[_^]\{|^\$.*\$$")


def with_latex(html: str) -> str:
    """The page with its formulas as LaTeX. Raises a ValueError for a page that cannot be parsed."""
    lowered = html.lower()
    if not any(mark in lowered for mark in ("<math", "math/tex", "<img", "data-mathml", "math/asciimath")):
        return html
    tree = _parsed(html)
    for element in list(tree.iter("script")):
        if _TEX_SCRIPT.match(element.get("type") or ""):
            _replace(element, element.text or "", "display" in (element.get("type") or ""))
    for element in list(tree.iter("math")):
        if _is_in(element, tree):
            _replace(_outermost(element), _latex_of(element), element.get("display") == "block")
    for element in list(tree.iter()):
        if isinstance(element.tag, str) and element.tag != "math" and _RENDERED.search(element.get("class") or ""):
            _replace_rendered(element)
    for element in list(tree.iter("img")):
        if (latex := _latex_of_picture(element)) is not None:
            _replace(element, latex, False)
    return _serialised(tree)


def _parsed(html: str) -> Any:
    from lxml.etree import ParserError
    from lxml.html import HTMLParser, fromstring

    parser = HTMLParser(huge_tree=True)  # otherwise what is nested more than 256 deep is lost
    try:
        return fromstring(html, parser=parser)
    except ParserError as error:
        raise ValueError(f"a page that cannot be parsed: {error}") from error
    except ValueError:  # XHTML that declares its encoding
        return fromstring(html.encode("utf-8", "replace"), parser=parser)


def _serialised(tree: Any) -> str:
    from lxml.html import tostring

    return str(tostring(tree, encoding="unicode"))


def _is_in(element: Any, tree: Any) -> bool:
    """Whether an element was not removed with another."""
    return element.getroottree().getroot() is tree.getroottree().getroot()


def _outermost(element: Any) -> Any:
    """The element that stands for the formula as a whole: there may be a picture of it, or HTML, beside it."""
    found = element
    for parent in element.iterancestors("span", "mjx-container", "div"):
        words = (parent.get("class") or "").split()
        if parent.tag == "mjx-container" or {"katex", "mwe-math-element", "katex-display"} & set(words):
            found = parent
    return found


def _latex_of(element: Any) -> str:
    for note in element.iter("annotation"):
        if "tex" in (note.get("encoding") or "").lower() and (note.text or "").strip():
            return str(note.text)
    return element.get("alttext") or mathml_to_latex(element)


def _latex_of_picture(element: Any) -> str | None:
    """The formula in the alternative text of a picture; None if it is no formula."""
    alt = (element.get("alt") or "").strip()
    if not alt or not _LATEX.search(alt):
        return None
    known = _TEX_CLASS.search(element.get("class") or "") or _TEX_CLASS.search(element.get("src") or "")
    return alt.strip("$") if known or alt.startswith(("$", "\\", "{\\")) else None


def _replace_rendered(element: Any) -> None:
    """Remove what a script has drawn; a formula that it keeps beside it takes its place."""
    given = element.get("data-mathml")
    latex = mathml_to_latex(_parsed(given)) if given else ""
    _replace(element, latex, "MathJax_Display" in (element.get("class") or ""))


def _replace(element: Any, latex: str, display: bool) -> None:
    """Put a formula in the place of an element."""
    parent = element.getparent()
    if parent is None:
        return
    text = formula(latex, display)
    tail = text + (element.tail or "")
    before = element.getprevious()
    if before is not None:
        before.tail = (before.tail or "") + tail
    else:
        parent.text = (parent.text or "") + tail
    parent.remove(element)


def formula(latex: str, display: bool) -> str:
    """LaTeX in dollars; nothing for an empty formula."""
    tex = " ".join(latex.split())
    while tex.startswith("$") and tex.endswith("$") and len(tex) > 1:
        tex = tex[1:-1].strip()
    if plain := _DISPLAY_STYLE.match(tex):
        tex = plain[1].strip()
    if not tex:
        return ""
    return f" $${tex}$$ " if display else f"${tex}$"
