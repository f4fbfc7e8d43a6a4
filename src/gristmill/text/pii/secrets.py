"""Finding secrets: keys and tokens of known services, private keys, JSON web tokens, values of names like `api_key`.

Known services mark their keys with a prefix. The value of a name that sounds secret counts if it looks random: letters
and digits, without repetition. Repetitions in patterns are bounded, or cannot overlap, so that the time is linear in
the length of any text.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.text.pii.identifiers import TextSpan

_KEYS = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"(?:AKIA|ASIA)[A-Z2-7]{16}"  # AWS
    r"|gh[pousr]_[A-Za-z0-9]{36,251}|github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}"  # GitHub
    r"|glpat-[A-Za-z0-9_-]{20}"  # GitLab
    r"|xox[abeoprs]-(?:\d+-)?[A-Za-z0-9-]{10,200}|xapp-\d-[A-Z0-9]+-\d+-[a-f0-9]{32,}"  # Slack
    r"|AIza[A-Za-z0-9_-]{35}"  # Google
    r"|[rs]k_(?:live|test)_[A-Za-z0-9]{16,128}"  # Stripe
    r"|(?P<loose>sk-(?:proj-|svcacct-|ant-[a-z0-9]+-)?[A-Za-z0-9_-]{24,200})"  # OpenAI, Anthropic
    r"|npm_[A-Za-z0-9]{36}|pypi-AgEI[A-Za-z0-9_-]{50,250}"  # npm, PyPI
    r"|hf_[A-Za-z]{34}"  # Hugging Face
    r"|SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"  # SendGrid
    r")(?![A-Za-z0-9_])"
)
_HOOK = re.compile(r"https://hooks\.slack\.com/services/T[A-Z0-9]{6,12}/B[A-Z0-9]{6,12}/[A-Za-z0-9]{20,28}")
_BORDER = re.compile(r"-----(?P<what>BEGIN|END) (?P<kind>(?:[A-Z]+ ){0,2}PRIVATE KEY(?: BLOCK)?)-----")
_BODY = re.compile(
    r"(?:\s*[A-Z][A-Za-z-]+: [^\n]*)*(?:(?:\s|\\[rn])*[A-Za-z0-9+/]{16,}={0,2})+(?:(?:\s|\\[rn])+[A-Za-z0-9+/]+=*\Z)?"
)
_MAX_PRIVATE_KEY = 20_000  # characters
_LOGIN = re.compile(r"://[^\s/:@]{0,64}:(?P<value>[^\s/@${<]{1,128})@")
_WEB = re.compile(r"(?<![\w.-])eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?![\w-])")
_NAMED = re.compile(
    r"""(?:(?:secret|token|passwd|password|pwd|api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|auth[_-]?key)
    (?:[_-](?:id|key|value))?["']?[ \t]*(?::=|=>|[:=])[ \t]*["']?
    |authorization["']?[ \t]*[:=][ \t]*["']?(?:basic|token)[ ]
    |(?<![a-z])bearer[ ])
    (?P<value>[A-Za-z0-9+/=_.~-]{16,200})(?![\w(\[{])""",
    re.IGNORECASE | re.VERBOSE,
)
_ENTROPY = 3.3  # bits per character: above words and repeated characters, below random letters and digits


def find_secrets(text: str) -> Iterator[TextSpan]:
    spans = [*_private_keys(text), *(found.span() for found in _HOOK.finditer(text))]
    spans += [found.span() for found in _KEYS.finditer(text) if not found["loose"] or looks_random(found["loose"])]
    spans += [found.span() for found in _WEB.finditer(text) if _is_web_token(found[0])]
    spans += [found.span("value") for found in _LOGIN.finditer(text)]
    spans += [found.span("value") for found in _NAMED.finditer(text) if looks_random(found["value"])]
    end = 0
    for span in sorted(spans, key=lambda span: (span[0], -span[1])):
        if span[0] >= end:
            end = span[1]
            yield span


def _private_keys(text: str) -> Iterator[TextSpan]:
    """Private keys from their first line to their last, or to the end of the key data if the last line is missing."""
    borders = [*_BORDER.finditer(text), None]
    for begin, end in pairwise(borders):
        if begin is None or begin["what"] == "END":
            continue
        closed = end is not None and end["what"] == "END" and end["kind"] == begin["kind"]
        if end is not None and closed and 20 <= end.start() - begin.end() <= _MAX_PRIVATE_KEY:
            yield begin.start(), end.end()
        elif body := _BODY.match(
            text, begin.end(), min(begin.end() + _MAX_PRIVATE_KEY, end.start() if end else len(text))
        ):
            yield begin.start(), body.end()


def _is_web_token(token: str) -> bool:
    head = token.partition(".")[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (binascii.Error, ValueError):
        return False
    return isinstance(header, dict) and "alg" in header


def looks_random(value: str) -> bool:
    """Whether a value has letters, two digits (one, if it is long and of mixed case) and a high entropy."""
    bare = value.strip("=")
    digits = sum(map(str.isdigit, bare))
    mixed = len(bare) >= 32 and not bare.islower() and not bare.isupper()
    return (1 if mixed else 2) <= digits < len(bare) and entropy(bare) >= _ENTROPY


def entropy(text: str) -> float:
    """Bits per character, by the frequencies of the characters in the text."""
    counts = Counter(text)
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts.values()) if text else 0.0
