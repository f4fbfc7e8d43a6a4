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
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from prose import NO_SPACES, SENTENCE, Document, jaccard, prose, shingles, words

if TYPE_CHECKING:
    from collections.abc import Callable

SEED = 20240229

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
