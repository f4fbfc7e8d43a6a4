"""What classifiers of text do with labels: columns, filtering, tokens that are shared, reports."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import LocalExecutor, Pipeline, Resources
from gristmill.samples.batch import DocumentBatch
from gristmill.text import (
    DistributedDataClassifier,
    DomainClassifier,
    FineWebEduClassifier,
    FineWebMixtralEduClassifier,
    JsonlReader,
    JsonlWriter,
    MultilingualDomainClassifier,
    PerplexityFilter,
    PromptTaskComplexityClassifier,
    QualityClassifier,
    TokenizerStage,
    ToxicityClassifier,
)
from gristmill.text.classifiers.aegis import hazard_of
from tests.models.text_fixtures import BERT, linear, texts, write_encoder

LABELS = {"0": "News", "1": "Sports", "2": "Health"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {**BERT, "architectures": ["BertForSequenceClassification"], "id2label": LABELS}
    folder = tmp_path_factory.mktemp("classifier")
    return write_encoder(folder, seed=5, root="bert.", weights=linear("classifier", 32, 3), config=config)


def run(stage, rows: list[str | None]) -> pa.Table:
    stage = stage.with_(resources=Resources(cpus=1))
    stage.setup()
    return stage.process(DocumentBatch(data=pa.table({"text": pa.array(rows, pa.string())}))).data


def test_labels_scores_and_the_text_as_it_was(place: Path) -> None:
    documents = [*texts(20), "the cat " * 3000, None]
    table = run(DistributedDataClassifier(place, label_field="domain", score_field="probabilities"), documents)
    assert table["text"].to_pylist() == documents
    for row in table.to_pylist():
        assert sum(row["probabilities"]) == pytest.approx(1, abs=1e-5)
        assert row["domain"] == LABELS[str(row["probabilities"].index(max(row["probabilities"])))]


def test_a_batch_without_rows_has_the_same_columns(place: Path) -> None:
    stage = DistributedDataClassifier(place, score_field="probabilities")
    assert run(stage, []).schema == run(stage, ["a"]).schema


def test_filter_by_drops_other_labels_with_a_reason(place: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(60)))
    reader, out = JsonlReader(str(tmp_path / "in.jsonl")), str(tmp_path / "out")
    everything = run(DistributedDataClassifier(place), texts(60))["preds"].to_pylist()
    wanted = [min(set(everything), key=everything.count)]
    assert len(set(everything)) > 1
    stages = [reader, DistributedDataClassifier(place, filter_by=wanted), JsonlWriter(out)]
    result = Pipeline("filter", stages=stages).run(LocalExecutor(num_workers=0), rejected=str(tmp_path / "rejected"))
    kept = [json.loads(line) for line in next(Path(out).glob("*.jsonl")).read_text().splitlines()]
    assert [row["preds"] for row in kept] == [label for label in everything if label in wanted]
    assert result.rows_read == 60
    rejected = pq.read_table(tmp_path / "rejected").to_pylist()
    assert len(rejected) == 60 - len(kept)
    assert {row["rejected_threshold"] for row in rejected} == {f"filter_by={wanted!r}"}


def test_several_classifiers_share_the_tokens(place: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(30)))
    stages = [
        JsonlReader(str(tmp_path / "in.jsonl")),
        TokenizerStage(place),
        DistributedDataClassifier(place, label_field="a", use_existing_tokens=True, keep_tokens=True),
        DistributedDataClassifier(place, label_field="b", use_existing_tokens=True),
        DistributedDataClassifier(place, label_field="c"),
        JsonlWriter(str(tmp_path / "out")),
    ]
    Pipeline("three", stages=stages).run(LocalExecutor(num_workers=0))
    rows = [json.loads(line) for line in next((tmp_path / "out").glob("*.jsonl")).read_text().splitlines()]
    assert all(row["a"] == row["b"] == row["c"] for row in rows)
    assert set(rows[0]) == {"text", "a", "b", "c"}


def test_a_stage_judges_recorded_labels_by_another_filter_by(place: Path) -> None:
    stage = DistributedDataClassifier(place, filter_by=["Sports"])
    assert stage.judge({"preds": pa.array(["News", "Sports"])})["preds"].to_pylist() == [False, True]
    assert stage.thresholds() == {"preds": "filter_by=['Sports']"}


def test_toxicity_is_a_kind_or_none(tmp_path: Path) -> None:
    config = {**BERT, "id2label": LABELS, "problem_type": "multi_label_classification"}
    model = write_encoder(tmp_path, root="bert.", weights=linear("classifier", 32, 3), config=config)
    table = run(ToxicityClassifier(model_identifier=model, score_field="scores"), texts(40))
    for row in table.to_pylist():
        best = max(row["scores"])
        assert row["toxicity_pred"] == (LABELS[str(row["scores"].index(best))] if best >= 0.5 else "not_toxic")


@pytest.mark.parametrize(
    ("stage", "column", "chars", "tokens"),
    [
        (QualityClassifier, "quality_pred", 6000, 1024),
        (DomainClassifier, "domain_pred", 2000, 512),
        (MultilingualDomainClassifier, "multilingual_domain_pred", 2000, 512),
        (FineWebEduClassifier, "fineweb-edu-score-label", None, 512),
        (FineWebMixtralEduClassifier, "fineweb-mixtral-edu-score-label", None, 512),
    ],
)
def test_defaults_are_those_that_users_know(stage: type, column: str, chars: int | None, tokens: int) -> None:
    made = stage()
    assert (made.label_field, made.max_chars, made.max_seq_length) == (column, chars, tokens)


def test_prompts_have_no_single_label() -> None:
    with pytest.raises(NotImplementedError, match="use Filter on its columns"):
        PromptTaskComplexityClassifier(filter_by=["Chatbot"])


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        (" safe", "safe"), ("unsafe\nO3", "O3"), ("unsafe\nO13, O1", "O13"), ("unsafe\nO99", "unknown"),
        ("unsafe", "unknown"), ("", "unknown"), ("It is safe", "unknown"),
    ],
)  # fmt: skip
def test_answers_of_aegis(answer: str, label: str) -> None:
    assert hazard_of(answer) == label


def test_limits_of_perplexity_must_make_sense() -> None:
    with pytest.raises(ValueError, match="min at most max"):
        PerplexityFilter("model", max_perplexity=1, min_perplexity=2)
