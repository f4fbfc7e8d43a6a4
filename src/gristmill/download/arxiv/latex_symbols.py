"""What LaTeX commands stand for, and which of them take arguments that are no text."""

from __future__ import annotations

import unicodedata

from gristmill.download.word_sets import word_set

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
        word_set(
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
        """
        ),
        1,
    ),
    **dict.fromkeys(
        word_set("setlength addtolength settowidth textcolor definecolor resizebox scalebox rotatebox newtheorem"), 1
    ),
    **dict.fromkeys(
        word_set("setlength addtolength addcontentsline setcounter addtocounter settowidth numberwithin"), 2
    ),
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
"""Commands, and how many of their arguments are no text."""

GAP_COMMANDS = frozenset(
    name
    for name in ARGUMENTS_DROPPED
    if name.startswith(("cite", "ref", "eqref", "autoref", "cref", "Cref", "label", "footcite", "index", "pageref"))
    or name.endswith(("cite", "ref"))
)

SECTIONS = word_set("part chapter section subsection subsubsection paragraph subparagraph")

FORMULAS = word_set(
    """
    equation align eqnarray gather multline displaymath math flalign alignat eqalign subequations dmath IEEEeqnarray
    xalignat split
    """
)
LITERAL = word_set("verbatim lstlisting minted Verbatim alltt listing")
LEFT_OUT = word_set(
    """
    thebibliography comment tikzpicture picture pspicture tabular tabularx tabulary longtable array keywords CCSXML
    filecontents pgfpicture references refsection NoHyper psfrags
    """
)
FLOATS = word_set("figure table wrapfigure wraptable sidewaysfigure sidewaystable SCfigure subfigure algorithm float")
STATEMENTS = {
    "theorem": "Theorem", "thm": "Theorem", "lemma": "Lemma", "lem": "Lemma", "proposition": "Proposition",
    "prop": "Proposition", "corollary": "Corollary", "cor": "Corollary", "definition": "Definition", "defn":
    "Definition", "proof": "Proof", "remark": "Remark", "example": "Example", "conjecture": "Conjecture", "abstract":
    "Abstract",
}  # fmt: skip


def accented(accent: str, base: str) -> str:
    """`\\'e` is é. What cannot have the accent is left as it is."""
    letter = _DOTLESS.get(base.strip(), base.strip())
    if not letter or letter[0] == "\\":
        return letter and SYMBOLS.get(letter[1:].strip(), "")
    return unicodedata.normalize("NFC", letter[0] + _COMBINING[accent]) + letter[1:]
