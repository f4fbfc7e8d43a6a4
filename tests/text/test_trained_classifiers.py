"""Classifiers that are trained here: parts without a text in common, thresholds, folders, the filter that runs them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gristmill import LocalExecutor, Pipeline
from gristmill.cli.main import app
from gristmill.core.errors import ColumnError, InputError, PlanError
from gristmill.models.text.classifier_metrics import (
    Calibration,
    calibration_error,
    confusion,
    precision_recall,
    threshold_for,
)
from gristmill.models.text.logistic_regression import LogisticRegression
from gristmill.models.text.trained_classifier import TrainedClassifier, as_texts
from gristmill.text import ClassifierFilter, JsonlReader, JsonlWriter, ScoreFilter, train_classifier
from gristmill.text.classifiers.labelled_texts import LabelledTexts, divide, read_labelled
from tests.models.test_fasttext_trainer import GOOD, examples
from tests.models.text_fixtures import write_encoder


def write_labelled(path: Path, count: int = 1500, seed: int = 0) -> Path:
    texts, labels = examples(count, seed)
    rows = [{"text": text, "label": label} for text, label in zip(texts.to_pylist(), labels, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("classifier")
    train_classifier(str(write_labelled(place / "labelled.jsonl")), place / "model", precision=0.95)
    return place / "model"


class TestParts:
    LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"

    def test_a_text_is_in_one_part_whatever_its_case_and_punctuation(self) -> None:
        texts = [f"Text number {number}" for number in range(300)]
        again = [text.upper().replace(" ", ", ") + "!" for text in texts]
        divided = divide(LabelledTexts([*texts, *again], ["a"] * 600))
        assert sum(map(len, divided.parts.values())) == 300
        assert divided.repeated == 300
        assert [len(divided.parts[name]) for name in ("train", "choose", "test")] == pytest.approx(
            [240, 30, 30], abs=15
        )

    def test_a_text_that_is_nearly_one_of_another_part_is_left_out(self) -> None:
        draw = np.random.default_rng(0)
        words = [f"w{number}" for number in range(2000)]
        texts = [" ".join(draw.choice(words, 200)) for _ in range(200)]
        near = [text + " end" for text in texts]
        divided = divide(LabelledTexts([*texts, *near], ["a"] * 400))
        assert divided.near > 30
        train = {text.removesuffix(" end") for text in divided.parts["train"].texts}
        held = {text.removesuffix(" end") for name in ("choose", "test") for text in divided.parts[name].texts}
        assert len(train & held) < 10

    def test_a_text_stays_in_its_part_when_others_come(self) -> None:
        texts = [f"text {number}" for number in range(100)]
        few, more = (divide(LabelledTexts(texts[:size], ["a"] * size)) for size in (50, 100))
        assert set(few.parts["test"].texts) <= set(more.parts["test"].texts)

    def test_labels_of_any_type_are_words(self, tmp_path: Path) -> None:
        table = pa.table({"t": ["a", None, "c", "d"], "y": pa.array([1.0, 1.0, None, 0.0])})
        pq.write_table(table, tmp_path / "in.parquet")
        assert read_labelled(str(tmp_path / "in.parquet"), "t", "y") == LabelledTexts(["a", "d"], ["1", "0"])
        with pytest.raises(ColumnError, match=r"no column 'x'.*There are: t, y$"):
            read_labelled(str(tmp_path / "in.parquet"), "t", "x")


class TestMetrics:
    SCORES, HITS = np.array([0.9, 0.8, 0.8, 0.3, 0.1]), np.array([True, True, False, True, False])

    def test_precision_and_recall_at_each_score(self) -> None:
        found = precision_recall(self.SCORES, self.HITS)
        points = [(one.threshold, round(one.precision, 3), round(one.recall, 3)) for one in found]
        assert points == [(0.9, 1.0, 0.333), (0.8, 0.667, 0.667), (0.3, 0.75, 1.0), (0.1, 0.6, 1.0)]

    @pytest.mark.parametrize(("precision", "threshold"), [(0.7, 0.3), (0.76, 0.9), (0.5, 0.1)])
    def test_the_lowest_threshold_with_a_precision(self, precision: float, threshold: float) -> None:
        point = threshold_for(precision_recall(self.SCORES, self.HITS), precision)
        assert point is not None
        assert point.threshold == threshold

    def test_there_may_be_none(self) -> None:
        assert threshold_for(precision_recall(self.SCORES, ~self.HITS), 0.7) is None

    def test_calibration_makes_probabilities_of_what_is_too_sure(self) -> None:
        draw = np.random.default_rng(0)
        true = draw.random(4000)
        hits = draw.random(4000) < true
        sure = 1 / (1 + (1 / true - 1) ** 3)
        before, after = sure, Calibration.fit(sure, hits)(sure)
        assert calibration_error(after, hits) < 0.03 < calibration_error(before, hits)

    def test_confusions(self) -> None:
        assert confusion(["a", "a", "b"], ["a", "b", "b"], ["a", "b"]) == [[1, 1], [0, 1]]

    def test_logistic_regression_finds_what_separates(self) -> None:
        draw = np.random.default_rng(0)
        labels = draw.integers(0, 3, 600)
        rows = draw.normal(size=(600, 5)) + 4 * np.eye(3, 5)[labels]
        fitted = LogisticRegression.fit(rows, labels, 3)
        assert (fitted(rows).argmax(axis=1) == labels).mean() > 0.97
        np.testing.assert_allclose(fitted(rows).sum(axis=1), 1)
        assert fitted(rows[:1]).tobytes() == fitted(rows)[:1].tobytes()


class TestTraining:
    def test_figures_are_those_of_unseen_texts(self, folder: Path) -> None:
        content = json.loads((folder / "classifier.json").read_text())
        figures = content["figures"]
        assert (content["kind"], content["label"], content["labels"]) == ("fasttext", "good", ["bad", "good"])
        assert figures["accuracy"] > 0.97
        assert figures["precision"] >= 0.9
        assert figures["train"] + figures["choose"] + figures["test"] + figures["repeated"] + figures["near"] == 1500
        page = (folder / "report.html").read_text()
        assert "<polyline" in page
        assert "http" not in page

    def test_the_same_texts_give_the_same_folder(self, folder: Path, tmp_path: Path) -> None:
        labelled = write_labelled(tmp_path / "labelled.jsonl")
        train_classifier(str(labelled), tmp_path / "again", precision=0.95)
        for name in ("model.bin", "classifier.json", "report.html"):
            assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name

    def test_a_logistic_regression_on_a_model(self, tmp_path: Path) -> None:
        encoder = write_encoder(tmp_path / "encoder")
        pairs = [("cat", "x"), ("school", "y")] * 150
        rows = [{"text": f"{word} {n // 2 % 97} dog", "label": label} for n, (word, label) in enumerate(pairs)]
        (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        figures = train_classifier(
            str(tmp_path / "in.jsonl"), tmp_path / "out", kind="minilm", model=str(encoder), positive="x"
        )
        assert figures.accuracy > 0.9
        scores = TrainedClassifier.load(tmp_path / "out").scores(as_texts(["the cat", "the school"]))
        assert scores[0] > scores[1]

    @pytest.mark.parametrize(
        ("rows", "arguments", "message"),
        [
            ([("a", "x")] * 30, {}, "all texts have the label 'x'"),
            ([("a", "x"), ("b", "y")], {}, "too few"),
            ([(f"a{i}", "xy"[i % 2]) for i in range(400)], {"positive": "z"}, "no label 'z'.*There are: x, y"),
        ],
    )
    def test_what_cannot_be_trained_says_so(
        self, rows: list[tuple[str, str]], arguments: dict, message: str, tmp_path: Path
    ) -> None:
        (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in rows))
        with pytest.raises(PlanError, match=message):
            train_classifier(str(tmp_path / "in.jsonl"), tmp_path / "out", **arguments)

    def test_other_files_are_not_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(InputError, match="something else"):
            train_classifier(str(write_labelled(tmp_path / "in.jsonl")), tmp_path)

    def test_a_classifier_is_replaced_only_if_wished(self, tmp_path: Path) -> None:
        labelled = str(write_labelled(tmp_path / "in.jsonl", 400))
        command = ["train-classifier", labelled, "-o", str(tmp_path / "out")]
        assert CliRunner().invoke(app, command).exit_code == 0
        before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
        again = CliRunner().invoke(app, [*command, "--positive", "bad"])
        assert again.exit_code == 2, again.output
        assert "holds a classifier already" in again.output
        assert "--overwrite" in again.output
        assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
        assert CliRunner().invoke(app, [*command, "--positive", "bad", "--overwrite"]).exit_code == 0
        assert json.loads((tmp_path / "out" / "classifier.json").read_text())["label"] == "bad"

    def test_the_command(self, tmp_path: Path) -> None:
        labelled = write_labelled(tmp_path / "in.jsonl", 800)
        done = CliRunner().invoke(
            app, ["train-classifier", str(labelled), "-o", str(tmp_path / "out"), "--positive", "bad"]
        )
        assert done.exit_code == 0, done.output
        assert "threshold" in done.output
        assert json.loads((tmp_path / "out" / "classifier.json").read_text())["label"] == "bad"


class Annotator(BaseHTTPRequestHandler):
    """A chat endpoint that labels a text by its words."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][-1]["content"]
        self.asked.append(prompt)
        label = "good" if any(word in prompt for word in GOOD) else "bad"
        message = {"role": "assistant", "content": json.dumps({"label": label})}
        answer = {
            "id": "1",
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14},
        }
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[str]:
    served = ThreadingHTTPServer(("127.0.0.1", 0), Annotator)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}/v1"
    served.shutdown()
    thread.join()
    served.server_close()


