"""Whether Gristmill's filters give the scores of NeMo Curator's own, document by document, and keep the same ones.

Four sets: 20,000 documents of generated web text, 2,000 short ones made of what is seldom tested (odd white space,
brackets, digits of other scripts, half emoji), 1,000 pages of HTML, and a quarter of Python's standard library for the
code filters.
Both sides score every document by every filter that both have. A difference above 1e-9 is intended if it is one of
REASONS, each of which is checked for the document at hand, and counts as unexplained otherwise.

    python benchmarks/agreement_curator.py          all of it, 5 minutes: results/agreement.json and docs/agreement.md
    python benchmarks/agreement_curator.py 2000     fewer web documents; nothing is written
    python benchmarks/agreement_curator.py page     only docs/agreement.md, of the last results
"""

from __future__ import annotations

import ast
import json
import os
import random
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
from corpus import documents
from peer_comparison import Tools, heuristics, language_tools, top_ngram_scores
from peers.install import interpreter, version
from process_measurement import HERE, WORK, measure

OUT = WORK / "agreement"
RESULT = HERE / "results" / "agreement.json"
DATATROVE_RESULT = HERE / "results" / "agreement-datatrove.json"
DOCS = HERE.parent / "docs" / "agreement.md"
PEER = "nemo-curator"
WEB = 20_000
ODD = 2_000
TOLERANCE = 1e-9

REASONS = {
    "raises": "Curator raises, which stops its run; here the document gets the score furthest from being kept",
    "tie": "several n-grams are the most frequent: Curator takes one by hash seed, Gristmill the first in the text",
    "blank": "a blank document has no language; Curator gives it the one that the model gives to nothing",
    "async": "Curator does not see the docstrings of `async def`",
    "mark": "Curator cannot read a file that begins with a byte order mark, and gives it 9999",
}
LEFT_OUT = {
    "TokenCountFilter": "needs a tokenizer, which both would get from the same library",
    "TokenizerFertilityFilter": "needs a tokenizer, which both would get from the same library",
    "FastTextQualityFilter": "Curator draws lots without a seed in its workers",
    "HistogramFilter": "Curator downloads its histograms when it is constructed",
    "HTMLBoilerplateFilter, over what is not HTML": "two parsers read a bare & or < in two ways: in a trial, 13 of "
    "1,000 pages with unescaped text differed, two of them by 0.09 and 0.07, and 4 of 434 Python files",
    "HTMLBoilerplateFilter, over odd comments": "`<!-->` and `--!>` end a comment here, as in HTML; in Curator that "
    "depends on the release of Python",
    "GeneralCommentToCodeFilter, over odd input": "in C++ and Java, `'// x'` in single quotes begins a comment in "
    "Curator, and is text here; Curator does not know `text/javascript`, and gives it 9999",
    "filters with lang='zh'": "both find words by jieba's dictionary; Curator counts white space between them as words "
    "too. Without jieba they raise here, so that all machines give the same numbers; other codes, such as `zho`, take "
    "each ideograph for a word",
    "PerExtensionFilter": "Curator's table of extensions is not in its package",
}

_ODD = [
    *("a", "the", "word", "Zürich", "naïve", "I", "0", "42", "٣٤", "५", "x1", "don't", "e.g.", "…", "...", ".", "!"),
    *("?", '"', "'", "”", "(", ")", "[", "]", "{", "}", "⟨", "⟩", "#", "##", "•", "●", "- ", "* ", "|", "😀"),
    *(
        "\u200d",
        "\u0301",
        "中文",
        "日本語",
        "ไทย",
        "עברית",
        "ﬁ",
        "ß",
        "İ",
        "https://a.example/porn?q=1",
        "www.b.example",
        "http://",
    ),
    *("lorem ipsum", "terms of use", "Privacy Policy", "cookies", "Read more", "<?xml version=", "<p>", "</p>"),
]
_GAPS = [*("    ", "\n", "\n\n", "\n\n\n", "\t", "\r\n", ""), *"      \u00a0\u3000\u2028\x0b\x1c\x85\b"]


def web(count: int) -> Iterator[tuple[str, str]]:
    for line in islice(documents(), count):
        record = orjson.loads(line)
        yield record["id"], record["text"]


