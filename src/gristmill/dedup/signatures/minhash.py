"""MinHash signatures: a few hundred numbers per document, from which the similarity of two documents is estimated.

The share of equal numbers of two signatures is an unbiased estimate of the Jaccard similarity of the documents' sets of
shingles. Each shingle is hashed once (several times in short documents), whatever the size of the signature. Blank
documents and null have no signature, and are never similar to another.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gristmill.core.arrow.native_kernels import kernels
from gristmill.core.fast_dataclass import fast_dataclass
from gristmill.dedup.columns import kernel_reference as reference
from gristmill.dedup.columns.arrow_numpy import Column, Numbers, as_one_array, as_text, flags, from_numbers, numbers

SIZE = 260


@fast_dataclass(frozen=True)
class Shingling:
    """How documents are cut into shingles: runs of `n` characters, or of `n` words.

    A shorter document is one shingle. In scripts without spaces each character is a word.
    """

    unit: str = "chars"
    n: int = 24
    seed: int = 42

    def __post_init__(self) -> None:
        if self.unit not in ("chars", "words"):
            raise ValueError(f"unit={self.unit!r} must be 'chars' or 'words'")
        if self.n < 1:
            raise ValueError(f"n={self.n} must be 1 or more {self.unit}")

    def shingles(self, text: str) -> Numbers:
        """The shingles of a text as numbers, in order, with repetitions."""
        return reference.shingles(text, self.unit, self.n, self.seed)


def signatures(
    column: Column, shingling: Shingling | None = None, size: int = SIZE, bits: int = 32
) -> pa.FixedSizeListArray:
    """A signature of `size` numbers for each text; null for blank texts.

    32-bit numbers are the upper halves of the 64-bit ones; those of different shingles collide once in four billion.
    """
    if bits not in (32, 64):
        raise ValueError(f"bits={bits} is neither 32 nor 64")
    if not 1 <= size <= 2**20:
        raise ValueError(f"size={size} is not between 1 and {2**20}")
    how, texts = shingling or Shingling(), as_text(column)
    if kernels is not None:
        data, bitmap = kernels.minhash(texts, how.unit, how.n, how.seed, size, bits == 64)
    else:
        data, bitmap = _slowly(texts, how, size, bits)
    number = pa.uint64() if bits == 64 else pa.uint32()
    values = pa.Array.from_buffers(number, len(texts) * size, [None, pa.py_buffer(data)])
    return pa.Array.from_buffers(pa.list_(number, size), len(texts), [pa.py_buffer(bitmap)], children=[values])


def _slowly(texts: pa.Array, how: Shingling, size: int, bits: int) -> tuple[bytes, bytes]:
    found = np.zeros((len(texts), size), np.uint64)
    present = np.zeros(len(texts), np.bool_)
    for row, text in enumerate(texts.to_pylist()):
        shingles = how.shingles(text or "")
        present[row] = len(shingles) > 0
        if len(shingles):
            found[row] = reference.signature(shingles, size)
    if bits == 32:
        found = (found >> np.uint64(32)).astype(np.uint32)
    return found.tobytes(), np.packbits(present, bitorder="little").tobytes()


def signature_matrix(column: Column) -> Numbers:
    """Signatures as a numpy matrix, a row each; rows of null signatures are undefined."""
    array = as_one_array(column)
    size = array.type.list_size
    return numbers(array.values.slice(array.offset * size, len(array) * size)).reshape(len(array), size)


def similarity(left: Column, right: Column) -> pa.DoubleArray:
    """The estimated Jaccard similarity of each pair of signatures; 0 where one of them is null."""
    one, other = as_one_array(left), as_one_array(right)
    found = np.zeros(len(one), np.float64)
    first, second, step = signature_matrix(one), signature_matrix(other), 4096
    for start in range(0, len(one), step):
        part = slice(start, start + step)
        found[part] = (first[part] == second[part]).mean(axis=1)
    for array in (one, other):
        if array.null_count:
            found[flags(array.is_null())] = 0.0
    return from_numbers(found)
