"""Forms of texts that are told apart no further: without case, spaces, punctuation, or variants of characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from gristmill.core.compute import pc
from gristmill.core.errors import did_you_mean

_STEPS: dict[str, Callable[[pa.ChunkedArray], pa.ChunkedArray]] = {
    "unicode": lambda texts: pc.utf8_normalize(texts, form="NFKC"),
    "case": pc.utf8_lower,
    "punctuation": lambda texts: pc.replace_substring_regex(texts, pattern=r"\p{P}+", replacement=""),
    "whitespace": lambda texts: pc.utf8_trim_whitespace(
        pc.replace_substring_regex(texts, pattern=r"[\s\p{Z}]+", replacement=" ")
    ),
}
FORMS = tuple(_STEPS)


def check_forms(stage: str, forms: Sequence[str]) -> tuple[str, ...]:
    """The forms that were asked for, in the order in which they are taken."""
    if isinstance(forms, str):
        raise TypeError(f'{stage}: normalize must be a list, as in normalize=["{forms}"]')
    for form in forms:
        if form not in FORMS:
            known = ", ".join(FORMS)
            raise ValueError(f"{stage}: normalize has no {form!r}.{did_you_mean(form, FORMS)} There are: {known}")
    return tuple(form for form in FORMS if form in forms)


def normal(texts: pa.ChunkedArray, forms: Sequence[str]) -> pa.ChunkedArray:
    for form in forms:
        texts = _STEPS[form](texts)
    return texts
