"""MathML to LaTeX, for formulas that come without it.

What is given up: exact spacing, colours, and elements that are rare (`menclose`, `mmultiscripts` are their contents).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MAX_DEPTH = 200
"""Elements one in another. Deeper ones are text."""

_SYMBOLS = {
    "±": r"\pm", "×": r"\times", "÷": r"\div", "·": r"\cdot", "⋅": r"\cdot", "∑": r"\sum", "∏": r"\prod", "∫": r"\int",
    "∬": r"\iint", "∮": r"\oint", "∂": r"\partial", "∇": r"\nabla", "∞": r"\infty", "√": r"\sqrt", "≤": r"\le",
    "≥": r"\ge", "≠": r"\ne", "≈": r"\approx", "≡": r"\equiv", "∼": r"\sim", "∝": r"\propto", "∈": r"\in",
    "∉": r"\notin", "⊂": r"\subset", "⊆": r"\subseteq", "∪": r"\cup", "∩": r"\cap", "∅": r"\emptyset", "∀": r"\forall",
    "∃": r"\exists", "¬": r"\neg", "∧": r"\wedge", "∨": r"\vee", "→": r"\to", "←": r"\leftarrow", "⇒": r"\Rightarrow",
    "⇔": r"\Leftrightarrow", "↦": r"\mapsto", "…": r"\dots", "⋯": r"\cdots", "′": "'", "−": "-", "∗": "*",
    "∘": r"\circ",
    "⊕": r"\oplus", "⊗": r"\otimes", "⟨": r"\langle", "⟩": r"\rangle", "‖": r"\|", "ℝ": r"\mathbb{R}",
    "ℂ": r"\mathbb{C}", "ℕ": r"\mathbb{N}", "ℤ": r"\mathbb{Z}", "ℚ": r"\mathbb{Q}", "ℏ": r"\hbar", "ℓ": r"\ell",
    "\u2061": "", "\u2062": "", "\u2063": "", "\u00a0": " ", "{": r"\{", "}": r"\}", "%": r"\%", "#": r"\#", "&": r"\&",
}  # fmt: skip
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho _ sigma tau upsilon phi chi psi omega".split()  # noqa: E501, SIM905
_SYMBOLS |= {chr(0x3B1 + at): f"\\{name}" for at, name in enumerate(_GREEK) if name not in ("_", "omicron")}
_CAPITALS = ("Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega")
_SYMBOLS |= {chr(0x391 + _GREEK.index(name.lower())): f"\\{name}" for name in _CAPITALS}
_ACCENTS = {
    "¯": "overline", "‾": "overline", "^": "hat", "ˆ": "hat", "~": "tilde", "˜": "tilde", "→": "vec", "⃗": "vec",
    "˙": "dot", ".": "dot", "¨": "ddot", "⏞": "overbrace",
}  # fmt: skip
_ACCENTS |= {_SYMBOLS[sign]: accent for sign, accent in _ACCENTS.items() if sign in _SYMBOLS}
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc sinh cosh tanh log ln exp lim max min sup inf det dim ker gcd arg arcsin arccos arctan".split()  # noqa: E501, SIM905
)
_LIMITS = frozenset({r"\sum", r"\prod", r"\int", r"\lim", r"\max", r"\min", r"\sup", r"\inf"})


def mathml_to_latex(element: Any) -> str:
    """The LaTeX of a `<math>` element."""
    return " ".join(_latex(element, 0).split())


def _latex(element: Any, depth: int) -> str:
    if not isinstance(element.tag, str):
        return ""
    name = element.tag.rpartition("}")[2].rpartition(":")[2].lower()
    if depth > MAX_DEPTH:
        return symbols("".join(element.itertext()))
    if name in ("annotation", "annotation-xml"):
        return ""
    if name in _LEAVES:
        return _LEAVES[name]((element.text or "").strip())
    parts = [_latex(child, depth + 1) for child in element]
    made = _FORMS[name](parts) if name in _FORMS and len(parts) >= _LEAST.get(name, 0) else None
    return " ".join(parts) if made is None else made


def symbols(text: str) -> str:
    """Characters as the commands that LaTeX has for them."""
    found = [_SYMBOLS.get(letter, letter) for letter in text]
    return "".join(
        f"{one} " if one.startswith("\\") and one[-1:].isalpha() and at + 1 < len(found) else one
        for at, one in enumerate(found)
    )


def _identifier(text: str) -> str:
    if text in _FUNCTIONS:
        return f"\\{text}"
    return symbols(text) if len(text) < 2 else rf"\mathrm{{{symbols(text)}}}"


def _group(text: str) -> str:
    return f"{{{text.strip()}}}"


def _base(text: str) -> str:
    plain = text.strip()
    return plain if len(plain) == 1 or (plain.startswith("\\") and plain[1:].isalpha()) else _group(plain)


def _over(parts: list[str]) -> str:
    accent = _ACCENTS.get(parts[1].strip())
    if accent:
        return f"\\{accent}{_group(parts[0])}"
    return (
        f"{parts[0].strip()}^{_group(parts[1])}"
        if _takes_limits(parts[0])
        else rf"\overset{_group(parts[1])}{_group(parts[0])}"
    )


def _under(parts: list[str]) -> str:
    return (
        f"{parts[0].strip()}_{_group(parts[1])}"
        if _takes_limits(parts[0])
        else rf"\underset{_group(parts[1])}{_group(parts[0])}"
    )


def _takes_limits(base: str) -> bool:
    return base.strip() in _LIMITS


_LEAVES: dict[str, Callable[[str], str]] = {
    "mi": _identifier,
    "mn": symbols,
    "mo": symbols,
    "ms": symbols,
    "mtext": lambda text: rf"\text{{{text}}}" if text else "",
    "mspace": lambda _: " ",
}
_FORMS: dict[str, Callable[[list[str]], str]] = {
    "mfrac": lambda parts: rf"\frac{_group(parts[0])}{_group(parts[1])}",
    "msqrt": lambda parts: rf"\sqrt{_group(' '.join(parts))}",
    "mroot": lambda parts: rf"\sqrt[{parts[1].strip()}]{_group(parts[0])}",
    "msup": lambda parts: f"{_base(parts[0])}^{_group(parts[1])}",
    "msub": lambda parts: f"{_base(parts[0])}_{_group(parts[1])}",
    "msubsup": lambda parts: f"{_base(parts[0])}_{_group(parts[1])}^{_group(parts[2])}",
    "munderover": lambda parts: f"{parts[0].strip()}_{_group(parts[1])}^{_group(parts[2])}",
    "mover": _over,
    "munder": _under,
    "mfenced": lambda parts: rf"\left( {' , '.join(parts)} \right)",
    "mtable": lambda parts: rf"\begin{{matrix}} {' '.join(parts)} \end{{matrix}}",
    "mtr": lambda parts: " & ".join(parts) + r" \\",
    "mphantom": lambda _: "",
}
_LEAST = {"mfrac": 2, "mroot": 2, "msup": 2, "msub": 2, "msubsup": 3, "munderover": 3, "mover": 2, "munder": 2}
