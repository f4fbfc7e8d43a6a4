"""Makes corpora for the benchmarks of deduplication, of any size, in which all duplicates are known.

Documents are runs of words of the bundled demo corpus (real prose in nine languages that write words apart), about
2.75 KB per line. Of each hundred, 62 are unlike all others, though half of these share menus and footers with others of
their site. The rest are

    exact    copies of another document, two to fifty of them, and one text that one document in fifty is
    pair     two documents that are like no third; their similarity is spread evenly from 0.5 to 1
    star     a document with some near copies, each with changes of its own
    chain    each a near copy of the one before it; the ends have little in common
    form     one text with a few words changed, which one document in fifty is

Near copies have words changed, left out or put in, a passage replaced, an end cut off or added. `truth.parquet` has the
pairs `u`, `v`, their `kind` and true Jaccard similarities: `words` (runs of 5 words) and `chars` (24 characters). A
cluster has a pair for each document beside its first one, with the first (chain: with the one before).
`documents.parquet` has all ids, with kind and cluster. The text depends on the corpus' size and the release of numpy.

What is given up: pairs of two copies in a star or form are not listed, and texts are no sentences that make sense.

    python benchmarks/dedup_corpus.py 5000 [--check]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from corpus import SEED, WORK, sentences

from gristmill.dedup.signatures.minhash import Shingling
from gristmill.dedup.signatures.search_quality import jaccard, similar_pairs

VERSION = 1  # part of the folder's name: raise it when the bytes change
BLOCK = 50_000  # documents that are made at a time
SIZES = (5_000, 50_000, 200_000)
WORDS, CHARS = Shingling("words", 5), Shingling("chars", 24)
UNIQUE, EXACT, PAIR, STAR, CHAIN, FORM = "unique", "exact", "pair", "star", "chain", "form"
SHARES = {EXACT: 0.08, PAIR: 0.20, STAR: 0.04, CHAIN: 0.02}
LARGE = 0.02
"""The share of documents that are one text, and of those that are one form."""

_PIECES = 38  # of about 9 words each; the mean of a document
_LEAST = 14
_NO_SPACES = ("ja", "zh")
_SITES = 200
_FILE_DOCUMENTS = 6_250


def dedup_corpus(documents: int) -> Path:
    """The folder of a corpus, made if it is not there yet: `jsonl/*.jsonl`, `truth.parquet`, `documents.parquet`."""
    folder = WORK / f"dedup-v{VERSION}-{documents}"
    if not (folder / "truth.parquet").exists():
        make(folder, documents)
    return folder


def many_times(documents: int, times: int) -> Path:
    """A corpus several times over, quickly made: all words but the last of a text end with the number of the copy, so
    that documents are like others of their copy alone. What is true of it is not written down."""
    source, folder = dedup_corpus(documents), WORK / f"dedup-v{VERSION}-{documents}x{times}"
    if not folder.exists():
        draft = folder.with_name("draft")
        (draft / "jsonl").mkdir(parents=True, exist_ok=True)
        for number in range(times):
            for path in sorted((source / "jsonl").iterdir()):
                raw = path.read_bytes().replace(b" ", b"%d " % number)
                (draft / "jsonl" / f"{number}-{path.name}").write_bytes(raw)
        draft.rename(folder)
    return folder


def megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in (folder / "jsonl").iterdir()) / 1e6


def make(folder: Path, documents: int) -> None:
    (folder / "jsonl").mkdir(parents=True, exist_ok=True)
    pools = _pools()
    large = _Large(pools)
    truth, about = [], []
    for start in range(0, documents, BLOCK):
        block = _Block(pools, large, start, min(BLOCK, documents - start))
        block.write(folder / "jsonl", files=4 if documents < 20_000 else 8)
        truth.append(block.truth())
        about.append(block.about())
    pq.write_table(pa.concat_tables(about), folder / "documents.parquet")
    pq.write_table(pa.concat_tables(truth), folder / "draft")
    (folder / "draft").rename(folder / "truth.parquet")


# -- text --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pool:
    """Pieces of one language, each twice: with a space after it and with the end of a paragraph."""

    pieces: list[str]
    words: list[str]

    def texts(self, draw: np.random.Generator, count: int) -> list[str]:
        sizes = np.maximum(draw.lognormal(np.log(_PIECES) - 0.245, 0.7, count), _LEAST).astype(np.int64)
        half = len(self.pieces) // 2
        places = draw.integers(0, half, sizes.sum()) + half * (draw.random(sizes.sum()) < 0.08)
        chosen = list(map(self.pieces.__getitem__, places.tolist()))
        ends = np.cumsum(sizes).tolist()
        return ["".join(chosen[end - size : end]).strip() for end, size in zip(ends, sizes.tolist(), strict=True)]


def _pools() -> list[_Pool]:
    pools = []
    for language, found in sorted(sentences().items(), key=lambda item: -len(item[1])):
        if language not in _NO_SPACES:
            words = " ".join(found).split()
            pieces = [" ".join(words[start : start + 9]) for start in range(0, len(words), 9)]
            pools.append(_Pool([f"{one} " for one in pieces] + [f"{one}\n\n" for one in pieces], words))
    return pools


def _change(draw: random.Random, pool: _Pool, text: str, similarity: float) -> str:
    """A copy that is about so similar."""
    words = text.split(" ")
    broken = max((len(words) - 4) * (1 - similarity) / (1 + similarity), 1)  # shingles that each side has alone
    way: Callable[..., list[str]] = draw.choices((_scattered, _passage, _cut, _longer), (5, 2, 1, 1))[0]
    return " ".join(way(draw, pool, words, broken, similarity))


def _scattered(draw: random.Random, pool: _Pool, words: list[str], broken: float, _: float) -> list[str]:
    words = list(words)
    for place in draw.sample(range(len(words)), min(max(round(broken / 4.7), 1), len(words))):
        new = draw.choice(pool.words)
        words[place] = draw.choices((new, "", f"{words[place]} {new}"), (6, 2, 2))[0]
    return [word for word in words if word]


def _passage(draw: random.Random, pool: _Pool, words: list[str], broken: float, _: float) -> list[str]:
    size = max(round(broken) - 4, 1)
    start = draw.randrange(max(len(words) - size, 1))
    return words[:start] + _fresh(draw, pool, size) + words[start + size :]


def _cut(_draw: random.Random, _pool: _Pool, words: list[str], _: float, similarity: float) -> list[str]:
    return words[: min(round((len(words) - 4) * similarity) + 4, len(words) - 1)]


def _longer(draw: random.Random, pool: _Pool, words: list[str], _: float, similarity: float) -> list[str]:
    return words + _fresh(draw, pool, max(round((len(words) - 4) * (1 / similarity - 1)), 1))


def _fresh(draw: random.Random, pool: _Pool, size: int) -> list[str]:
    words: list[str] = []
    while len(words) < size:
        words += draw.choice(pool.pieces).split()
    return words[:size]


# -- documents -----------------------------------------------------------------------------------------------


class _Large:
    """The texts that the largest clusters are of, in all blocks, and what sites put around theirs."""

    def __init__(self, pools: list[_Pool]) -> None:
        draw = np.random.default_rng(SEED)
        self.texts = {EXACT: pools[0].texts(draw, 1)[0], FORM: max(pools[0].texts(draw, 50), key=len)}
        self.first: dict[str, str] = {}
        """The id of the first document of each, once there is one."""
        around = pools[0].texts(draw, _SITES)
        self.sites = [(text[: len(text) // 3].strip(), text[len(text) // 3 :].strip()) for text in around]


@dataclass
class _Block:
    """Some documents, and the pairs among them."""

    pools: list[_Pool]
    large: _Large
    start: int
    count: int
    texts: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    clusters: list[int] = field(default_factory=list)
    pairs: list[tuple[int, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draw = random.Random(f"{SEED} {self.start} {self.count}")
        self.numbers = np.random.default_rng([SEED, self.start, self.count])
        self._number = 2  # 0 and 1 are the large clusters
        self._bases = self._texts()
        self._largest()
        for kind, share in SHARES.items():
            end = len(self.texts) + int(share * self.count)
            while len(self.texts) < end:
                self._cluster(kind, end - len(self.texts))
        while len(self.texts) < self.count:
            self._add(self._around(next(self._bases)[1]), UNIQUE, -1)
        order = self.numbers.permutation(self.count)
        self.ids = [f"doc-{self.start + int(place):09}" for place in order]
        for number, kind in enumerate((EXACT, FORM)):
            self.large.first.setdefault(kind, self.ids[self.clusters.index(number)])

    def _texts(self) -> Iterator[tuple[_Pool, str]]:
        """Texts without end, three in four of the first language."""
        while True:
            some = self.numbers.choice(len(self.pools), 4096, p=self._weights())
            made = [iter(pool.texts(self.numbers, int((some == one).sum()))) for one, pool in enumerate(self.pools)]
            yield from ((self.pools[one], next(made[one])) for one in some.tolist())

    def _weights(self) -> list[float]:
        others = len(self.pools) - 1
        return [0.75, *[0.25 / others] * others]

    def _add(self, text: str, kind: str, cluster: int) -> int:
        self.texts.append(text)
        self.kinds.append(kind)
        self.clusters.append(cluster)
        return len(self.texts) - 1

    def _around(self, text: str) -> str:
        """Half of the texts get what their site has above and below them, if that is no more than their own."""
        before, after = self.large.sites[int(self.draw.random() * _SITES)]
        fits = len(before) + len(after) < len(text)
        return f"{before}\n\n{text}\n\n{after}" if fits and self.draw.random() < 0.8 else text

    def _largest(self) -> None:
        for number, (kind, text) in enumerate(self.large.texts.items()):
            for place in range(int(LARGE * self.count)):
                first = not place and not self.start
                similarity = self.draw.uniform(0.85, 0.97)
                same = first or kind == EXACT
                self._add(text if same else self._few(text, similarity), kind, number)

    def _few(self, text: str, similarity: float) -> str:
        words = text.split(" ")
        broken = (len(words) - 4) * (1 - similarity) / (1 + similarity)
        return " ".join(_scattered(self.draw, self.pools[0], words, broken, similarity))

    def _cluster(self, kind: str, room: int) -> None:
        pool, text = next(self._bases)
        size = min(self._size(kind), max(room, 2))
        base = self._add(text, kind, self._number)
        for _ in range(size - 1):
            if kind == EXACT:
                similarity, copy = 1.0, text
            else:
                similarity = self.draw.uniform(*{PAIR: (0.47, 1.0), STAR: (0.7, 1.0), CHAIN: (0.85, 0.97)}[kind])
                copy = _change(self.draw, pool, text, similarity)
            place = self._add(copy, kind, self._number)
            self.pairs.append((base, place, kind))
            if kind == CHAIN:
                base, text = place, copy
        self._number += 1

    def _size(self, kind: str) -> int:
        if kind == PAIR:
            return 2
        least, most, slope = {EXACT: (2, 50, 1.2), STAR: (3, 30, 1.2), CHAIN: (3, 20, 0.9)}[kind]
        return min(most, least - 1 + int(self.draw.paretovariate(slope)))

    # -- what is written -------------------------------------------------------------------------------------

    def write(self, folder: Path, files: int) -> None:
        ordered = sorted(zip(self.ids, self.texts, strict=True))
        step = -(-len(ordered) // files)
        for start in range(0, len(ordered), step):
            number = self.start // _FILE_DOCUMENTS + start // step
            with open(folder / f"part-{number:03}.jsonl", "wb") as file:
                file.writelines(map(_line, ordered[start : start + step]))

    def truth(self) -> pa.Table:
        u, v, kinds = map(list, zip(*self.pairs, strict=True))
        left, right = (pa.array([self.texts[one] for one in side]) for side in (u, v))
        table = pa.table(
            {
                "u": [self.ids[one] for one in u],
                "v": [self.ids[one] for one in v],
                "kind": kinds,
                "words": jaccard(left, right, WORDS),
                "chars": jaccard(left, right, CHARS),
            }
        )
        return pa.concat_tables([table, *(self._of_large(*one) for one in enumerate((EXACT, FORM)))])

    def _of_large(self, number: int, kind: str) -> pa.Table:
        first = self.large.first[kind]
        all_of_it = [place for place, cluster in enumerate(self.clusters) if cluster == number]
        members = [place for place in all_of_it if self.ids[place] != first]
        right = pa.array([self.texts[one] for one in members], pa.string())
        left = pa.array([self.large.texts[kind]] * len(members), pa.string())
        return pa.table(
            {
                "u": pa.array([first] * len(members), pa.string()),
                "v": pa.array([self.ids[one] for one in members], pa.string()),
                "kind": pa.array([kind] * len(members), pa.string()),
                "words": jaccard(left, right, WORDS),
                "chars": jaccard(left, right, CHARS),
            }
        )

    def about(self) -> pa.Table:
        clusters = np.array(self.clusters, np.int64)
        own = clusters > 1
        clusters[own] += self.start  # numbers of one block are fewer than its documents
        return pa.table({"id": self.ids, "kind": self.kinds, "cluster": clusters}).sort_by("id")


def _line(row: tuple[str, str]) -> bytes:
    name, text = row
    number = int(name[4:])
    record = {"id": name, "url": f"https://site-{number * 7919 % 5000}.example/{number}", "text": text}
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


# -- the command ---------------------------------------------------------------------------------------------


def check(folder: Path, least: float = 0.5) -> dict[str, int]:
    """Compares all documents with each other: pairs from `least` on, and those that are of no cluster."""
    lines = (line for path in sorted((folder / "jsonl").iterdir()) for line in path.read_bytes().splitlines())
    records = [orjson.loads(line) for line in lines]
    about = pq.read_table(folder / "documents.parquet")
    cluster = dict(zip(about["id"].to_pylist(), about["cluster"].to_pylist(), strict=True))
    of = np.array([cluster[record["id"]] for record in records])
    pairs = similar_pairs(pa.array([record["text"] for record in records]), least, WORDS)
    u, v = (of[pairs[name].to_numpy()] for name in ("u", "v"))
    return {"documents": len(records), "pairs": len(pairs), "by_accident": int(((u != v) | (u < 0)).sum())}


def describe(folder: Path) -> dict[str, Any]:
    truth, about = (pq.read_table(folder / f"{name}.parquet") for name in ("truth", "documents"))
    words = truth.filter(pa.array(np.array(truth["kind"]) == PAIR))["words"].to_numpy()
    bins = np.histogram(words, [0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01])[0]
    kinds = {str(one["values"]): one["counts"] for one in about["kind"].value_counts().to_pylist()}
    return {
        "documents": len(about),
        "megabytes": round(megabytes(folder), 1),
        "kinds": kinds,
        "pairs": len(truth),
        "alone_by_tenth": dict(zip(("below", "0.5", "0.6", "0.7", "0.8", "0.9"), bins.tolist(), strict=True)),
        "largest": max(one["counts"] for one in about["cluster"].value_counts().to_pylist() if one["values"] >= 0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("documents", type=int, nargs="*", default=SIZES)
    parser.add_argument("--check", action="store_true", help="look for duplicates that were not meant: small ones only")
    options = parser.parse_args()
    for documents in options.documents:
        folder = dedup_corpus(documents)
        print(folder, describe(folder), check(folder) if options.check else "", sep="\n")


if __name__ == "__main__":
    main()
