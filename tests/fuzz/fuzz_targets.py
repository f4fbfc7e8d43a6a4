"""What is fuzzed: for each kind of file a corpus of small real ones, and what reads them as users do.

A check raises for anything but a clear refusal: an error of Gristmill's own, or a record in quarantine. It returns how
many records were read and how many were set aside.
"""

from __future__ import annotations

import bz2
import gzip
import io
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

from gristmill import LocalExecutor, Pipeline
from gristmill.core.errors import GristmillError
from gristmill.core.records.run_directory import Run
from gristmill.download import DocxExtractor, EpubExtractor, PdfExtractor, WarcReader
from gristmill.download.arxiv.arxiv_papers import ArxivExtractor, ArxivIterator
from gristmill.download.source_interfaces import DocumentExtractor, DocumentIterator
from gristmill.download.wiki.wikipedia import WikipediaExtractor, WikipediaIterator
from gristmill.image import (
    ImageDirectoryReader,
    ImageDirectoryWriter,
    ImageResolutionFilter,
    ImageScoreFilter,
    WebDatasetReader,
)
from gristmill.io.storage.file_input import BadRecord
from gristmill.models.fasttext_model import FastTextModel
from gristmill.text import ArrowReader, CsvReader, JsonlReader, JsonlWriter, ParquetReader, TextReader
from gristmill.view.data.row_sets import RunOrDataset
from tests.download.test_pdf_docx_epub import docx, epub, pdf
from tests.download.test_wikipedia import streams
from tests.download.warc_fixtures import english, write_warc, write_wet
from tests.fuzz.media_targets import media_targets
from tests.image.image_fixtures import archive, encoded, samples
from tests.io.test_line_blocks import zstd
from tests.models.fasttext_fixtures import Recipe, model_bytes

Check = Callable[[Path, Path], tuple[int, int]]
"""Reads a file, with a folder to write to: records read, records set aside."""

ROWS = [{"id": number, "text": f'text {number} é 人 "q"\n' * (number % 4), "n": [number, None]} for number in range(40)]


class Wrong(Exception):
    """Something was lost without a word, or failed without a reason."""


@dataclass(frozen=True)
class Target:
    """A kind of file. In one that is `framed`, an end that is missing is known to be missing."""

    name: str
    suffix: str
    corpus: Callable[[Path], Sequence[bytes]]
    check: Check
    framed: bool = False


def _run(stages: Sequence[Any], out: Path) -> tuple[int, int]:
    """A pipeline: what its readers gave, and what is in quarantine. The run itself checks that rows add up."""
    result = Pipeline("fuzz", stages=list(stages)).run(LocalExecutor(num_workers=0), max_errors=None)
    summary = result.summary()
    first = next(line for line in summary.stages if line.rows_out or line.quarantined or line is summary.stages[-1])
    aside = result.quarantined()
    if len(aside) > summary.quarantined or (summary.quarantined and not aside):  # one may stand for a block of rows
        raise Wrong(f"{summary.quarantined} records in quarantine by the summary, {len(aside)} by its files")
    written = sum(file.read_bytes().count(b"\n") for file in out.rglob("*.jsonl") if "_gristmill" not in file.parts)
    if isinstance(stages[-1], JsonlWriter) and written + summary.quarantined < first.rows_out:
        raise Wrong(f"{first.rows_out} rows were read, {written} written and {summary.quarantined} set aside")
    return first.rows_out, len(aside)


def _read(reader: Callable[..., Any], path: Path, folder: Path, **options: Any) -> tuple[int, int]:
    return _run([reader(str(path), **options), JsonlWriter(str(folder / "out"))], folder / "out")


def _lines(path: Path, folder: Path) -> tuple[int, int]:
    """JSON lines: each line that is not blank is a row or in quarantine."""
    read, aside = _read(JsonlReader, path, folder)
    data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    lines = sum(1 for line in data.split(b"\n") if line.strip(b" \t\r"))
    if path.suffix == ".jsonl" and read + aside != lines and b"\0" not in data:
        raise Wrong(f"{lines} lines, but {read} rows and {aside} in quarantine")
    return read, aside


def _images(reader: Callable[..., Any], path: Path, folder: Path) -> tuple[int, int]:
    stages = [reader(str(path)), ImageScoreFilter(ImageResolutionFilter(1)), ImageDirectoryWriter(str(folder / "out"))]
    return _run(stages, folder / "out")


