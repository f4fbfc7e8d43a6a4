"""Feeds a build of the kernels with random bytes for some seconds: `python fuzz.py EXTENSION SECONDS SEED`.

Run by test_sanitized.py, under AddressSanitizer and UndefinedBehaviorSanitizer. Each document lies in memory of exactly
its size, so that a read of one byte too many is seen.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import importlib.util
import json
import random
import struct
import sys
import tempfile
import time
from functools import cache
from itertools import pairwise
from typing import Any

import pyarrow as pa

NGRAMS = [f"{family}_ngram_{n}" for family in ("top", "repeated_top", "duplicate") for n in (1, 2, 3, 7, 32)]
NGRAMS += [f"{family}_lexeme_ngram_{n}" for family in ("top", "duplicate") for n in (1, 5, 32)]
PLAIN = ["chars", "words", "distinct_lines", "distinct_paragraph_chars", "boilerplate_paragraphs", "url_chars"]
PLAIN += ["lexemes", "hashes", "short_lines_0", "short_lines_255"]
PIECES = [
    b"a", b"the", b"http://", b"https://a%2", b"%41", b"porn", b"#", b"#a#", b"...", b"[\xe2\x80\xa6]", b"\xe2\x80\xa2",
    b"privacy policy", b"uses coo\xe2\x84\xaaies", b"lorem ipsum", b"necessary cookies are", b"read more", b"-\xc2\xbb",
    b"\n", b"\n\n", b" ", b"\t", b"\xc2\xa0", b"\xe3\x80\x80", b"\xf0\x9f\x98\x80", b"\xe2", b"\xe2\x80",
    b"\xf0\x9f\x98", b"\x80", b"\xff", b"\xc0", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\0", b"abcdefgh", b"abcdefghi",
    b"don't", b"e.g.", b"..", b"(", b")", b"x@y.org/", b"64-", b"--", b"\xe2\x80\x99s", b"\xe2\x80\xa8", b"\r", b"a.B",
    b"{", b'"', b"\\", b"</s>", b"__label__0", b"__label__",
    b"\xe4\xb8\xad", b"\xe4\xb8\xada", b"\xe4\xb8", b"\xe0\xb8\x81", b"\xf0\xa0\x80\x80", b"\xf0\xa0\x80",
]  # fmt: skip


def load(path: str) -> Any:
    loader = importlib.machinery.ExtensionFileLoader("_kernels", path)
    spec = importlib.util.spec_from_loader("_kernels", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def exactly(data: bytes) -> pa.Buffer:
    memory = (ctypes.c_char * max(len(data), 1)).from_buffer_copy(data or b"\0")
    return pa.foreign_buffer(ctypes.addressof(memory), len(data), memory)


@cache
def fates(seed: int) -> bytes:
    """What becomes of each character, at random, but never more bytes than it has."""
    draw = random.Random(seed)
    ascii_ = draw.choices([0x41, 0x20, 0xFFFFFFFF, 0xFFFFFFFE], [9, 3, 1, 0.02], k=0x80)
    others = [draw.choice([code, 0x20, 0x41, 0xFFFFFFFF]) for code in range(0x80, 0x3100)]
    return struct.pack(f"{0x3100}I", *ascii_, *others)


def sketch(kernels: Any, draw: random.Random, texts: pa.Array, how: tuple[str, int, int]) -> None:
    """Sketches, pairs of them, and sets that are whole and damaged."""
    nodes = struct.pack(f"{len(texts)}q", *range(len(texts)))
    cut = (draw.choice([0, 1, 7]), draw.choice([1, 3]), draw.random() < 0.5, draw.choice([1, 1024]))
    _, entries, _, ends, bodies, leasts = kernels.sketch(texts, nodes, *how, *cut, draw.randrange(3))
    kernels.entry_pairs(entries, draw.choice([1, 8]))
    *_, ends, bodies, leasts = kernels.sketch(texts, nodes, *how, 0, 1, False, 1, 1)
    stops = struct.unpack(f"{len(leasts) // 8 + 1}q", ends)
    sets = [bodies[start:end] for start, end in pairwise(stops)]
    column = pa.array(sets, pa.binary())
    rows = struct.pack(f"{len(column)}q", *range(len(column)))
    kernels.set_jaccard(
        column, rows, column.slice(0), b"".join(rows[at : at + 8] for at in range(0, len(rows), 8)[::-1])
    )
    for raw in sets[:2]:
        damaged = bytearray(raw[: draw.randrange(len(raw) + 1)] if draw.random() < 0.5 else raw)
        for _ in range(draw.randrange(4)):
            if damaged:
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        one = pa.Array.from_buffers(
            pa.binary(), 1, [None, pa.py_buffer(struct.pack("2i", 0, len(damaged))), exactly(bytes(damaged))]
        )
        with contextlib.suppress(ValueError):
            kernels.set_jaccard(one, bytes(16), pa.array([raw], pa.binary()), bytes(16))
    edges = struct.pack("8q", *(draw.randrange(5) for _ in range(8)))
    kernels.forest(edges[:32], edges[32:])


def deduplicate(kernels: Any, draw: random.Random, texts: pa.Array) -> None:
    """All kernels of deduplication, once."""
    how = (draw.choice(["chars", "words"]), draw.choice([1, 2, 5, 24, 300]), draw.getrandbits(64))
    other = pa.concat_arrays([texts.slice(len(texts) // 2), texts.slice(0, len(texts) // 2)])
    kernels.hash128(texts, how[2])
    kernels.hash128(texts.cast(pa.binary() if texts.type == pa.string() else pa.large_binary()), 0)
    kernels.normalise(texts, exactly(fates(draw.randrange(3))), draw.random() < 0.5, draw.random() < 0.9)
    kernels.minhash(texts, *how, draw.choice([1, 3, 64, 260]), draw.random() < 0.5)
    kernels.simhash(texts, *how)
    kernels.jaccard(texts, other, *how)
    kernels.word_distances(texts, other)
    sketch(kernels, draw, texts, how)
    kernels.similar_pairs(texts, *how, draw.random())
    kernels.repeated_spans(texts, draw.choice([1, 2, 7, 50]))
    kernels.repeated_spans(texts.cast(pa.binary() if texts.type == pa.string() else pa.large_binary()), 7)
    kernels.anchors(texts, *draw.choice([(1, 1), (2, 1), (7, 3), (50, 25), (50, 50)]))
    lengths = struct.pack("3q", 1, how[1], draw.choice([2, 13]))
    every = kernels.ngram_hits(texts, lengths, b"", how[2])
    some = b"".join(every[at + 16 : at + 24] for at in range(0, len(every), 24 * draw.choice([1, 3])))
    kernels.ngram_hits(texts, lengths, kernels.ngram_table(some), how[2])
    size = draw.choice([1, 4, 8, 15, 16, 17, 52])
    kernels.hash_pieces(
        exactly(draw.randbytes(size * draw.randrange(6))), size, draw.randrange(1, 4), 0, draw.choice([8, 16])
    )
    edges = draw.randrange(30)
    nodes = [struct.pack(f"{edges}q", *(draw.randrange(20) for _ in range(edges))) for _ in range(2)]
    kernels.components(*map(exactly, nodes))
    bits = (ctypes.c_char * (8 * draw.randrange(1, 9)))()
    kernels.bloom(bits, exactly(draw.randbytes(16 * draw.randrange(9))), draw.randrange(1, 20), draw.random() < 0.8)
    width = draw.choice([8, 16, 20])
    keys = exactly(
        b"".join(draw.choices([bytes(width), draw.randbytes(width), draw.randbytes(width)], k=draw.randrange(40)))
    )
    kernels.repeated(keys, width)
    partitions = kernels.hash_partitions(keys, width, draw.choice([1, 7, 2**20, 2**32 - 1]))
    kernels.by_number(memoryview(exactly(b"x" + partitions))[1:])


def fasttext(kernels: Any, draw: random.Random, texts: pa.Array) -> None:
    """A model of random numbers, of which some may be wrong, and what it says of the texts."""
    words, labels, dim = draw.randrange(4), draw.randrange(1, 6), draw.choice([1, 3, 4, 16, 19])
    bucket, pruned = draw.choice([1, 7, 64, 65]), draw.random() < 0.5
    left = sorted(draw.sample(range(bucket), draw.randrange(bucket + 1))) if pruned else []
    blocks = [[one - 64 * block for one in left if one // 64 == block] for block in range(-(-bucket // 64))]
    bits = [sum(1 << one for one in block) for block in blocks]
    ranks = [sum(map(len, blocks[:block])) for block in range(len(blocks))]
    rows = words + (len(left) if pruned else bucket)
    free, tree = list(range(labels)), []
    for node in range(labels, 2 * labels - 1):
        tree += [free.pop(draw.randrange(len(free))) for _ in range(2)]
        free.append(node)
    weights = struct.pack(f"{rows * dim}f", *(draw.gauss(0, draw.choice([1, 1e30])) for _ in range(rows * dim)))
    buffers = [
        memoryview(exactly(b"x" + weights))[1:],  # a matrix may lie anywhere in a file
        exactly(struct.pack(f"{len(bits)}Q", *bits) if pruned else b""),
        exactly(struct.pack(f"{len(ranks)}I", *ranks) if pruned else b""),
        exactly(struct.pack(f"{len(left)}i", *range(len(left)))),
        exactly(struct.pack(f"{labels * dim}f", *(draw.gauss(0, 1) for _ in range(labels * dim)))),
        exactly(struct.pack(f"{labels}f", *(draw.gauss(1, 1) for _ in range(labels)))),
        exactly(struct.pack(f"{len(tree)}i", *tree)),
    ]
    names = [
        *draw.sample([b"a", b"the", b"</s>", b"", b"abcdefgh"], words),
        *(b"__label__%d" % i for i in range(labels)),
    ]
    numbers = [dim, words, bucket, draw.randrange(4), draw.choice([0, 1, 4, 9]), draw.choice([1, 2, 5])]
    numbers += [draw.randrange(1, 5), int(pruned)]
    if draw.random() < 0.3:
        at = draw.randrange(len(numbers))
        numbers[at] = draw.choice([-1, 0, 1, numbers[at] + 1, 2**31, 2**62])
    if draw.random() < 0.3:
        at = draw.randrange(len(buffers))
        buffers[at] = exactly(
            draw.randbytes(len(buffers[at]) - draw.choice([0, 0, 1, 4]) if len(buffers[at]) > 4 else 4)
        )
    with contextlib.suppress(ValueError):
        model = kernels.fasttext_open(pa.array(names, pa.binary()), tuple(numbers), tuple(buffers))
        for label in (-1, 0, -1, labels - 1):
            kernels.fasttext_predict(model, texts, label)
        ends, found = kernels.fasttext_rows(model, texts)
        fit(kernels, draw, [ends, found, rows, labels, dim])


def fit(kernels: Any, draw: random.Random, sizes: list[Any]) -> None:
    """Training on the rows of texts, and sums of rows; some numbers may be wrong."""
    ends, found, rows, labels, dim = sizes
    texts = len(ends) // 8
    wanted = struct.pack(f"{texts}i", *(draw.randrange(labels + (draw.random() < 0.02)) for _ in range(texts)))
    matrices = [(ctypes.c_char * (4 * size * dim))() for size in (max(0, rows - draw.choice([0, 0, 1])), labels)]
    with contextlib.suppress(ValueError):
        given = (exactly(ends), exactly(found), exactly(wanted))
        kernels.fasttext_fit(given, tuple(matrices), (dim, 2, draw.randrange(9)), 0.5)
    starts = struct.pack("4q", 0, 1, 1, 1 + draw.randrange(4))
    tokens = struct.pack("4i", *(draw.randrange(max(1, rows)) for _ in range(4)))
    words = struct.pack("5i", *(draw.randrange(3 + (draw.random() < 0.1)) for _ in range(5)))
    text_ends = struct.pack("3q", 0, draw.randrange(5), draw.choice([5, 5, 6]))
    with contextlib.suppress(ValueError):
        lists = (exactly(tokens), exactly(starts)), (exactly(words), exactly(text_ends))
        kernels.token_sums(exactly(bytes(4 * rows * dim)), *lists, dim)


def stop_words(kernels: Any, draw: random.Random) -> None:
    text = document(draw).decode("utf-8", draw.choice(["ignore", "surrogateescape"]))
    words = frozenset(draw.sample([*text.lower().split(), "", "The", "a" * 40], 2))
    table = draw.choice([kernels.stop_table(words), draw.randbytes(16 * draw.choice([1, 2, 3])), b""])
    with contextlib.suppress(ValueError):
        kernels.stop_words(table, words, text)


def document(draw: random.Random) -> bytes:
    kind = draw.random()
    if kind < 0.1:
        return draw.randbytes(draw.randrange(300))
    pieces = draw.sample(PIECES, draw.randrange(1, len(PIECES)))
    text = b"".join(draw.choices(pieces, k=draw.randrange(400 if kind < 0.2 else 40)))
    return text[draw.randrange(4) : len(text) - draw.randrange(4)]


def lines(draw: random.Random) -> bytes:
    """JSON lines, as a rule with some damage."""
    texts = ["a", "é😀", 'q"\\\n\x01', "x" * draw.randrange(40), None, 1.5, [1, {"k": "]"}], True]
    values = [draw.choice(texts[:5]) for _ in range(draw.randrange(4))] if draw.random() < 0.7 else texts
    keys = draw.sample(["a", "text", "é", 'q"', ""], 2)
    rows = [json.dumps({keys[0]: value, keys[1]: "t", "n": number}) for number, value in enumerate(values)]
    if draw.random() < 0.5:
        rows += [json.dumps({key: "late"}, ensure_ascii=draw.random() < 0.5) for key in draw.sample(keys, 1)]
        draw.shuffle(rows)
    block = bytearray("\n".join(rows).encode())
    for _ in range(draw.randrange(3) if block else 0):
        place = draw.randrange(len(block) + 1)
        block[place : place + draw.randrange(3)] = draw.choice([*PIECES, b"\\u", b"\\ud800", b"}", b":", b",", b""])
    return bytes(block[: draw.randrange(len(block) + 1)] if draw.random() < 0.2 else block)


def column(draw: random.Random) -> pa.Array:
    documents = [document(draw) for _ in range(draw.choice([0, 1, 2, 3, 4, 5, 25]))]
    if documents and draw.random() < 0.3:
        documents = documents[-1:]  # its end is the end of the memory
    ends = [0]
    for one in documents:
        ends.append(ends[-1] + len(one))
    wide = draw.random() < 0.5
    offsets = exactly(struct.pack(f"{len(ends)}{'q' if wide else 'i'}", *ends))
    validity = exactly(draw.randbytes(len(documents) // 8 + 1)) if draw.random() < 0.3 else None
    kind = pa.large_string() if wide else pa.string()
    array = pa.Array.from_buffers(kind, len(documents), [validity, offsets, exactly(b"".join(documents))])
    return array.slice(draw.randrange(3)) if draw.random() < 0.3 else array


def json_file(kernels: Any, draw: random.Random, block: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(block * draw.choice([1, 1, 1, 2**19 // (len(block) + 1)]))
        if draw.random() < 0.2:
            file.write(b'{"a":"%s"}\n' % (b"x" * draw.choice([2**18 - 10, 2**18, 700_000])))
        file.flush()
        size = file.tell()
        start = draw.randrange(size + 1)
        kernels.json_columns_of(file.fileno(), start, draw.choice([size - start, size, 100]), draw.random() < 0.5)


def main(path: str, seconds: str, seed: str) -> None:
    kernels, draw = load(path), random.Random(int(seed))
    end, rounds = time.monotonic() + float(seconds), 0
    while time.monotonic() < end or rounds < 60:  # a busy machine needs longer
        texts = column(draw)
        how = (draw.choice(["", ".!x\u3002"]), draw.choice([0, 3]), draw.choice([-1, 7]), draw.random() < 0.5)
        kernels.clean_lines(texts, (*how, (b"policy", b"the")))
        kernels.measure_lines(texts, (*how, (b"lorem ipsum", b"a", b"the")), draw.random() < 0.5)
        names = draw.choice([PLAIN, NGRAMS, [*PLAIN, *NGRAMS], PLAIN[:1], NGRAMS[:1], ["letters", "capitals"]])
        mask = pa.array([draw.random() < 0.5 for _ in range(len(texts))], pa.bool_()) if draw.random() < 0.3 else None
        kernels.text_stats(texts, mask, tuple(names))
        kernels.json_lines(((b'{"a":', texts, draw.random() < 0.5), (b',"b":', texts, False)))
        kernels.json_wide(draw.random() < 0.5)
        kernels.json_columns(exactly(lines(draw)))
        block = bytearray(lines(draw))
        json_file(kernels, draw, bytes(block))
        kernels.tidy_json((ctypes.c_char * len(block)).from_buffer_copy(block))
        kernels.keep_lines(block, draw.randbytes(block.count(b"\n") // 8 + 1), block.count(b"\n"), 0)
        deduplicate(kernels, draw, texts)
        fasttext(kernels, draw, texts)
        stop_words(kernels, draw)
        rounds += 1
    print(rounds)


if __name__ == "__main__":
    main(*sys.argv[1:])
