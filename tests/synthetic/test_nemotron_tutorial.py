"""The Nemotron-CC tutorial of NeMo Curator with changed imports: around each step the same stages for text.

Documents above the bucket 11 become questions and answers, digests, knowledge and lists; the others are paraphrased.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill import LocalExecutor, Pipeline
from gristmill.migrate import rewrite_script
from gristmill.synthetic import (
    AsyncOpenAIClient,
    DiverseQAPostProcessingStage,
    DiverseQAStage,
    GenerationConfig,
    KnowledgeListPostProcessingStage,
    KnowledgeListStage,
    WikipediaParaphrasingStage,
)
from gristmill.text import (
    DocumentJoiner,
    DocumentSplitter,
    Filter,
    JsonlReader,
    JsonlWriter,
    MarkdownRemover,
    Modify,
    QuotationRemover,
    ScoreFilter,
    WordCountFilter,
)
from tests.llm_server import MODEL
from tests.synthetic.test_judging import Scripted

FACTS = "Wheat is a grass that is grown for its seed.\nBread is made of the flour of wheat.\nRye is a grass too."


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    rows = [{"id": f"doc-{number}", "text": FACTS, "bucketed_results": 8 + 2 * number} for number in range(4)]
    rows.append({"id": "short", "text": "Rye.", "bucketed_results": 19})
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / "in.jsonl")


def before(corpus: str, bucket: Any) -> list[Any]:
    """Documents of a bucket, cut into segments that are joined to the length that the model reads well."""
    return [
        JsonlReader(corpus),
        Filter(bucket, "bucketed_results"),
        ScoreFilter(WordCountFilter(min_words=4)),
        DocumentSplitter(separator="\n"),
        DocumentJoiner(separator="\n", max_length=80, drop_segment_id_field=False),
    ]


def written(stages: list[Any], out: Path) -> list[dict[str, Any]]:
    Pipeline("nemotron-cc", stages=[*stages, JsonlWriter(str(out))]).run(LocalExecutor(num_workers=0), max_errors=None)
    return [json.loads(line) for file in out.glob("*.jsonl") for line in file.read_text().splitlines()]


def test_the_steps_run_against_a_real_model(corpus: str, tmp_path: Path, llm_server: str) -> None:
    client = AsyncOpenAIClient(max_concurrent_requests=5, max_retries=3, base_delay=1, base_url=llm_server)
    config = GenerationConfig(temperature=0.5, top_p=0.9, max_tokens=12, seed=3)
    step = WikipediaParaphrasingStage(
        input_field="text", output_field="rephrased", client=client, model_name=MODEL, generation_config=config
    )
    after = [Modify(MarkdownRemover(), "rephrased"), Modify(QuotationRemover(), "rephrased")]
    rows = written([*before(corpus, lambda bucket: bucket <= 11), step, *after], tmp_path / "out")
    assert len(rows) == 4, "two documents, each in two parts"
    assert {row["id"] for row in rows} == {"doc-0", "doc-1"}
    assert all(row["rephrased"] and row["synthetic_model"] == MODEL for row in rows)


def answer(model: str, text: str, seed: int) -> str:
    if "questions" in text:
        start = "Here are the questions and answers based on the provided text:\n"
        return start + "- Question: What is wheat?\n- Answer: A **grass**.\n- Question: And rye?\n- Answer: Too."
    return "Here is the list:\n- Wheat is a grass.\n- Rye is a grass."


def test_answers_as_a_large_model_gives_them(corpus: str, tmp_path: Path) -> None:
    asked = {"client": Scripted(answer), "model_name": "large"}
    questions = [DiverseQAStage(**asked), Modify(MarkdownRemover(), "diverse_qa"), DiverseQAPostProcessingStage()]
    rows = written([*before(corpus, lambda bucket: bucket > 11), *questions], tmp_path / "qa")
    assert {row["id"] for row in rows} == {"doc-2", "doc-3"}
    assert all(row["diverse_qa"].startswith(row["text"]) and "Question: " in row["diverse_qa"] for row in rows)
    listed = [KnowledgeListStage(**asked), KnowledgeListPostProcessingStage()]
    rows = written([*before(corpus, lambda bucket: bucket > 11), *listed], tmp_path / "list")
    assert {row["knowledge_list"] for row in rows} == {"Wheat is a grass.\nRye is a grass."}


def test_imports_of_the_tutorial_are_found() -> None:
    script = (
        "from nemo_curator.models.client.llm_client import GenerationConfig\n"
        "from nemo_curator.models.client.openai_client import AsyncOpenAIClient\n"
        "from nemo_curator.stages.synthetic.nemotron_cc.nemotron_cc import (\n"
        "    DiverseQAStage, DistillStage, ExtractKnowledgeStage, KnowledgeListStage, WikipediaParaphrasingStage)\n"
        "from nemo_curator.stages.synthetic.nemotron_cc.nemotron_cc import DiverseQAPostProcessingStage\n"
        "from nemo_curator.stages.synthetic.qa_multilingual_synthetic import QAMultilingualSyntheticStage\n"
        "from nemo_curator.stages.text.experimental.translation import TranslationStage\n"
    )
    result = rewrite_script(script)
    assert result.findings == []
    assert "nemo_curator" not in result.text
    assert "from gristmill.synthetic import" in result.text