def test_labels_can_come_from_a_language_model(endpoint: str, tmp_path: Path) -> None:
    texts, wanted = examples(300)
    rows = [{"text": text} for text in texts.to_pylist()]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["train-classifier", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out"), "--annotate", "bad, good"]
    command += ["--endpoint", endpoint, "--llm", "m"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert len(Annotator.asked) == 300
    [written] = (tmp_path / "out-labels").glob("*.jsonl")
    assert [json.loads(line)["label"] for line in written.read_text().splitlines()] == wanted
    assert (tmp_path / "out" / "model.bin").is_file()
    assert CliRunner().invoke(app, [*command, "--overwrite"]).exit_code == 0
    assert len(Annotator.asked) == 300


class TestFilter:
    def run(self, folder: Path, out: Path, **settings: object) -> list[dict]:
        stages = [
            JsonlReader(str(out.parent / "in.jsonl")),
            ScoreFilter(ClassifierFilter(folder), score_field="quality"),
            JsonlWriter(str(out)),
        ]
        Pipeline("quality", stages=stages).run(LocalExecutor(num_workers=0), **settings)
        return [json.loads(line) for line in next(out.glob("*.jsonl")).read_text().splitlines()]

    def test_it_keeps_what_is_above_the_threshold(self, folder: Path, tmp_path: Path) -> None:
        write_labelled(tmp_path / "in.jsonl", 300, seed=5)
        kept = self.run(folder, tmp_path / "out")
        assert np.mean([row["label"] == "good" for row in kept]) > 0.9
        assert min(row["quality"] for row in kept) >= ClassifierFilter(folder).bounds()[0]

    @pytest.mark.parametrize("text", ["", "theorem proof lemma", "click buy casino"])
    def test_one_document_has_the_score_of_the_column(self, text: str, folder: Path) -> None:
        one = ClassifierFilter(folder, min_score=0.5)
        assert one.score_batch(pa.array([text, "other"]))[0].as_py() == one.score_document(text)

    def test_it_shows_its_threshold(self, folder: Path) -> None:
        [rule] = ClassifierFilter(folder).deciding_rules()
        assert ClassifierFilter(folder).threshold() == f"min_score={rule.low:g}"
        [rule] = ClassifierFilter(folder, min_score=0.5).deciding_rules()
        assert (rule.low, rule.low_name) == (0.5, "min_score")

    def test_a_changed_classifier_runs_again(self, tmp_path: Path) -> None:
        labelled = write_labelled(tmp_path / "in.jsonl", 600)
        train_classifier(str(labelled), tmp_path / "model")
        settings = {"run_dir": str(tmp_path / "run")}
        first = self.run(tmp_path / "model", tmp_path / "out", **settings)
        train_classifier(str(labelled), tmp_path / "model", positive="bad", overwrite=True)
        second = self.run(tmp_path / "model", tmp_path / "out", **settings)
        assert first != second

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda place: (place / "model.bin").write_bytes(b"x"), "missing, or not what classifier.json names"),
            (lambda place: (place / "classifier.json").write_text("{}"), "damaged"),
            (lambda place: (place / "classifier.json").unlink(), "train-classifier"),
        ],
    )
    def test_a_damaged_folder_says_so(self, damage, message: str, tmp_path: Path) -> None:
        train_classifier(str(write_labelled(tmp_path / "in.jsonl", 400)), tmp_path / "model")
        damage(tmp_path / "model")
        with pytest.raises(InputError, match=message):
            TrainedClassifier.load(tmp_path / "model")

    def test_an_unknown_label_is_found_before_the_run(self, folder: Path) -> None:
        with pytest.raises(InputError, match="no label 'goo'.*Did you mean 'good'"):
            ClassifierFilter(folder, label="goo").check()