def _extract(extractor: DocumentExtractor, path: Path, _: Path) -> tuple[int, int]:
    extractor.setup()
    try:
        extractor.extract({"content": path.read_bytes()})
    except ValueError:  # with a reason: such a record goes to quarantine
        return 0, 1
    return 1, 0


def _iterate(iterator: DocumentIterator, extractor: DocumentExtractor, path: Path, _: Path) -> tuple[int, int]:
    read = aside = 0
    for record in iterator.iterate(str(path)):
        if isinstance(record, BadRecord):
            aside += 1
            continue
        read += 1
        extractor.extract({**dict.fromkeys(extractor.input_columns()), "namespaces": "", **record})
    return read, aside


def _latex(path: Path, _: Path) -> tuple[int, int]:
    text = path.read_bytes().decode("utf-8", "replace")
    ArxivExtractor().extract({"id": "1", "source_id": "1", "content": orjson.dumps({"a.tex": text}).decode()})
    return 1, 0


def _fasttext(path: Path, _: Path) -> tuple[int, int]:
    FastTextModel(str(path), "fuzzing").best(pa.array(["the rights of a größe", "", None, "人 " * 40]))
    return 1, 0


def _ledger(path: Path, folder: Path) -> tuple[int, int]:
    """A run directory of others: what is looked at, and what a run that is resumed there makes of it."""
    run = folder / "run"
    with tarfile.open(fileobj=io.BytesIO((path.parent / "run.tar").read_bytes())) as tar:
        tar.extractall(run, filter="data")
    [ledger] = sorted((run / "ledger").iterdir())[:1]
    ledger.write_bytes(path.read_bytes())
    list(RunOrDataset(str(run)).row_sets())
    return sum(1 for _ in Run(str(run), {}).quarantined()), 0


def _jsonl(_: Path) -> list[bytes]:
    lines = b"".join(orjson.dumps(row) + b"\n" for row in ROWS)
    return [
        lines,
        lines.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + lines[:-1],
        b'{"a": 1.5e300, "b": {"c": [null, true]}}\n' * 9,
    ]


def _table() -> pa.Table:
    return pa.table({"id": [r["id"] for r in ROWS], "text": [r["text"] for r in ROWS], "n": [r["n"] for r in ROWS]})


def _parquet(_: Path) -> list[bytes]:
    found = []
    for options in (
        {},
        {"compression": "zstd", "row_group_size": 7},
        {"use_dictionary": False, "data_page_version": "2.0"},
    ):
        out = io.BytesIO()
        pq.write_table(_table(), out, **options)  # type: ignore[arg-type]
        found.append(out.getvalue())
    return found


def _arrow(_: Path) -> list[bytes]:
    found = []
    for make in (pa.ipc.new_file, pa.ipc.new_stream):
        out = io.BytesIO()
        with make(out, _table().schema) as writer:
            writer.write_table(_table(), max_chunksize=9)
        found.append(out.getvalue())
    return found


def _csv(_: Path) -> list[bytes]:
    rows = "".join(f'{row["id"]},"{str(row["text"]).replace(chr(34), chr(34) * 2)}",x\n' for row in ROWS)
    return [f"id,text,more\n{rows}".encode(), b"a\n1\n2\n", b"a,b\r\n1,2\r\n" * 20]


def _packed(pack: Callable[[bytes], bytes], folder: Path) -> list[bytes]:
    return [pack(data) for data in _jsonl(folder)]


def _texts(_: Path) -> list[bytes]:
    return ["".join(str(row["text"]) for row in ROWS).encode(), b"one\n\ntwo\r\n", "é".encode("utf-16")]


def _warc(folder: Path) -> list[bytes]:
    pages = [(f"http://a.example/{number}", english(number, 1), "text/html") for number in range(4)]
    return [write_warc(folder / f"{gz}.warc", pages, gzip=gz).read_bytes() for gz in (True, False)]


def _wet(folder: Path) -> list[bytes]:
    return [
        write_wet(folder / "a.wet", [(f"http://a.example/{n}", f"text {n} of a page") for n in range(5)]).read_bytes()
    ]


def _tar(folder: Path) -> list[bytes]:
    return [archive(folder / "a.tar", samples(3)).read_bytes()]


def _pictures(_: Path) -> list[bytes]:
    return [encoded(1, kind, 24, 16) for kind in ("jpeg", "png", "gif", "webp", "bmp", "tiff")]