def odd(count: int) -> Iterator[tuple[str, str]]:
    draw = random.Random(7)
    yield from (("blank-0", ""), ("blank-1", " "), ("blank-2", "\n"), ("blank-3", "\n\n"), ("blank-4", "\u00a0"))
    for number in range(count - 5):
        few = draw.sample(_ODD, draw.randint(1, 12))  # few, so that words, lines and n-grams come again
        length = int(draw.lognormvariate(3, 1.2))
        yield f"odd-{number}", "".join(draw.choice(few) + draw.choice(_GAPS) for _ in range(length))


def code() -> Iterator[tuple[str, str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py"))[::4]:
        name = path.relative_to(root).as_posix()
        if "site-packages" not in name and path.stat().st_size < 100_000:
            yield name, path.read_text(errors="replace")


def html(count: int) -> Iterator[tuple[str, str]]:
    """Web text between tags, scripts, styles, comments and entities."""
    draw = random.Random(9)
    wraps = (
        *("<p>{}</p>\n", "<div class='a'>{}<br></div>", "<li><a href='/x?a=1&b=2'>{}</a>", "<h1>{}</h1>"),
        *("{}&nbsp;&lt;3 ", "<script>var a = '{}';</script>", "<style>p {{ color: red }}</style>{}", "<!-- {} -->"),
    )
    for key, text in web(count):
        parts = (draw.choice(wraps).format(escape(part)) for part in text.split(". "))
        yield key, f"<!DOCTYPE html>\n<html><head><title>{key}</title></head><body>{''.join(parts)}</body></html>"


def text_tools() -> Tools:
    """The filters of the recipe, those of the catalogue that it leaves out, and the language."""
    others: Tools = [
        ("PornographicUrlsFilter", {}),
        ("SubstringFilter", {"substring": "the", "position": "any"}),
        ("RepeatingTopNGramsFilter", {"n": 1, "max_repeating_ngram_ratio": 0.2}),
        ("RepeatingDuplicateNGramsFilter", {"n": 2, "max_repeating_duplicate_ngram_ratio": 0.2}),
        ("CommonEnglishWordsFilter", {"min_num_common_words": 2, "stop_at_false": False}),
    ]
    return [*heuristics(), *others, *language_tools()]


def code_tools() -> Tools:
    return [
        ("PythonCommentToCodeFilter", {}),
        ("NumberOfLinesOfCodeFilter", {}),
        ("XMLHeaderFilter", {}),
        ("AlphaFilter", {}),
        ("GeneralCommentToCodeFilter", {"language": "text/x-python"}),
    ]


def compare(name: str, texts: dict[str, str], tools: Tools) -> dict[str, Any]:
    """All filters over one set of documents."""
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tools.json").write_text(json.dumps(tools))
    (folder / "in").mkdir(exist_ok=True)
    with open(folder / "in" / "documents.jsonl", "wb") as file:
        for key, text in texts.items():
            file.write(orjson.dumps({"id": key, "text": text}, option=orjson.OPT_APPEND_NEWLINE))
    own = _scores(Path(sys.executable), "gristmill_jobs.py", folder)
    peer = _scores(interpreter(PEER), "curator_jobs.py", folder)
    assert own.keys() == peer.keys() == texts.keys()
    result = {
        _title(tool): _agree(tool, [(texts[key], own[key][number], peer[key][number]) for key in texts])
        for number, tool in enumerate(tools)
    }
    return {"documents": len(texts), "filters": result, "chain": _chain(tools, own, peer)}


def _scores(python: Path, job: str, folder: Path) -> dict[str, Any]:
    output = folder / f"{Path(job).stem}.jsonl"
    command = [python, HERE / "peers" / job, "scores", folder / "in", output, folder / "tools.json"]
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    if job != "gristmill_jobs.py":
        env.pop("PYTHONPATH", None)
    run = measure([str(part) for part in command], env=env, log=folder / f"{Path(job).stem}.log")
    print(f"  {job}: {run.cpu:.1f} s of CPU", flush=True)
    return dict(orjson.loads(line) for line in output.read_bytes().splitlines())


def _title(tool: tuple[str, dict[str, Any]]) -> str:
    name, arguments = tool
    shown = [f"{key}={value}" for key, value in arguments.items() if key in ("n", "stop_at_false")]
    return f"{name}({', '.join(shown)})" if shown else name


def _agree(tool: tuple[str, dict[str, Any]], rows: list[tuple[str, Any, Any]]) -> dict[str, Any]:
    """Of one filter: documents with equal scores, the largest difference among them, and the reasons for the others."""
    equal, largest, examples = 0, 0.0, []
    reasons: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    for text, (mine, keep), (theirs, their_keep) in rows:
        gap = _gap(mine, theirs)
        if gap <= TOLERANCE:
            equal, largest = equal + 1, max(largest, gap)
            reason = "" if keep == their_keep else "unexplained"
        else:
            reason = _reason(tool, text, mine, theirs)
        if reason:
            reasons[reason] += 1
            kept[reason] += keep != their_keep
        if reason == "unexplained":
            examples.append([text[:300], mine, theirs])
    found = {"equal": equal, "largest_gap": largest, "differ": dict(reasons), "kept_differ": sum(kept.values())}
    return {**found, "examples": examples[:3]} if examples else found


def _gap(mine: Any, theirs: Any) -> float:
    """How far two scores are apart; infinitely, if one is not a number or the languages are two."""
    if isinstance(mine, dict):  # a language
        chance, label = ast.literal_eval(theirs)
        return abs(min(1.0, chance) - mine["score"]) if label == mine["language"] else float("inf")
    if isinstance(theirs, str) or mine is None:
        return float("inf")
    return abs(mine - theirs)


def _reason(tool: tuple[str, dict[str, Any]], text: str, mine: Any, theirs: Any) -> str:
    """Which of REASONS a difference has."""
    name, arguments = tool
    if name == "FastTextLangId":
        return "blank" if not text.strip() else "unexplained"
    if isinstance(theirs, str):
        return "raises"
    if name == "RepeatingTopNGramsFilter":
        possible = top_ngram_scores(text, arguments["n"])
        if len(possible) > 1 and all(
            min(abs(one - score) for one in possible) <= TOLERANCE for score in (mine, theirs)
        ):
            return "tie"
    if name == "PythonCommentToCodeFilter":
        return _docstring_reason(text, round((theirs - mine) * len(text)))
    if name == "GeneralCommentToCodeFilter":
        return "mark" if text.startswith("\ufeff") else "unexplained"
    return "unexplained"


def _docstring_reason(text: str, more: int) -> str:
    """Why Curator counts so many characters more, or fewer."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.AsyncFunctionDef)]
    unseen = [docstring for node in functions if (docstring := ast.get_docstring(node))]
    return "async" if unseen and more == -len("\n".join(["", *unseen])) else "unexplained"


def _chain(tools: Tools, own: dict[str, Any], peer: dict[str, Any]) -> dict[str, Any]:
    """What is kept by all filters of the recipe together."""
    count = len(heuristics())
    if tools[:count] != heuristics():
        return {}
    mine, theirs = ({key for key, row in side.items() if all(keep for _, keep in row[:count])} for side in (own, peer))
    return {"kept": len(mine), "kept_by_peer": len(theirs), "kept_by_one": len(mine ^ theirs)}


def run(count: int = WEB) -> dict[str, Any]:
    found: dict[str, Any] = {"peer": f"{PEER} {version(PEER)}", "tolerance": TOLERANCE, "reasons": REASONS}
    found |= {"left_out": LEFT_OUT, "sets": {}}
    sets = {
        "web": (dict(web(count)), text_tools()),
        "odd": (dict(odd(ODD)), text_tools()),
        "html": (dict(html(1000)), [("HTMLBoilerplateFilter", {})]),
        "code": (dict(code()), code_tools()),
    }
    for name, (texts, tools) in sets.items():
        print(f"{name}: {len(texts)} documents, {len(tools)} filters", flush=True)
        found["sets"][name] = compare(name, texts, tools)
    return found


def table(found: dict[str, Any]) -> str:
    """The result as Markdown: a line per filter and set."""
    lines = ["| Filter | Documents | Equal | Differ as intended | Differ otherwise |", "|---|---|---|---|---|"]
    for name, one in found["sets"].items():
        for title, filter_ in one["filters"].items():
            intended = {reason: count for reason, count in filter_["differ"].items() if reason != "unexplained"}
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in intended.items())
            cells = (f"`{title}`", f"{one['documents']:,} {name}", f"{filter_['equal']:,}", reasons)
            lines.append(f"| {' | '.join(cells)} | {filter_['differ'].get('unexplained', 0)} |")
    return "\n".join(lines)


def page(found: dict[str, Any]) -> str:
    """docs/agreement.md."""
    chain = found["sets"]["web"]["chain"]
    datatrove = datatrove_section(json.loads(DATATROVE_RESULT.read_text())) if DATATROVE_RESULT.exists() else ""
    return curator_part(found, chain) + datatrove


def datatrove_section(found: dict[str, Any]) -> str:
    """The section on datatrove, which `agreement_datatrove.py` measures."""
    lines = [
        "| Filter | Documents | Kept | Kept by datatrove | Kept by one only | Other text |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in found["sets"].items():
        for title, row in one["filters"].items():
            numbers = (row[key] for key in ("kept", "kept_by_peer", "kept_by_one"))
            cells = (f"`{title}`", f"{one['documents']:,} {name}", *(f"{number:,}" for number in numbers))
            lines.append(f"| {' | '.join(cells)} | {row.get('texts_differ', '')} |")
    return DATATROVE.format(peer=found["peer"], table="\n".join(lines))


def curator_part(found: dict[str, Any], chain: dict[str, int]) -> str:
    return PAGE.format(
        peer=found["peer"].replace("nemo-curator", "NeMo Curator"),
        web=f"{found['sets']['web']['documents']:,}",
        kept=f"{chain['kept']:,}",
        kept_by_peer=f"{chain['kept_by_peer']:,}",
        kept_by_one=f"{chain['kept_by_one']:,}",
        table=table(found),
        reasons="\n".join(f"- **{name}**: {text}." for name, text in found["reasons"].items()),
        left_out="\n".join(f"- `{name}`: {text}." for name, text in found["left_out"].items()),
    )


PAGE = """# Agreement with NeMo Curator

Filters of the same name give the same scores, so that a pipeline that moves here drops the same documents.
`python benchmarks/agreement_curator.py` installs {peer} in an environment of its own, lets both score every document by
every filter, and compares them one by one. Scores are equal when they differ by at most 1e-9. This page is its result.

The documents: generated web text (*web*), short texts of what is seldom tested, such as odd white space, digits of
other scripts and blank documents (*odd*), the web text as HTML (*html*), files of Python's standard library (*code*).

Of {web} web documents, the 28 filters of `heuristic-english` keep {kept}; Curator's keep {kept_by_peer}. Kept by one of
the two only: {kept_by_one}.

{table}

What differs as intended. Ties are checked by counting anew in the document at hand:

{reasons}

Not compared:

{left_out}
"""

DATATROVE = """
# Agreement with datatrove

The filters of the recipe `fineweb` keep what those of {peer} keep. `python benchmarks/agreement_datatrove.py FOLDER`
lets both judge each document by each filter alone, and then by all four in the order of FineWeb, on the text that C4
left. The documents are English prose of documentation packages of Debian, with boilerplate, spam and copies among it.
*Other text*: of the documents that both keep, those whose lines differ after C4.

{table}

What differs, and why:

- **Words.** datatrove splits words as spaCy does for English; Gristmill splits them in C by the same rules, without
  the tables of rare exceptions (times of day, emoticons, units, most abbreviations). Of 283,146 words of 600
  documents in English, 0.1 % differ. A document near a limit may then fall on the other side of it.
- **Runs of words that occur once.** In datatrove the most frequent run of words of a short text may occur once, and
  be a large share of it: such texts are repetitions there (all 79 of these documents where the repetition
  filters differ). Here they are not; `GopherQualityFilter` drops them for having fewer than 50 words.
- **Other scripts.** Lines may end with the marks of other scripts (。！？।؟), which datatrove's C4 filter drops; where
  people write no spaces, each ideograph or syllable is a word.
- **Blank texts.** datatrove's filters raise or drop them; here they get a score, and `GopherQualityFilter` drops
  them.
- **URLs.** A blocked domain blocks all domains below it; datatrove looks at the registered domain and the full host
  only.
- **Personal data.** datatrove replaces any four numbers up to 255 by an address; `RedactPii` leaves versions and
  sections alone.
"""


def main(arguments: list[str]) -> None:
    if arguments == ["page"]:
        DOCS.write_text(page(json.loads(RESULT.read_text())))
        return
    found = run(*map(int, arguments))
    print(table(found))
    for name, one in found["sets"].items():
        print(name, one["chain"])
        for title, filter_ in one["filters"].items():
            for example in filter_.pop("examples", ()):
                print(f"  {title}: {example}")
    if not arguments:
        RESULT.write_text(json.dumps(found, indent=1) + "\n")
        DOCS.write_text(page(found))


if __name__ == "__main__":
    main(sys.argv[1:])
