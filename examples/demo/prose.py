"""Documents of prose, from the three packages that `make_data.py` is given."""

from __future__ import annotations

import random
import re
import struct
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from xml.etree.ElementTree import Element

# language -> (folder of the GNOME help, folder of the handbook)
LANGUAGES = {
    "en": ("C", "en-US"),
    "de": ("de", "de-DE"),
    "fr": ("fr", "fr-FR"),
    "es": ("es", "es-ES"),
    "it": ("it", "it-IT"),
    "pt": ("pt_BR", "pt-BR"),
    "pl": ("pl", "pl-PL"),
    "sv": ("sv", "sv-SE"),
    "ru": ("ru", "ru-RU"),
    "ja": ("ja", "ja-JP"),
    "zh": ("zh_CN", "zh-CN"),
}
NO_SPACES = {"ja", "zh"}  # languages written without spaces between words
QUOTAS = {"gnome": (130, 62), "handbook": (160, 58), "austen": (260, 0)}  # documents in (English, each other)


@dataclass(frozen=True)
class Document:
    """One record to be: its text, where it is from, and what was done to it."""

    text: str
    lang: str
    source: str
    url: str
    kind: str = "prose"
    origin: Document | None = None


@dataclass
class Page:
    """Paragraphs that belong together, in reading order."""

    source: str
    lang: str
    url: str
    paragraphs: list[str]
    credits: list[tuple[str, str]] = field(default_factory=list)


# ---------------------------------------------------------------- paragraphs

CJK = r"[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]"
GAP = re.compile(rf"(?<={CJK}) (?={CJK})")
LATIN_RUN = re.compile(r"(?:[A-Za-z'’]+[ ,]+){5}")
END = re.compile(r"""[.!?…。！？][)\]"'”’»“）」』]*$""")
SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])")
DEBRIS = re.compile(r"\x00|[\w.]+@[\w.]+|https?:|www\.|[→{}<>|\\]|\$\(|\( *\)|（ *）|“ *”|  ")


def words(text: str, lang: str) -> int:
    """The number of words; in a language without spaces two characters count as one word."""
    return len(text) // 2 if lang in NO_SPACES else len(text.split())


def tidy(text: str, lang: str) -> str:
    """One paragraph on one line, without a last sentence that only announces a list; '' if not prose."""
    text = GAP.sub("", " ".join(text.split()))
    if text.endswith((":", "：")):
        text = (" " if lang not in NO_SPACES else "").join(SENTENCE.split(text)[:-1]).strip()
    letters = sum(c.isalpha() for c in text)
    fragment = text[:1].islower() or not END.search(text) or words(text, lang) < 6
    return "" if fragment or DEBRIS.search(text) or letters < 0.7 * len(text) else text


def triples(text: str) -> list[tuple[str, ...]]:
    """Every run of three words."""
    found = re.findall(r"[^\W\d_]+", text.lower())
    return [tuple(found[i : i + 3]) for i in range(len(found) - 2)]


def translated(text: str, lang: str, english: set[tuple[str, ...]]) -> bool:
    """Whether a paragraph of a translation is in its language, not left in English as a whole or in part."""
    if lang in NO_SPACES:
        return 2 * len(re.findall(CJK, text)) > len(text) and not LATIN_RUN.search(text)
    sentences = [triples(sentence) for sentence in SENTENCE.split(text)]
    shares = [sum(t in english for t in found) / len(found) for found in sentences if len(found) > 1]
    return bool(shares) and max(shares) < 0.4 and sum(shares) / len(shares) < 0.15


def name(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]


# ---------------------------------------------------------------- GNOME Help (Mallard)

CONTAINERS = {"page", "section", "note", "example"}
LISTS = {"steps", "list"}
TEST = "{http://projectmallard.org/if/1.0/}test"  # the condition under which an element is shown


def mallard_inline(element: Element, titles: dict[str, str]) -> str:
    """The text of an element; a NUL stands for what text cannot show (a picture, a link of no title)."""
    if name(element) == "media":
        return "\x00"
    if name(element) == "link" and not element.text and not len(element):
        return titles.get(element.get("xref", ""), "\x00")
    parts = [element.text or ""]
    joint = {"keyseq": "+", "guiseq": ", "}.get(name(element))
    if joint:
        return joint.join(mallard_inline(child, titles) for child in element)
    for child in element:
        parts += [mallard_inline(child, titles), child.tail or ""]
    return "".join(parts)


