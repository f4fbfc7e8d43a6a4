"""Stages that embed text: with a model, with the vectors of words, by a server; and deduplication by meaning."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
import tokenizers

from gristmill import LocalExecutor, Pipeline, Resources
from gristmill.core.errors import DownloadError, InputError, PlanError
from gristmill.dedup import TextSemanticDeduplicationWorkflow
from gristmill.models.text import static_embeddings
from gristmill.models.text.static_embeddings import StaticEmbeddings
from gristmill.samples.batch import DocumentBatch
from gristmill.text import (
    EmbeddingCreatorStage,
    EndpointEmbeddingStage,
    JsonlReader,
    JsonlWriter,
    StaticEmbeddingStage,
    TokenizerStage,
)
from tests.models.text_fixtures import VOCABULARY, texts, write_encoder, write_safetensors, write_tokenizer


def run(stage, rows: list[str | None]) -> pa.Table:
    stage = stage.with_(resources=Resources(cpus=1))
    stage.check()
    stage.setup()
    table = stage.process(DocumentBatch(data=pa.table({"text": pa.array(rows, pa.string())}))).data
    stage.teardown()
    return table


class TestEmbeddingCreator:
    def test_the_text_stays_and_rows_have_one_length(self, tmp_path: Path) -> None:
        place = write_encoder(tmp_path)
        documents = [*texts(5), "the cat " * 200, None]
        table = run(EmbeddingCreatorStage(place, max_chars=50, normalize=True), documents)
        assert table["text"].to_pylist() == documents
        assert table["embeddings"].type == pa.list_(pa.float32(), 32)
        matrix = np.array(table["embeddings"].to_pylist())
        np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1, rtol=1e-5)

    def test_half_precision_is_the_same_rounded(self, tmp_path: Path) -> None:
        place = write_encoder(tmp_path)
        single, half = (run(EmbeddingCreatorStage(place, dtype=dtype), texts(5)) for dtype in ("float32", "float16"))
        assert half["embeddings"].type == pa.list_(pa.float16(), 32)
        rounded = np.array(single["embeddings"].to_pylist(), np.float16)
        assert np.array(half["embeddings"].to_pylist(), np.float16).tolist() == rounded.tolist()

    @pytest.mark.parametrize("pooling", ["mean_pooling", "last_token", "cls", "max"])
    def test_pooling_is_chosen_without_files_of_sentence_transformers(self, pooling: str, tmp_path: Path) -> None:
        stage = EmbeddingCreatorStage(write_encoder(tmp_path), False, embedding_pooling=pooling)
        assert run(stage, texts(3)).num_rows == 3

    def test_tokens_of_an_earlier_stage_are_used_and_dropped(self, tmp_path: Path) -> None:
        place = write_encoder(tmp_path / "model")
        (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(20)))
        found = {}
        for name, first in (("own", []), ("given", [TokenizerStage(place)])):
            embedder = EmbeddingCreatorStage(place, use_existing_tokens=bool(first))
            stages = [JsonlReader(str(tmp_path / "in.jsonl")), *first, embedder, JsonlWriter(str(tmp_path / name))]
            Pipeline(name, stages=stages).run(LocalExecutor(num_workers=0))
            found[name] = next((tmp_path / name).glob("*.jsonl")).read_bytes()
        assert found["own"] == found["given"]
        assert b"input_ids" not in found["own"]

    def test_workers_and_blocks_change_no_byte(self, tmp_path: Path) -> None:
        place = write_encoder(tmp_path / "model")
        (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(60)))
        found = set()
        for number, (workers, blocksize) in enumerate([(0, None), (2, 700), (1, 300)]):
            reader = JsonlReader(str(tmp_path / "in.jsonl"), blocksize=blocksize)
            stages = [reader, EmbeddingCreatorStage(place), JsonlWriter(str(tmp_path / f"out{number}"))]
            Pipeline("embed", stages=stages).run(LocalExecutor(num_workers=workers))
            found.add(b"".join(path.read_bytes() for path in sorted((tmp_path / f"out{number}").glob("*.jsonl"))))
        assert len(found) == 1

    def test_a_model_that_is_not_there_is_found_missing_before_the_run(self, tmp_path: Path) -> None:
        with pytest.raises((InputError, PlanError), match="there is no model"):
            EmbeddingCreatorStage(tmp_path).check()


class TestStaticEmbeddings:
    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        write_tokenizer(tmp_path)
        draw = np.random.default_rng(0)
        write_safetensors(
            tmp_path / "model.safetensors", {"embeddings": draw.normal(size=(len(VOCABULARY), 24)).astype("<f4")}
        )
        (tmp_path / "config.json").write_text('{"normalize": false}')
        return tmp_path

    def test_it_is_the_mean_of_all_tokens(self, place: Path) -> None:
        documents = [*texts(30), "", " \n ", "the, cat. unknownword", "the\tcat\n\ndog"]
        model = StaticEmbeddings(place)
        tool = tokenizers.Tokenizer.from_file(str(place / "tokenizer.json"))
        found = model.embed(pa.array(documents))
        for document, row in zip(documents, found, strict=True):
            ids = tool.encode(document, add_special_tokens=False).ids
            expected = model._matrix[ids].mean(axis=0) if ids else np.zeros(24)
            np.testing.assert_allclose(row, expected, atol=1e-6)

    def test_weights_and_a_mapping_of_tokens(self, place: Path) -> None:
        draw, count = np.random.default_rng(1), len(VOCABULARY)
        vectors = draw.normal(size=(7, 24)).astype("<f4")
        mapping, weights = draw.integers(0, 7, count), draw.random(count).astype("<f4")
        tensors = {"embeddings": vectors, "mapping": mapping.astype("<i8"), "weights": weights}
        write_safetensors(place / "model.safetensors", tensors)
        [row] = StaticEmbeddings(place, dim=10).embed(pa.array(["cat"]))
        token = VOCABULARY.index("cat")
        np.testing.assert_allclose(row, vectors[mapping[token], :10] * weights[token], rtol=1e-6)

    def test_what_is_kept_of_words_changes_nothing(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        documents = texts(40)
        expected = StaticEmbeddings(place).embed(pa.array(documents))
        monkeypatch.setattr(static_embeddings, "MOST_WORDS", 12)
        small = StaticEmbeddings(place)
        alone = [small.embed(pa.array([document]))[0] for document in documents]
        assert np.array(alone).tobytes() == expected.tobytes()

    def test_without_kernels_it_is_the_same(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        documents = pa.array(texts(10))
        expected = StaticEmbeddings(place).embed(documents)
        monkeypatch.setattr(static_embeddings, "kernels", None)
        assert StaticEmbeddings(place).embed(documents).tobytes() == expected.tobytes()

    @pytest.mark.skipif(importlib.util.find_spec("wordllama") is None, reason="needs wordllama")
    def test_wordllama_finds_what_is_alike(self) -> None:
        rows = ["A man is eating food.", "Someone eats a meal.", "The stock market fell sharply on Monday.", None]
        table = run(StaticEmbeddingStage(), rows)
        first, second, other, empty = np.array(table["embeddings"].to_pylist())
        assert table["embeddings"].type.list_size == 256
        assert first @ second > first @ other + 0.2
        assert not empty.any()


class EmbeddingServer(BaseHTTPRequestHandler):
    """Embeds a text as its length and how many words it has; fails as `faults` say, one after the other."""

    faults: ClassVar[list[int]] = []
    requests: ClassVar[list[dict]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append({**body, "key": self.headers.get("Authorization")})
        if self.faults:
            self.send_response(self.faults.pop(0))
            self.send_header("Retry-After", "0")
            self.end_headers()
            return
        rows = [{"index": n, "embedding": [len(text), len(text.split())]} for n, text in enumerate(body["input"])]
        content = json.dumps({"data": rows[::-1]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    EmbeddingServer.faults, EmbeddingServer.requests = [], []
    served = ThreadingHTTPServer(("127.0.0.1", 0), EmbeddingServer)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}/v1"
    served.shutdown()
    thread.join()
    served.server_close()


class TestEndpoint:
    def test_rows_come_in_order_a_few_per_request(self, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("A_KEY", "secret")
        stage = EndpointEmbeddingStage(server, "m", 2, api_key_env="A_KEY", model_inference_batch_size=2)
        table = run(stage, ["a", "b c", None, "d e f", "g"])
        assert table["embeddings"].to_pylist() == [[1, 1], [3, 2], [0, 0], [5, 3], [1, 1]]
        assert [len(one["input"]) for one in EmbeddingServer.requests] == [2, 2, 1]
        assert EmbeddingServer.requests[0]["key"] == "Bearer secret"

    def test_a_server_that_is_busy_is_asked_again(self, server: str) -> None:
        EmbeddingServer.faults = [429, 503]
        assert run(EndpointEmbeddingStage(server, "m", 2), ["a"]).num_rows == 1
        assert len(EmbeddingServer.requests) == 3

    @pytest.mark.parametrize(("faults", "message"), [([401], "refused.*401"), ([500] * 2, "did not answer 2 requests")])
    def test_one_that_refuses_is_not(self, faults: list[int], message: str, server: str) -> None:
        EmbeddingServer.faults = faults
        with pytest.raises(DownloadError, match=message):
            run(EndpointEmbeddingStage(server, "m", 2, max_retries_per_request=1), ["a"])


def rows_in(folder: Path) -> list[dict]:
    return [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]


class TestTextSemanticDeduplication:
    ROWS = (
        "The committee approved the new budget for public schools on Tuesday.",
        "A volcano erupted on the island, and flights were cancelled.",
        "The committee approved the new budget for public schools on Tuesday!",
        "How to bake bread with a sourdough starter at home.",
    )

    def write(self, folder: Path) -> str:
        folder.mkdir()
        lines = [json.dumps({"number": number, "text": text}) for number, text in enumerate(self.ROWS)]
        (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
        return str(folder)

    @pytest.mark.skipif(importlib.util.find_spec("wordllama") is None, reason="needs wordllama")
    def test_text_in_duplicates_out(self, tmp_path: Path) -> None:
        paths = self.write(tmp_path / "in"), str(tmp_path / "out")
        workflow = TextSemanticDeduplicationWorkflow(*paths, model_identifier="wordllama", eps=0.05)
        result = workflow.run(LocalExecutor(num_workers=0))
        kept = [
            json.loads(line) for file in (tmp_path / "out").glob("*.jsonl") for line in file.read_text().splitlines()
        ]
        assert (result.documents, result.duplicates) == (4, 1)
        assert len(kept) == 3
        assert set(kept[0]) == {"number", "text"}
        assert {row["number"] for row in kept} >= {1, 3}

    def test_a_stage_can_embed_and_embeddings_be_kept(self, tmp_path: Path) -> None:
        embedder = EmbeddingCreatorStage(write_encoder(tmp_path / "model"))
        paths = self.write(tmp_path / "in"), str(tmp_path / "out")
        workflow = TextSemanticDeduplicationWorkflow(*paths, model_identifier=embedder, keep_embeddings=True)
        workflow.run(LocalExecutor(num_workers=0))
        kept = [
            json.loads(line) for file in (tmp_path / "out").glob("*.jsonl") for line in file.read_text().splitlines()
        ]
        assert len(kept[0]["embeddings"]) == 32
