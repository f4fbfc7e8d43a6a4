"""LaTeX to text: a table of what papers hold, and what must hold for all of them."""

# ruff: noqa: E501, RUF005  rows of tables

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.download.arxiv.latex import LatexCleaner

SOURCES = [
    ("", ""),
    ("plain text", "plain text"),
    (r"5\% of \$10 \& \#1 a\_b \{x\}", "5% of $10 & #1 a_b {x}"),
    ("a % comment\nb", "a b"),
    ("a%\n  b 50\\% c", "ab 50% c"),
    ("one\ntwo\n\nthree", "one two\n\nthree"),
    (r"\'etude, G\"odel, na\"{\i}ve, \c{c}a, \v{S}koda, \H{o}, \~n, \aa ngstr\"om, \o re, \ss", "étude, Gödel, naïve, ça, Škoda, ő, ñ, ångström, øre, ß"),
    (r"M\"{u}ller, \^o, {\'a}, \.z, \=a", "Müller, ô, á, ż, ā"),
    ("``quoted'' and --- dash -- range -", "“quoted” and — dash – range -"),
    (r"a~b\,c\ d\\e", "a b c d\ne"),
    (r"\textbf{bold} {\em it} \emph{x \textit{y}}", "bold it x y"),
    (r"\section{One}Text\subsection*{Two}More", "One\n\nText\n\nTwo\n\nMore"),
    (r"\section[short]{Long \label{s}}x", "Long\n\nx"),
    (r"known~\cite{a,b}. See (\citep[p.~3]{c}; \ref{d}), too", "known. See, too"),
    (r"Text\footnote{A note.} goes", "Text (A note.) goes"),
    (r"\href{http://x}{words}, \url{http://y/z}", "words, http://y/z"),
    (r"\begin{itemize}\item one \item[two] three\end{itemize}", "- one\n- two three"),
    (r"in $x^2$ and \(y\) and $\alpha_{1}$", "in $x^2$ and $y$ and $\\alpha_{1}$"),
    (r"\begin{equation}\label{e} a = b \end{equation} so", "$$ a = b $$\nso"),
    (r"\[ a \] $$ b $$", "$$ a $$\n\n$$ b $$"),
    (r"\begin{align*} a &= b \\ c &= d \end{align*}", "$$ a &= b \\\\ c &= d $$"),
    (r"\begin{figure}[t]\centering\includegraphics[width=2cm]{f.png}\caption{A \emph{cap}.}\label{f}\end{figure}x", "A cap.\n\nx"),
    (r"\begin{table}\caption{T}\begin{tabular}{ll}a & b\\\end{tabular}\end{table}x", "T\n\nx"),
    (r"a\begin{tikzpicture}\draw (0,0);\end{tikzpicture}b", "ab"),
    (r"Text.\begin{thebibliography}{9}\bibitem{a} Someone.\end{thebibliography}", "Text."),
    (r"Text.\bibliographystyle{plain}\bibliography{refs}", "Text."),
    (r"\begin{theorem}[Gauss] All. \end{theorem}\begin{proof}So.\end{proof}", "Theorem. All.\n\nProof. So."),
    (r"\begin{verbatim}a_b {%} \x\end{verbatim}", "a_b {%} \\x"),
    (r"\verb|a_b{| x", "a_b{ x"),
    (r"a\iffalse hidden \fi b", "a b"),
    (r"\newcommand{\kw}{keyword}the \kw\ is \kw.", "the keyword is keyword."),
    (r"\newcommand\pair[2]{(#1, #2)}\pair{a}{b} \pair cd", "(a, b) (c, d)"),
    (r"\newcommand{\opt}[2][red]{#2 in #1}\opt{car}, \opt[blue]{sky}", "car in red, sky in blue"),
    (r"\def\sq#1{#1 squared}\sq{x} \def\E{\ensuremath{E}}", "x squared"),
    (r"\newcommand{\in}{x}\newcommand{\out}[1]{<\in #1>}\out{\out{y}}", "<x<xy>>"),
    (r"\let\old\textbf\old{x} \renewcommand{\emph}[1]{*#1*}\emph{y}", "x *y*"),
    (r"\newcommand{\R}[1]{\mathbb{R}^{#1}}in $\R{3}$", "in $\\mathbb{R}^{3}$"),
    (r"\DeclareMathOperator{\tr}{tr}$\tr A$", "$\\operatorname{tr}A$"),
    (r"\newcommand{\x}{\alpha}$\x b$", "$\\alpha b$"),
    (r"\newcommand{\wrap}{\inner}\newcommand{\inner}[1]{[#1]}\wrap{z}", "[z]"),
    (r"\def\loop{a\loop}x", "x"),
    (r"\unknown[opt]{kept} \unknown text", "kept text"),
    (r"\vspace{3mm}\setlength{\parindent}{0pt}\textcolor{red}{words}", "words"),
    (r"\documentclass{article}\usepackage{x}\title{On \emph{it}}\author{Me}\begin{document}\maketitle Hi.\end{document} rest", "On it\n\nHi."),
    ("unclosed { and $ and \\textbf{x", "unclosed and and x"),
    (r"trailing \ ".rstrip() + "\\", "trailing"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "text"), SOURCES, ids=[source[:30] for source, _ in SOURCES])