def mallard_paragraphs(element: Element, lang: str, titles: dict[str, str]) -> Iterator[str]:
    """Each paragraph, and each list as one paragraph."""
    for child in element:
        if child.get(TEST) == "platform:gnome-classic":
            continue
        if name(child) == "p":
            yield tidy(mallard_inline(child, titles), lang)
        elif name(child) in LISTS:
            items = [list(mallard_paragraphs(item, lang, titles)) for item in child if name(item) == "item"]
            yield ("" if lang in NO_SPACES else " ").join(text for item in items for text in item if text)
        elif name(child) in CONTAINERS:
            yield from mallard_paragraphs(child, lang, titles)


def mallard_credits(root: Element) -> Iterator[tuple[str, str]]:
    for credit in root.iter():
        kinds = (credit.get("type") or "").split()
        if name(credit) != "credit" or not {"author", "editor", "translator", "copyright"} & set(kinds):
            continue
        role = "translator" if "translator" in kinds else "author"
        for child in credit:
            if name(child) == "name" and child.text:
                yield role, " ".join(child.text.split())


def gnome_pages(sources: Path, lang: str) -> Iterator[Page]:
    folder = sources / "gnome-user-docs/usr/share/help" / LANGUAGES[lang][0]
    files = sorted(folder.glob("*/*.page"))
    roots = {path: ET.parse(path).getroot() for path in files}
    titles = {}
    for path, root in roots.items():
        found = [" ".join("".join(child.itertext()).split()) for child in root if name(child) == "title"]
        titles[path.stem] = found[0] if found else "\x00"
    for path, root in roots.items():
        url = f"https://help.gnome.org/users/{path.parent.name}/stable/{path.stem}.html.{lang}"
        paragraphs = [text for text in mallard_paragraphs(root, lang, titles) if text]
        yield Page("gnome", lang, url, paragraphs, list(mallard_credits(root)))


# ---------------------------------------------------------------- The Debian Administrator's Handbook (XHTML)

SKIPPED_PAGES = {"index", "sect.acknowledgments", "foreword", "preface", "conclusion"}
NOT_PROSE = {"table", "pre", "dl", "h1", "h2", "h3", "h4", "h5", "head"}


def xhtml_inline(element: Element) -> str:
    if element.get("class") == "url":
        return ""
    if name(element) in {"pre", "img", "sup"} or element.get("class") == "title":
        return "\x00"
    inner = "".join(xhtml_inline(child) + (child.tail or "") for child in element)
    return (element.text or "") + inner


def xhtml_paragraphs(element: Element, lang: str) -> Iterator[str]:
    for child in element:
        if name(child) == "div" and child.get("class") == "para":
            yield tidy(xhtml_inline(child), lang)
        elif name(child) not in NOT_PROSE:
            yield from xhtml_paragraphs(child, lang)


def handbook_pages(sources: Path, lang: str) -> Iterator[Page]:
    edition = LANGUAGES[lang][1]
    folder = sources / "debian-handbook/usr/share/doc/debian-handbook/html" / edition
    for path in sorted(folder.glob("*.html")):
        if path.stem not in SKIPPED_PAGES:
            root = ET.parse(path).getroot()
            url = f"https://debian-handbook.info/browse/{edition}/stable/{path.name}"
            yield Page("handbook", lang, url, [text for text in xhtml_paragraphs(root, lang) if text])


# ---------------------------------------------------------------- Jane Austen (a lazy-load database of R)


def r_strings(data: bytes) -> list[str]:
    """The character vector in one serialised R object (XDR format, version 3)."""
    at = data.index(b"UTF-8") + len(b"UTF-8")
    (count,) = struct.unpack_from(">I", data, at + 4)
    at += 8
    strings = []
    for _ in range(count):
        (length,) = struct.unpack_from(">i", data, at + 4)
        at += 8
        strings.append(data[at : at + max(length, 0)].decode())
        at += max(length, 0)
    return strings


