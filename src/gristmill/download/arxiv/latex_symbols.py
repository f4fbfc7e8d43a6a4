"""Tables of LaTeX commands and environments: the text they stand for, and arguments that are not text."""

# ruff: noqa: SIM905  lists of words read best as text

from __future__ import annotations

import unicodedata

_COMBINING = {
    "`": "\u0300", "'": "\u0301", "^": "\u0302", "~": "\u0303", "=": "\u0304", "u": "\u0306", ".": "\u0307",
    '"': "\u0308", "r": "\u030a", "H": "\u030b", "v": "\u030c", "d": "\u0323", "c": "\u0327", "k": "\u0328",
    "b": "\u0331", "t": "\u0361",
}  # fmt: skip
ACCENTS = frozenset(_COMBINING)
_DOTLESS = {"\\i": "i", "\\j": "j", "\\imath": "i", "\\jmath": "j", "ı": "i", "ȷ": "j"}

SYMBOLS = {
    "ss": "ß", "SS": "ẞ", "o": "ø", "O": "Ø", "l": "ł", "L": "Ł", "ae": "æ", "AE": "Æ", "oe": "œ", "OE": "Œ", "aa": "å",
    "AA": "Å", "i": "ı", "j": "ȷ", "dh": "ð", "DH": "Ð", "th": "þ", "TH": "Þ", "dj": "đ", "DJ": "Đ", "ng": "ŋ",
    "S": "§", "P": "¶", "dag": "†", "ddag": "‡", "copyright": "©", "pounds": "£", "euro": "€", "texteuro": "€",
    "ldots": "...", "dots": "...", "textellipsis": "...", "textendash": "–", "textemdash": "—", "textbackslash": "\\",
    "textasciitilde": "~", "textasciicircum": "^", "textunderscore": "_", "textbar": "|", "textless": "<",
    "textgreater": ">", "textbraceleft": "{", "textbraceright": "}", "textdegree": "°", "degree": "°", "texttrademark":
    "™", "textregistered": "®", "textquoteleft": "‘", "textquoteright": "’", "textquotedblleft": "“",
    "textquotedblright": "”", "textquotedbl": '"', "textmu": "µ", "textohm": "Ω", "textbullet": "•",
    "textperiodcentered": "·", "slash": "/", "guillemotleft": "«", "guillemotright": "»", "og": "« ", "fg": " »",
    "quad": " ", "qquad": " ", "enspace": " ", "thinspace": " ", "space": " ", "nobreakspace": " ", "newline": "\n",
    "linebreak": "\n", "par": "\n\n", "TeX": "TeX", "LaTeX": "LaTeX", "LaTeXe": "LaTeX2e", "BibTeX": "BibTeX", "lq":
    "‘", "rq": "’", "hfill": " ", "today": "", "textmd": "", "ie": "i.e.", "eg": "e.g.",
}  # fmt: skip
"""Commands without arguments that stand for text."""

ARGUMENTS_DROPPED = {
    **dict.fromkeys(
        """
        label ref eqref pageref autoref cref Cref vref nameref cite citep citet citealp citealt citeauthor citeyear
        citeyearpar nocite parencite textcite autocite footcite supercite onlinecite citenum citen bibliography
        bibliographystyle printbibliography addbibresource includegraphics epsfig psfig epsfbox psfrag input include
        vspace hspace vskip usepackage RequirePackage documentclass documentstyle pagestyle thispagestyle pagenumbering
        graphicspath hypersetup author authors affiliation affil address email institute institution date thanks
        orcid keywords pacs thispage setcounter addtocounter newcounter newlength index glossary
        markboth markright rule bibitem color pagecolor newtheorem theoremstyle hyphenation phantom hphantom vphantom
        special write openout tag captionsetup geometry thanksref corref fntext cortext ead dedicatory received accepted
        preprint numberwithin allowdisplaybreaks newenvironment renewenvironment
        subjclass titlerunning authorrunning numberofauthors conferenceinfo CopyrightYear crdata terms
        """.split(),
        1,
    ),
    **dict.fromkeys(
        "setlength addtolength settowidth textcolor definecolor resizebox scalebox rotatebox newtheorem".split(), 1
    ),
    **dict.fromkeys("setlength addtolength addcontentsline setcounter addtocounter settowidth numberwithin".split(), 2),
    "addcontentsline": 3,
    "resizebox": 2,
    "definecolor": 3,
    "raisebox": 1,
    "parbox": 1,
    "href": 1,
    "hyperref": 0,
    "multicolumn": 2,
    "multirow": 2,
    "newtheorem": 2,
    "newenvironment": 3,
    "renewenvironment": 3,
    "ifthenelse": 1,
    "fontsize": 2,
    "selectlanguage": 1,
    "foreignlanguage": 1,
    "fontfamily": 1,
    "texorpdfstring": 0,
}
"""The number of arguments of a command, from the first on, that are not text. Later entries override earlier ones."""

GAP_COMMANDS = frozenset(
    name
    for name in ARGUMENTS_DROPPED
    if name.startswith(("cite", "ref", "eqref", "autoref", "cref", "Cref", "label", "footcite", "index", "pageref"))
    or name.endswith(("cite", "ref"))
)
"""Commands whose removal leaves a gap in a sentence, as in "see [3]"."""

SECTIONS = frozenset("part chapter section subsection subsubsection paragraph subparagraph".split())

FORMULAS = frozenset(
    """
    equation align eqnarray gather multline displaymath math flalign alignat eqalign subequations dmath IEEEeqnarray
    xalignat split
    """.split()
)
LITERAL = frozenset("verbatim lstlisting minted Verbatim alltt listing".split())
LEFT_OUT = frozenset(
    """
    thebibliography comment tikzpicture picture pspicture tabular tabularx tabulary longtable array keywords CCSXML
    filecontents pgfpicture references refsection NoHyper psfrags
    """.split()
)
FLOATS = frozenset(
    "figure table wrapfigure wraptable sidewaysfigure sidewaystable SCfigure subfigure algorithm float".split()
)
STATEMENTS = {
    "theorem": "Theorem", "thm": "Theorem", "lemma": "Lemma", "lem": "Lemma", "proposition": "Proposition",
    "prop": "Proposition", "corollary": "Corollary", "cor": "Corollary", "definition": "Definition", "defn":
    "Definition", "proof": "Proof", "remark": "Remark", "example": "Example", "conjecture": "Conjecture", "abstract":
    "Abstract",
}  # fmt: skip


def accented(accent: str, base: str) -> str:
    """The letter with its accent: `\\'e` is é. A base that cannot take the accent is returned unchanged."""
    letter = _DOTLESS.get(base.strip(), base.strip())
    if not letter or letter[0] == "\\":
        return letter and SYMBOLS.get(letter[1:].strip(), "")
    return unicodedata.normalize("NFC", letter[0] + _COMBINING[accent]) + letter[1:]