def test_sources(source: str, text: str) -> None:
    assert LatexCleaner().clean(source) == text


@pytest.mark.parametrize(
    ("math", "text"), [("keep", "let $x$ be\n$$ y $$\nso"), ("inline", "let $x$ be so"), ("drop", "let be so")]
)
def test_formulas_are_kept_or_not(math: str, text: str) -> None:
    assert LatexCleaner(math).clean(r"let $x$ be \begin{equation}y\end{equation} so") == text


def test_captions_can_be_left_out() -> None:
    assert LatexCleaner(captions=False).clean(r"a\begin{figure}\caption{c}\end{figure}b") == "ab"


def test_files_of_an_archive_are_put_together() -> None:
    files = {
        "paper.tex": "\\documentclass{a}\\usepackage{ours}\\input{defs}\\begin{document}One. \\input{parts/two}\\include{three}\\input{gone}\\end{document}",
        "defs.tex": "\\newcommand{\\me}{myself}",
        "ours.sty": "\\newcommand{\\us}[1]{us and #1}\n\\ProcessOptions",
        "parts/two.tex": "Two by \\me. \\input{paper}",
        "three.tex": "Three, \\us{them}.",
        "unused.tex": "Never seen.",
    }
    assert LatexCleaner().clean(files) == "One. Two by myself.\n\nThree, us and them."


@pytest.mark.parametrize(
    "source",
    [
        r"\def\a{\a\a}\a end", r"\def\a{\b\b}\def\b{\a\a}\a end", r"\def\a#1{\a{#1#1}}\a{x} end", r"\def\a{x\a}\a end",
        "".join(f"\\def\\m{chr(97 + n)}{{\\m{chr(98 + n)}\\m{chr(98 + n)}}}" for n in range(8)) + r"\ma end",
        "{" * 20_000 + "end", "\\section{" * 4_000 + "end", "$" * 20_001 + "end", "\\begin{equation}" * 5_000 + "end", "\\" * 20_001,
        "\\begin{figure}" * 5_000 + "end", "[" * 20_000 + "\\item" * 5_000, "\\x[" * 300, "%" * 20_000 + "\nend",
    ],
    ids=range(14),
)  # fmt: skip
def test_sources_that_would_not_end_do(source: str) -> None:
    assert len(LatexCleaner().clean(source)) < 20_000_000


TEX = st.lists(
    st.sampled_from(
        ["\\", "{", "}", "[", "]", "$", "$$", "%", "#1", "\n", " ", "a", "word ", "~", "&", "--", "``", "''", "\\section", "\\cite"]
        + ["\\begin", "\\end", "{equation}", "{figure}", "{itemize}", "\\item", "\\newcommand", "\\x", "\\y", "[1]", "\\def", "\\'", "e"]
        + ["\\footnote", "\\caption", "\\verb|", "\\let", "\\(", "\\)", "\\input{main}", "\\c", "\\i", "\\textbf", "\x01", "\x02", "0\x03"]
    ),
    max_size=50,
).map("".join)  # fmt: skip


@given(TEX)
@example("\\")
@example("\\verb")
@example("\\let\\x\\x\\x")
@example("\\newcommand{\\x}[1]{#2#1}\\x")
def test_no_source_fails(source: str) -> None:
    text = LatexCleaner().clean(source)
    assert text == text.strip()
    assert not re.search(r"[\x00-\x08]", text), text


@settings(max_examples=60)
@given(
    TEX.map(lambda source: re.sub(r"\$|\\[()]|\{equation\}|\\verb\||\\\\(?=[{}$%#&_])|\\(?=[{}\[\]$%#&_])", "", source))
)
def test_no_commands_or_brackets_are_left(source: str) -> None:
    text = LatexCleaner("drop").clean(source)
    if not re.search(r"\\[\[{}$%&_#]|\$", source):
        assert not re.search(r"\\[a-zA-Z]|[{}~]", text), text


def test_ends_that_are_missing_are_looked_for_once() -> None:
    """Each of these took minutes when every beginning looked for its end alone."""
    for begin in (r"\begin{equation} a ", r"\iffalse x ", "\\begin{verbatim} % x\n", r"\( a ", r"\usepackage[a "):
        assert LatexCleaner().clean("Begin. " + begin * 4_000).startswith("Begin.")
    assert LatexCleaner().clean(r"\iffalse gone \fi kept \iffalse open").startswith("kept")
    listing = "\\begin{verbatim}\n50% of it\n\\end{verbatim} and % no"
    assert LatexCleaner().clean(listing) == "50% of it\nand"
