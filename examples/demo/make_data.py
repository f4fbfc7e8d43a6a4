"""Builds the demo corpus in ``examples/demo/data`` from three freely licensed Debian packages.

The output is about two thousand web-like records in four JSON Lines files: real prose in eleven languages,
mixed with duplicates, junk, damaged text, odd rows and broken lines, so that every step of a curation recipe
has something to do. The same sources, seed and versions of Python and pyarrow
give the same bytes.

Sources (Debian 12; the licences are in ``data/README.md``):

    gnome-user-docs 43.0-2           GNOME Help                             CC-BY-SA-3.0
    debian-handbook 11.20220922      The Debian Administrator's Handbook    GPL-2.0+ or CC-BY-SA-3.0
    r-cran-janeaustenr 1.0.0-1       Jane Austen's six novels               public domain (packaging: MIT)

To fetch and unpack them (nothing is installed) and run:

    mkdir sources
    for package in gnome-user-docs debian-handbook r-cran-janeaustenr; do
        apt-get download $package && dpkg -x ${package}_*.deb sources/$package
    done
    python make_data.py --sources sources --out data

``--kinds FILE`` also writes what each record is: id, kind, language and the address of the original.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import struct
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from xml.etree.ElementTree import Element

SEED = 20240229

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

# kind -> how many documents of prose are damaged in this way
DAMAGED = {"mojibake": 48, "ragged": 60, "cut": 48}
COPIES = {"exact": 124, "near": 84}
JUNK = {"spam": 40, "symbols": 32, "menu": 40, "short": 44, "links": 34}
ODD_TEXTS: list[tuple[str, dict[str, Any]]] = [
    ("text null", {"text": None}),
    ("text missing", {}),
    ("text empty", {"text": ""}),
    ("text blank", {"text": " \n\t\n  "}),
]

FILES = ["web-00.jsonl", "web-01.jsonl", "books.jsonl.gz", "manual.jsonl.zst"]
MIX = {  # source -> weights of FILES
    "gnome": (50, 40, 0, 10),
    "handbook": (12, 48, 0, 40),
    "austen": (10, 10, 80, 0),
    "junk": (46, 42, 6, 6),
    "copy": (35, 35, 15, 15),
}


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


# ---------------------------------------------------------------- damage and copies


def mojibake(document: Document) -> str:
    return document.text.encode().decode("latin-1")


def ragged(document: Document, rng: random.Random) -> str:
    """Curly quotes, runs of blank lines, spaces doubled, hard or left at the end of a line."""
    text = re.sub(r'"([^"\n]*)"', r"“\1”", document.text)
    text = re.sub(r"(\w)'(\w)", r"\1’\2", text).replace(" -- ", "—").replace("...", "…")
    paragraphs = [part.replace(". ", rng.choice([".  ", ".\u00a0", ". "])) for part in text.split("\n\n")]
    joined = paragraphs[0]
    for part in paragraphs[1:]:
        joined += rng.choice(["", "  ", "\t"]) + "\n" * rng.randint(3, 7) + part
    return joined + rng.choice(["\n\n\n", "   ", "\r\n\r\n"])


def cut(document: Document, rng: random.Random) -> str:
    """The document up to somewhere within a sentence of its second half."""
    text = document.text[: int(len(document.text) * rng.uniform(0.6, 0.95))]
    if document.lang not in NO_SPACES:
        text = text.rpartition(" ")[0]
    return text.rstrip(" \n.,;:!?…。、！？\"'”’»)")


def suits(document: Document, kind: str) -> bool:
    """Whether the damage would show."""
    if kind == "mojibake":
        return sum(ord(c) > 127 for c in document.text) >= 8 and words(document.text, document.lang) < 400
    return kind != "ragged" or document.text.count("\n\n") > 1


def damage(documents: list[Document], rng: random.Random) -> list[Document]:
    """Damages some documents in place of their clean selves."""
    order = list(range(len(documents)))
    rng.shuffle(order)
    result = list(documents)
    fixes: dict[str, Callable[[Document], str]] = {
        "mojibake": mojibake,
        "ragged": lambda document: ragged(document, rng),
        "cut": lambda document: cut(document, rng),
    }
    for kind, count in DAMAGED.items():
        fit = [i for i in order if suits(documents[i], kind)][:count]
        order = [i for i in order if i not in set(fit)]
        for i in fit:
            result[i] = replace(documents[i], text=fixes[kind](documents[i]), kind=kind)
    return result


FOOTERS = [
    "All content on this page may be shared under the terms given below.",
    "This page was last checked by the site team.",
    "Was this page helpful? Let us know what we can do better.",
    "Printed from the archive of this site.",
]


def retouch(text: str, lang: str, rng: random.Random) -> str:
    """A sentence less, a footer more or a few words other."""
    paragraphs = text.split("\n\n")
    at = rng.randrange(len(paragraphs))
    sentences = [part for part in SENTENCE.split(paragraphs[at]) if part]
    if len(sentences) > 2 and rng.random() < 0.6:
        del sentences[rng.randrange(len(sentences))]
        paragraphs[at] = ("" if lang in NO_SPACES else " ").join(sentences)
    elif lang not in NO_SPACES and rng.random() < 0.6:
        tokens = paragraphs[at].split(" ")
        for _ in range(max(1, len(tokens) // 50)):
            tokens.pop(rng.randrange(len(tokens)))
        paragraphs[at] = " ".join(tokens)
    else:
        paragraphs.append(rng.choice(FOOTERS))
    return "\n\n".join(paragraphs)


def near(document: Document, rng: random.Random) -> str:
    """Retouched until it differs, while at least 0.7 of the shingles of both are common to both."""
    mine = shingles(document.text, document.lang)
    for _ in range(100):
        text = document.text
        for _ in range(rng.randint(1, 4)):
            text = retouch(text, document.lang, rng)
        if 0.7 <= jaccard(mine, shingles(text, document.lang)) < 1:
            return text
    raise ValueError(f"no near copy of {document.url} could be made")


def copies(documents: list[Document], rng: random.Random) -> list[Document]:
    """Copies of clean documents under other addresses; an exact copy may be of one copied before."""
    clean = [d for d in documents if d.kind == "prose" and words(d.text, d.lang) >= 100]
    result: list[Document] = []
    for kind, count in COPIES.items():
        for original in rng.choices(clean, k=count) if kind == "exact" else rng.sample(clean, count):
            path = original.url.split("/", 3)[3]
            url = f"https://mirror-{len(result) + 1}.example/{path}"
            text = original.text if kind == "exact" else near(original, rng)
            result.append(replace(original, text=text, url=url, source="copy", kind=kind, origin=original))
    return result


# ---------------------------------------------------------------- junk


def phrases(text: str) -> list[str]:
    """The phrases of a text that has "|" or a new line between them."""
    return text.replace("\n", "|").split("|")


KEYWORDS = phrases("""cheap flights
best casino bonus|discount watches|free shipping worldwide|online loan approval
buy now|limited offer|100% guaranteed|weight loss tips|replica handbags|SEO backlinks|work from home
crypto profit|free download full version|car insurance quotes|hotel deals|no deposit bonus|lucky jackpot
mobile ringtones|printer ink sale|designer sunglasses|payday advance|click here|win a prize|instant traffic
earn extra cash|top rated|lowest price|vip membership|promo code""")
MENU = phrases("""Home|About us|Products|Services|Contact|Blog|Careers|Log in|Register|Sitemap|Privacy policy
Terms of use|FAQ|Newsletter|Search|My account|Basket (0)|Wish list|Next|Previous|Back to top|Share|Tweet|Print
Startseite|Impressum|Datenschutz|Kontakt|Warenkorb|Accueil|Mentions légales|Nous contacter|Panier|Inicio
Aviso legal|Contacto|Главная|О нас|Контакты|Корзина|ホーム|会社概要|お問い合わせ|首页|关于我们|联系方式""")
SHORT = phrases("""Page {} not found.|Coming soon: item {}.|Loading {}%|Error {}: please try again later.
Image {} of 90|Read more ({})|Comments ({})|Sorry, article {} has moved.|Ticket {} closed
Posted {} days ago""")
SYMBOLS = "#$%&*+-/<=>@^_~|§¤¶†‡•·◊■□▲▼◄►●○★☆♠♣♥♦♪0123456789"


def spam(rng: random.Random) -> str:
    joint = rng.choice([", ", " | ", "!!! ", " - ", " "])
    lines = [joint.join(rng.choices(KEYWORDS, k=rng.randint(8, 30))) for _ in range(rng.randint(1, 8))]
    return rng.choice(["\n", "\n\n"]).join(line.upper() if rng.random() < 0.3 else line for line in lines)


def symbols(rng: random.Random) -> str:
    runs = ["".join(rng.choices(SYMBOLS, k=rng.randint(1, 14))) for _ in range(rng.randint(30, 140))]
    return "".join(run + rng.choice([" ", " ", " ", "\n"]) for run in runs).strip()


def menu(rng: random.Random) -> str:
    return rng.choice(["\n", "\n", " | ", " » "]).join(rng.sample(MENU, rng.randint(12, 36)))


def short(rng: random.Random) -> str:
    return rng.choice(SHORT).format(rng.randint(1, 9999))


def links(rng: random.Random) -> str:
    lines = []
    for _ in range(rng.randint(12, 60)):
        slug = rng.choice(KEYWORDS).replace(" ", "-").replace("%", "")
        label = rng.choice(["", "", rng.choice(KEYWORDS) + ": "])
        host = f"www.{slug}-{rng.randint(1, 999)}.example"
        lines.append(f"{label}https://{host}/{rng.randint(1, 9999)}/?ref={slug}")
    return "\n".join(lines)


def junk(rng: random.Random) -> list[Document]:
    makers: dict[str, Callable[[random.Random], str]] = {
        "spam": spam,
        "symbols": symbols,
        "menu": menu,
        "short": short,
        "links": links,
    }
    result: list[Document] = []
    for kind, count in JUNK.items():
        for _ in range(count):
            url = f"https://site-{rng.randint(1, 400)}.example/page/{len(result)}"
            result.append(Document(makers[kind](rng), "en", "junk", url, kind))
    return result


# ---------------------------------------------------------------- records, files

SITES = {"gnome": "help.gnome.org", "handbook": "debian-handbook.info", "austen": "novels"}


def deal(documents: list[Document], rng: random.Random) -> dict[str, list[Document]]:
    """The documents of every file, in the order of their lines."""
    files: dict[str, list[Document]] = {file: [] for file in FILES}
    for document in documents:
        files[rng.choices(FILES, MIX[document.source])[0]].append(document)
    for inside in files.values():
        rng.shuffle(inside)
    return files


def record(document: Document) -> dict[str, Any]:
    return {
        "id": "",  # given when the order of the rows is known
        "url": document.url,
        "source": SITES.get(document.source, "crawl"),
        "lang": document.lang,
        "text": document.text,
    }


def add_columns(rows: list[dict[str, Any]], file: str) -> None:
    """web-00: nested metadata on some rows, a status that turns from int to string; web-01: a late column."""
    for number, row in enumerate(rows):
        if file == "web-00.jsonl":
            row["status"] = 200 if number < len(rows) - 40 else "200"
            if number % 12 == 5:
                headers = {"content-type": "text/html", "server": "nginx"}
                row["meta"] = {"depth": number % 4, "headers": headers, "tags": ["demo", row["lang"]]}
        elif file == "web-01.jsonl" and number >= len(rows) - 30:
            row["score"] = round(0.5 + (number * 37 % 50) / 100, 2)


def add_odd_texts(rows: list[dict[str, Any]], kinds: list[str], rng: random.Random) -> None:
    """Two rows of each kind of ``ODD_TEXTS`` put between the others."""
    for kind, change in ODD_TEXTS * 2:
        at = rng.randrange(len(rows) - 60)
        url = f"https://site-{rng.randint(1, 400)}.example/empty/{len(rows)}"
        rows.insert(at, {"id": "", "url": url, "source": "crawl", "lang": "en", **change})
        kinds.insert(at, kind)


def broken_lines(rows: list[dict[str, Any]]) -> list[bytes]:
    """Three lines that are not JSON and one that is not UTF-8."""
    whole = [json.dumps(row, ensure_ascii=False).encode() for row in rows[:2]]
    return [
        whole[0][: len(whole[0]) // 2],
        whole[1].replace(b'"url":', b'"url"', 1),
        b"<html><body><h1>503 Service Unavailable</h1></body></html>",
        '{"id": "web-01-latin1", "lang": "fr", "text": "Un café très à côté."}'.encode("latin-1"),
    ]


def write(path: Path, data: bytes) -> None:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(data, compresslevel=9, mtime=0))
    elif path.suffix == ".zst":
        with pa.CompressedOutputStream(pa.OSFile(str(path), "wb"), "zstd") as sink:
            sink.write(data)
    else:
        path.write_bytes(data)


def write_file(out: Path, file: str, documents: list[Document], rng: random.Random) -> list[tuple[str, ...]]:
    """Writes one file and tells what its rows are: id, kind, language, address of the original."""
    rows = [record(document) for document in documents]
    kinds = [document.kind for document in documents]
    if file == "web-01.jsonl":
        add_odd_texts(rows, kinds, rng)
    for number, row in enumerate(rows):
        row["id"] = f"{file.partition('.')[0]}-{number:05d}"
    add_columns(rows, file)
    lines = [json.dumps(row, ensure_ascii=False).encode() for row in rows]
    if file == "web-01.jsonl":
        for broken in broken_lines(rows[10:12]):
            lines.insert(rng.randrange(20, len(lines) - 60), broken)
    write(out / file, b"\n".join(lines) + b"\n")
    origins = {document.url: document.origin.url for document in documents if document.origin}
    return [(row["id"], kind, row["lang"], origins.get(row["url"], "")) for row, kind in zip(rows, kinds, strict=True)]


def write_credits(path: Path, people: dict[str, set[tuple[str, str]]]) -> None:
    """Everyone whom the pages of GNOME Help name as author, editor or translator."""
    lines = ["# Credits of GNOME Help", "", "As named in the pages of gnome-user-docs 43.0."]
    authors = sorted(who for role, who in people["en"] if role == "author")
    lines += ["", "## Authors and editors", "", ", ".join(authors) + "."]
    for lang in sorted(people):
        translators = sorted(who for role, who in people[lang] if role == "translator")
        if translators:
            lines += ["", f"## Translators ({lang})", "", ", ".join(translators) + "."]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def report(rows: list[tuple[str, ...]], out: Path) -> None:
    for title, column in (("kind", 1), ("language", 2)):
        print(f"\n{title:14} {'records':>8}")
        for value, count in Counter(row[column] for row in rows).most_common():
            print(f"{value:14} {count:8}")
    print(f"\n{'file':20} {'records':>8} {'bytes':>9}")
    for file in FILES:
        count = sum(row[0].startswith(file.partition(".")[0]) for row in rows)
        print(f"{file:20} {count:8} {(out / file).stat().st_size:9}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the demo corpus.")
    parser.add_argument("--sources", type=Path, required=True, help="folder with the unpacked packages")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--kinds", type=Path, help="also write what each record is to this file")
    args = parser.parse_args()
    rng = random.Random(SEED)
    args.out.mkdir(parents=True, exist_ok=True)

    clean, people = prose(args.sources, rng)
    documents = damage(clean, rng)
    documents += copies(documents, rng) + junk(rng)
    files = deal(documents, rng)
    rows = [row for file in FILES for row in write_file(args.out, file, files[file], rng)]
    write_credits(args.out / "CREDITS.md", people)
    if args.kinds:
        args.kinds.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    report(rows, args.out)


if __name__ == "__main__":
    main()