def r_objects(data: bytes) -> Iterator[list[str]]:
    """Every object of the database: a length of four bytes, then zlib data."""
    while data:
        stream = zlib.decompressobj()
        yield r_strings(stream.decompress(data[4:]))
        data = stream.unused_data


def austen_pages(sources: Path, lang: str) -> Iterator[Page]:
    """One page per chapter."""
    if lang != "en":
        return
    path = sources / "r-cran-janeaustenr/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
    for lines in r_objects(path.read_bytes()):
        slug = lines[0].lower().replace(" ", "-")
        text = "\n".join(lines[1:]).replace("_", "").replace("--", " -- ")
        for number, chapter in enumerate(re.split(r"(?im)^ *chapter \w+.*$", text)[1:], 1):
            found = [tidy(text, lang) for text in re.split(r"\n\s*\n", chapter)]
            url = f"https://novels.example/austen/{slug}/chapter-{number}"
            yield Page("austen", lang, url, [text for text in found if text])


READERS: dict[str, Callable[[Path, str], Iterator[Page]]] = {
    "gnome": gnome_pages,
    "handbook": handbook_pages,
    "austen": austen_pages,
}


# ---------------------------------------------------------------- documents of prose


def length(rng: random.Random) -> int:
    """How long a document should be, in words: mostly 60 to 500, now and then over a thousand."""
    return rng.randint(700, 1300) if rng.random() < 0.04 else int(60 + 440 * rng.random() ** 1.3)


def split_page(page: Page, rng: random.Random) -> Iterator[Document]:
    """Cuts a page between paragraphs into documents of 40 words or more; a shorter rest is left out."""
    parts: list[list[str]] = [[]]
    wanted = length(rng)
    for paragraph in page.paragraphs:
        parts[-1].append(paragraph)
        if words("".join(parts[-1]), page.lang) >= wanted:
            parts.append([])
            wanted = length(rng)
    for number, part in enumerate(parts, 1):
        text = "\n\n".join(part)
        if 40 <= words(text, page.lang) <= 1500:
            url = page.url if len(parts) == 1 else f"{page.url}#part-{number}"
            yield Document(text, page.lang, page.source, url)


def shingles(text: str, lang: str) -> set[str]:
    """Runs of five words (of eight characters where words are not spaced)."""
    units = list("".join(text.split())) if lang in NO_SPACES else text.lower().split()
    run, joint = (8, "") if lang in NO_SPACES else (5, " ")
    return {joint.join(units[i : i + run]) for i in range(max(1, len(units) - run + 1))}


def jaccard(left: set[str], right: set[str]) -> float:
    return len(left & right) / len(left | right)


def pick(candidates: list[Document], quota: int, seen: dict[str, list[set[str]]]) -> list[Document]:
    """The first ``quota`` candidates that are not like one picked before."""
    picked: list[Document] = []
    for document in candidates:
        if len(picked) == quota:
            break
        mine = shingles(document.text, document.lang)
        if all(jaccard(mine, other) < 0.3 for other in seen[document.lang]):
            seen[document.lang].append(mine)
            picked.append(document)
    return picked


def prose(sources: Path, rng: random.Random) -> tuple[list[Document], dict[str, set[tuple[str, str]]]]:
    """Documents of every source and language, none like another, and the people to credit by language."""
    documents: list[Document] = []
    people: dict[str, set[tuple[str, str]]] = defaultdict(set)
    seen: dict[str, list[set[str]]] = defaultdict(list)
    for source, reader in READERS.items():
        english: set[tuple[str, ...]] = set()
        for lang in LANGUAGES:
            pages = list(reader(sources, lang))
            for page in pages:
                people[lang].update(page.credits)
                if lang == "en":
                    english.update(triple for text in page.paragraphs for triple in triples(text))
                else:
                    page.paragraphs = [text for text in page.paragraphs if translated(text, lang, english)]
                page.paragraphs = list(dict.fromkeys(page.paragraphs))
            candidates = [document for page in pages for document in split_page(page, rng)]
            rng.shuffle(candidates)
            documents += pick(candidates, QUOTAS[source][lang != "en"], seen)
    return documents, people
