"""Files of fastText models with random weights, byte by byte."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

import numpy as np

WORDS = ["</s>", "the", "of", "и", "größe", "人", "a", "rights", "<b>", "__label__seen", "x" * 60]


@dataclass
class Recipe:
    """What a model is like. `cutoff` is how many buckets have a row; None: all."""

    loss: int = 1
    dim: int = 8
    labels: int = 7
    bucket: int = 500
    least: int = 2
    most: int = 4
    run: int = 1
    piece: int = 0  # numbers that share a byte; 0: not quantised
    scaled: bool = False
    output_too: bool = False
    cutoff: int | None = None
    words: tuple[str, ...] = tuple(WORDS)
    seed: int = 1


def model_bytes(recipe: Recipe) -> bytes:
    draw = np.random.default_rng(recipe.seed)
    buckets = recipe.bucket if recipe.cutoff is None else recipe.cutoff
    rows = len(recipe.words) + (buckets if recipe.most > 0 or recipe.run > 1 else 0)
    numbers = (recipe.dim, 5, 5, 1, 5, recipe.run, recipe.loss, 3, recipe.bucket, recipe.least, recipe.most, 100, 1e-4)
    parts = [struct.pack("<ii12id", 793712314, 12, *numbers), dictionary(recipe)]
    parts += [struct.pack("?", recipe.piece > 0), matrix(draw, rows, recipe, recipe.piece > 0)]
    parts += [struct.pack("?", recipe.output_too), matrix(draw, recipe.labels, recipe, recipe.output_too)]
    return b"".join(parts)


def dictionary(recipe: Recipe) -> bytes:
    pruned = -1 if recipe.cutoff is None else recipe.cutoff
    size = len(recipe.words) + recipe.labels
    head = struct.pack("<iiiqq", size, len(recipe.words), recipe.labels, 1000, pruned)
    words = [word.encode() + struct.pack("<xqb", 50, 0) for word in recipe.words]
    labels = [f"__label__l{i}".encode() + struct.pack("<xqb", 1000 // (i + 1), 1) for i in range(recipe.labels)]
    left = random.Random(recipe.seed).sample(range(recipe.bucket), max(0, pruned))
    pairs = [struct.pack("<ii", bucket, row) for row, bucket in enumerate(left)]
    return b"".join([head, *words, *labels, *pairs])


def matrix(draw: np.random.Generator, rows: int, recipe: Recipe, quantised: bool) -> bytes:
    if not quantised:
        return struct.pack("<qq", rows, recipe.dim) + draw.normal(size=(rows, recipe.dim)).astype("<f4").tobytes()
    pieces = -(-recipe.dim // recipe.piece)
    head = struct.pack("<?qqi", recipe.scaled, rows, recipe.dim, rows * pieces)
    parts = [head, draw.bytes(rows * pieces), centroids(draw, recipe.dim, recipe.piece)]
    if recipe.scaled:
        parts += [draw.bytes(rows), centroids(draw, 1, 1)]
    return b"".join(parts)


def centroids(draw: np.random.Generator, dim: int, piece: int) -> bytes:
    pieces = -(-dim // piece)
    head = struct.pack("<4i", dim, pieces, piece, dim - piece * (pieces - 1))
    return head + draw.normal(size=dim * 256).astype("<f4").tobytes()
