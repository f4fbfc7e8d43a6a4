"""Formulas as LaTeX in whatever form a page has them; notebooks; chunks, split and merged; clean-up by a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers

from gristmill import LocalExecutor, Pipeline
from gristmill.math import (
    CenterCropTextStage,
    ChunkMergeStage,
    LLMCleanupStage,
    MathContentExtractor,
    MathExtractStage,
    TokenSplitterStage,
)
from gristmill.math.html_math import with_latex
from gristmill.math.mathml import mathml_to_latex
from gristmill.samples.batch import DocumentBatch
from gristmill.text import ParquetReader

HERE = LocalExecutor(num_workers=0)

KATEX = """<span class="katex"><span class="katex-mathml"><math><semantics><mrow><mi>E</mi></mrow>
<annotation encoding="application/x-tex">E = mc^2</annotation></semantics></math></span>
<span class="katex-html" aria-hidden="true"><span>E=mc2</span></span></span>"""
WIKIPEDIA = """<span class="mwe-math-element"><span class="mwe-math-mathml-inline"><math
alttext="{\\displaystyle a^{2}}"><semantics><mi>a</mi><annotation encoding="application/x-tex">{\\displaystyle a^{2}}
</annotation></semantics></math></span>
<img src="x.svg" class="mwe-math-fallback-image-inline" alt="{\\displaystyle a^{2}}"></span>"""
MATHJAX = """<span class="MathJax_Preview">x</span><span class="MathJax" id="e1"><span>drawn</span></span>
<script type="math/tex" id="e1s">x_1 < y</script>"""
DRAWN = """<span class="MathJax" data-mathml="&lt;math&gt;&lt;msup&gt;&lt;mi&gt;x&lt;/mi&gt;&lt;mn&gt;2&lt;/mn&gt;
&lt;/msup&gt;&lt;/math&gt;">d</span>"""


@pytest.mark.parametrize(
    ("html", "wanted", "unwanted"),
    [
        (KATEX, "$E = mc^2$", "mc2"),
        (WIKIPEDIA, "$a^{2}$", "displaystyle"),
        (MATHJAX, "$x_1 < y$", "drawn"),
        ('<script type="math/tex; mode=display">\\int f</script>', "$$\\int f$$", "script"),
        ('<img class="latex" src="l.png" alt="\\frac{1}{2}">', "$\\frac{1}{2}$", "png"),
        ('<img src="cat.png" alt="A cat">', "before", "cat.png"),
        ('<math display="block"><mi>x</mi><mo>=</mo><mn>2</mn></math>', "$$x = 2$$", "mi"),
        ('<math alttext="\\alpha+1"><mi>q</mi></math>', "$\\alpha+1$", "q$"),
        (DRAWN, "$x^{2}$", "d."),
        ("<p>Inline \\(a+b\\) stays.</p>", "\\(a+b\\)", "<p>"),
    ],
)  # fmt: skip
def test_formulas_are_latex_once(html: str, wanted: str, unwanted: str) -> None:
    page = f"<html><head><title>t</title></head><body><p>before {html} after.</p></body></html>"
    text = MathContentExtractor().html_text(page)
    assert wanted in text
    assert unwanted not in text
    assert text.startswith("before")
    assert "after." in text
    assert text.count(wanted) == 1


@pytest.mark.parametrize(
    ("mathml", "latex"),
    [
        ("<mfrac><mn>1</mn><mi>x</mi></mfrac>", r"\frac{1}{x}"),
        ("<msqrt><mi>a</mi><mo>+</mo><mi>b</mi></msqrt>", r"\sqrt{a + b}"),
        ("<mroot><mi>a</mi><mn>3</mn></mroot>", r"\sqrt[3]{a}"),
        ("<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>", r"x_{i}^{2}"),
        (
            "<munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></munderover>",
            r"\sum_{i = 1}^{n}",
        ),
        ("<mi>α</mi><mo>≤</mo><mi>sin</mi><mi>θ</mi>", r"\alpha \le \sin \theta"),
        ("<mover><mi>v</mi><mo>→</mo></mover>", r"\vec{v}"),
        (
            "<mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr></mtable>",
            r"\begin{matrix} 1 & 2 \\ \end{matrix}",
        ),
        ("<mtext>if</mtext>", r"\text{if}"),
        ("<mfrac><mn>1</mn></mfrac>", "1"),
        ("", ""),
    ],
)
def test_mathml_becomes_latex(mathml: str, latex: str) -> None:
    from lxml.html import fromstring

    assert mathml_to_latex(fromstring(f"<math>{mathml}</math>")) == latex


def test_deep_mathml_ends() -> None:
    page = "<p>" + "<math>" + "<mrow>" * 1500 + "<mi>x</mi>" + "</mrow>" * 1500 + "</math></p>"
    assert "$x$" in with_latex(page)


NOTEBOOK = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "cells": [
        {"cell_type": "markdown", "source": ["# Title\n", "$x^2$"]},
        {"cell_type": "code", "source": "print(1)", "outputs": [{"output_type": "stream", "text": ["1\n"]}]},
        {
            "cell_type": "code",
            "source": ["x"],
            "outputs": [{"output_type": "execute_result", "data": {"text/plain": "2"}}],
        },
        "no cell",
    ],
}


def rows(*items: tuple[bytes | None, str | None, str | None]) -> DocumentBatch:
    names = ("binary_content", "mime_type", "url")
    return DocumentBatch([dict(zip(names, item, strict=True)) for item in items])