def _dump(_: Path) -> list[bytes]:
    whole = b"".join(map(bz2.decompress, streams("de")))
    return [b"".join(streams("de")), bz2.compress(whole)]


def _dump_xml(_: Path) -> list[bytes]:
    return [b"".join(map(bz2.decompress, streams("de")))]


def _papers(folder: Path) -> list[bytes]:
    paper = gzip.compress(_tex(folder)[0])
    return [
        archive(folder / "p.tar", [("2401/2401.00001.gz", paper), ("2401/2401.00002.pdf", b"%PDF-1.4")]).read_bytes()
    ]


def _tex(_: Path) -> list[bytes]:
    body = (
        r"\documentclass[a]{b}\newcommand{\x}[2][o]{#1 #2}\begin{document}\title{T}\section{One}Text \x{y} $a^2$ "
        r"\begin{equation}b\end{equation}\begin{itemize}\item a\item[b] c\end{itemize}\cite{k}\verb|x|\iffalse n\fi %c"
    )
    return [
        (body + "\n" + r"\input{b}\end{document}").encode(),
        rb"\def\a#1{\a{#1}}\begin{document}\a{b}\end{document}",
    ]


def _models(_: Path) -> list[bytes]:
    recipes = [
        Recipe(),
        Recipe(piece=2, cutoff=50, scaled=True),
        Recipe(loss=3, run=2),
        Recipe(piece=3, output_too=True),
    ]
    return [model_bytes(recipe) for recipe in recipes]


def _ledgers(folder: Path) -> list[bytes]:
    """The ledger of a run, with the rest of its directory kept beside it."""
    (folder / "in.jsonl").write_bytes(_jsonl(folder)[0] + b"bad\n")
    run = folder / "run"
    Pipeline("fuzz", stages=[JsonlReader(str(folder / "in.jsonl")), JsonlWriter(str(folder / "made"))]).run(
        LocalExecutor(num_workers=0), str(run), max_errors=None
    )
    with tarfile.open(folder / "run.tar", "w") as tar:
        tar.add(run, ".")
    return [path.read_bytes() for path in sorted((run / "ledger").iterdir())]


def targets() -> list[Target]:
    return [
        Target("jsonl", ".jsonl", _jsonl, _lines),
        Target("jsonl-gz", ".jsonl.gz", partial(_packed, gzip.compress), _lines, framed=True),
        Target("jsonl-zst", ".jsonl.zst", partial(_packed, zstd), _lines, framed=True),
        Target("parquet", ".parquet", _parquet, partial(_read, ParquetReader), framed=True),
        Target("arrow", ".arrow", _arrow, partial(_read, ArrowReader)),
        Target("csv", ".csv", _csv, partial(_read, CsvReader)),
        Target("text", ".txt", _texts, partial(_read, TextReader)),
        Target("text-lines", ".txt", _texts, partial(_read, TextReader, per="line")),
        Target("warc", ".warc.gz", _warc, partial(_read, WarcReader)),
        Target("wet", ".warc.wet.gz", _wet, partial(_read, WarcReader)),
        Target("webdataset", ".tar", _tar, partial(_images, WebDatasetReader)),
        Target("images", ".jpg", _pictures, partial(_images, ImageDirectoryReader)),
        Target("wiki-dump", ".xml.bz2", _dump, partial(_iterate, WikipediaIterator("de"), WikipediaExtractor("de"))),
        Target("wiki-xml", ".xml", _dump_xml, partial(_iterate, WikipediaIterator("de"), WikipediaExtractor("de"))),
        Target("arxiv", ".tar", _papers, partial(_iterate, ArxivIterator(), ArxivExtractor())),
        Target("latex", ".tex", _tex, _latex),
        Target(
            "pdf",
            ".pdf",
            lambda _: [pdf(["a line"], ["another", "two"])],
            partial(_extract, PdfExtractor(max_seconds=8)),
        ),
        Target("docx", ".docx", lambda _: [docx()], partial(_extract, DocxExtractor())),
        Target("epub", ".epub", lambda _: [epub()], partial(_extract, EpubExtractor())),
        Target("fasttext", ".bin", _models, _fasttext),
        Target("ledger", ".jsonl", _ledgers, _ledger),
        *media_targets(Target, _run),
    ]


REFUSALS = (GristmillError,)
"""Errors that name the file and the way out."""
