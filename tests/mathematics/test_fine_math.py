"""The classifier of FineMath scores the middle of a text as transformers does, and leaves the text whole."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import tokenizers

from gristmill import LocalExecutor, Pipeline
from gristmill.math import FineMathClassifier
from gristmill.samples.batch import DocumentBatch
from tests.models.text_fixtures import BERT, linear, texts, write_encoder

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")]


def test_the_model_sees_the_middle_of_a_text(tmp_path: Path) -> None:
    import torch
    import transformers

    config = {**BERT, "architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    place = write_encoder(tmp_path, root="bert.", weights=linear("classifier", 32, 1), config=config)
    documents = texts(12)
    batch = DocumentBatch(pa.table({"text": documents}))
    stage = FineMathClassifier(model_identifier=place, center_crop_chars=20)
    [found] = Pipeline("m", stages=[stage]).run(LocalExecutor(num_workers=0), initial_tasks=[batch])
    reference = transformers.AutoModelForSequenceClassification.from_pretrained(str(place)).eval()
    for document, row in zip(documents, found.to_rows(), strict=True):
        centre = len(document) // 2
        with torch.no_grad():
            seen = document[max(0, centre - 20) : centre + 20]
            ids = tokenizers.Tokenizer.from_file(str(place / "tokenizer.json")).encode(seen).ids
            expected = reference(input_ids=torch.tensor([ids])).logits.item()
        assert row["text"] == document
        assert row["finemath_scores"] == pytest.approx(min(5, max(0, expected)), abs=1e-4)
        assert row["finemath_int_scores"] == round(min(5, max(0, expected)))