def test_pages_notebooks_and_texts_are_told_apart() -> None:
    batch = rows(
        (b"<html><body><p>page <math><mi>x</mi></math></p></body></html>", None, "https://a.b/1"),
        (json.dumps(NOTEBOOK).encode(), "application/json", "https://a.b/n.ipynb"),
        (b"plain $y$ < text", "text/plain", "https://a.b/t.txt"),
        (b"%PDF-1.4", "application/pdf", None),
        (None, None, None),
    )
    [done] = Pipeline("m", stages=[MathExtractStage(MathContentExtractor())]).run(
        LocalExecutor(num_workers=0), initial_tasks=[batch]
    )
    assert done.data.column("type").to_pylist() == ["html", "notebook", "text"]
    assert done.data.column("text").to_pylist() == [
        "page $x$",
        "# Title\n$x^2$\n\nprint(1)\n\n1\n\nx\n\n2",
        "plain $y$ < text",
    ]


def test_a_page_that_is_too_deep_goes_to_quarantine() -> None:
    batch = rows((b"<html>" + b"<div>" * 5000, "text/html", "u"), (b"<p>good", "text/html", "v"))
    done = Pipeline("m", stages=[MathExtractStage(MathContentExtractor())]).run(
        LocalExecutor(num_workers=0), initial_tasks=[batch], max_errors=5
    )
    assert [row["text"] for task in done for row in task.to_rows()] == ["good"]
    assert "nested" in next(iter(done.quarantined())).error


# -- chunks -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer of words."""
    words = {word: at for at, word in enumerate(["[UNK]", *(f"w{number}" for number in range(50))])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return str(path)


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("w1 w2\n\nw3\n\nw4 w5 w6", [("w1 w2\n\nw3\n\n", 3), ("w4 w5 w6", 3)]),
        ("w1 w2 w3 w4 w5 w6\n\nw7", [("w1 w2 w3 w4 w5 w6\n\n", 6), ("w7", 1)]),
        ("w1\n\n \n\nw2\n\n", [("w1\n\nw2\n\n", 2)]),
        ("", []),
        (None, []),
    ],
)
def test_chunks_end_between_paragraphs(tokenizer: str, text: str | None, chunks: list[tuple[str, int]]) -> None:
    batch = DocumentBatch(pa.table({"text": pa.array([text, "w9"]), "url": ["a", "b"]}))
    [found] = Pipeline("s", stages=[TokenSplitterStage(tokenizer, 4)]).run(
        LocalExecutor(num_workers=0), initial_tasks=[batch]
    )
    own = [(row["text"], row["n_tokens"]) for row in found.to_rows() if row["url"] == "a"]
    assert own == chunks
    assert [row["chunk_id"] for row in found.to_rows()] == [*range(len(chunks)), 0]


def test_chunks_of_several_batches_are_merged(tmp_path: Path) -> None:
    chunks = [
        {"url": "a", "chunk_id": 1, "cleaned_text": "two", "text": "2", "num_input_tokens": 2, "lang": "en"},
        {
            "url": "b",
            "chunk_id": 0,
            "cleaned_text": "NO USEFUL CONTENT",
            "text": "x",
            "num_input_tokens": 1,
            "lang": "en",
        },
        {"url": "a", "chunk_id": 0, "cleaned_text": "one", "text": "1", "num_input_tokens": 3, "lang": "en"},
        {"url": "c", "chunk_id": 0, "cleaned_text": "long" * 9, "text": "y", "num_input_tokens": 1, "lang": "fr"},
        {"url": "a", "chunk_id": 0, "cleaned_text": "again", "text": "1", "num_input_tokens": 9, "lang": "en"},
        {"url": "a", "chunk_id": 2, "cleaned_text": "", "text": "3", "num_input_tokens": 9, "lang": "en"},
    ]
    pq.write_table(pa.Table.from_pylist(chunks), tmp_path / "in.parquet", row_group_size=1)
    stages = [ParquetReader(str(tmp_path / "in.parquet"), blocksize=1), ChunkMergeStage(max_text_length=20)]
    done = Pipeline("m", stages=stages).run(LocalExecutor(num_workers=0))
    found: list[dict[str, Any]] = [row for task in done for row in task.to_rows()]
    assert [{name: value for name, value in row.items() if name != "__position__"} for row in found] == [
        {"url": "a", "cleaned_text": "one\ntwo", "text": "1\n2", "num_input_tokens": 5, "lang": "en"}
    ]


def test_the_middle_of_a_text() -> None:
    batch = DocumentBatch(pa.table({"text": pa.array(["abcdefghij", "ab", None])}))
    assert CenterCropTextStage(center_crop_chars=2).process(batch).data.column("text").to_pylist() == [
        "defg",
        "ab",
        None,
    ]
    assert CenterCropTextStage(center_crop_chars=0).process(batch) is batch


def test_a_model_cleans_chunks_up_and_none_is_lost(llm_server: str) -> None:
    """A real model, which is small: that it answers each row is checked, not what it says."""
    client = {"base_url": llm_server, "api_key": "x"}
    stage = LLMCleanupStage("smollm2", "Repeat this: {text}", client, temperature=0.0, top_k=None, max_tokens=8)
    batch = DocumentBatch(pa.table({"text": ["One and one is two.", "Two and two is four."], "url": ["a", "b"]}))
    [found] = Pipeline("c", stages=[stage]).run(HERE, initial_tasks=[batch])
    assert found.data.column("url").to_pylist() == ["a", "b"]
    assert all(found.data.column("cleaned_text").to_pylist())
