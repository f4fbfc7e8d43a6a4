"""What is measured of NeMo Curator, by its own interpreter: `python curator_jobs.py NAME ARGUMENTS...`.

Tools are a file of JSON: a list of [class name, arguments]. All of them go into one stage, which is how this system is
fastest. The last line of output is JSON.
"""

import json
import logging
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

_PLACES = (
    *("filters.heuristic", "filters.heuristic.repetition", "filters.fasttext", "modifiers", "modifiers.unicode"),
    "filters.heuristic.code",
)


def make(tools: str) -> list[Any]:
    return [find(name)(**arguments) for name, arguments in json.loads(Path(tools).read_text())]


def find(name: str) -> Any:
    """A filter or modifier by the name of its class."""
    for place in _PLACES:
        module = import_module(f"nemo_curator.stages.text.{place}")
        if name in getattr(module, "__all__", ()):
            return getattr(module, name)
    raise LookupError(f"there is no {name} in {', '.join(_PLACES)}")


def executor(folder: str, output: str, tools: str) -> dict[str, object]:
    """JSON lines to JSON lines on Ray Data. `run_wall_s` is without starting and stopping Ray."""
    from unittest import mock

    import ray
    from nemo_curator.backends.ray_data import RayDataExecutor
    from nemo_curator.pipeline import Pipeline
    from nemo_curator.stages.text.io.reader import JsonlReader
    from nemo_curator.stages.text.io.writer import JsonlWriter

    pipeline = Pipeline(name="measured")
    pipeline.add_stage(JsonlReader(folder, files_per_partition=1))
    pipeline.add_stage(_stage(make(tools)))
    pipeline.add_stage(JsonlWriter(output))
    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    ended, stop = [], ray.shutdown

    def note_the_time() -> None:
        ended.append(time.perf_counter())
        stop()

    began = time.perf_counter()
    with mock.patch("ray.shutdown", note_the_time):
        pipeline.run(RayDataExecutor())
    return {"run_wall_s": ended[0] - began}


def _stage(tools: list[Any]) -> Any:
    from nemo_curator.stages.text.filters import DocumentFilter, ScoreFilter
    from nemo_curator.stages.text.modifiers import Modify

    if isinstance(tools[0], DocumentFilter):
        if type(tools[0]).__name__ == "FastTextLangId":
            return ScoreFilter(tools[0], score_field="language")
        return ScoreFilter(tools)
    return Modify(tools)


def loop(folder: str, output: str, tools: str) -> dict[str, object]:
    """The same filters or modifiers over one document after another, with nothing around them but orjson."""
    import orjson

    made = make(tools)
    for tool in made:
        if hasattr(tool, "load_model"):
            tool.load_model()
    treat = _modify if hasattr(made[0], "modify_document") else _filter
    Path(output).mkdir(parents=True, exist_ok=True)
    for path in sorted(Path(folder).glob("*.jsonl")):
        with open(path, "rb") as lines, open(Path(output, path.name), "wb") as kept:
            for line in lines:
                record = orjson.loads(line)
                if treat(record, made):
                    kept.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
    return {}


def _filter(record: dict[str, Any], filters: list[Any]) -> bool:
    for one in filters:
        score = one.score_document(record["text"])
        if not one.keep_document(score):
            return False
        if isinstance(score, str):
            record["language"] = score
    return True


def _modify(record: dict[str, Any], modifiers: list[Any]) -> bool:
    for one in modifiers:
        record["text"] = one.modify_document(record["text"])
    return True


def scores(folder: str, output: str, tools: str) -> dict[str, object]:
    """The score of every document by each filter, and whether it is kept, one JSON line per document.

    A filter that raises on a document has the name of the error as its score.
    """
    import orjson

    made = make(tools)
    for tool in made:
        if hasattr(tool, "load_model"):
            tool.load_model()
    with open(output, "wb") as file:
        for path in sorted(Path(folder).glob("*.jsonl")):
            for record in map(orjson.loads, path.read_bytes().splitlines()):
                row = [_score(one, record["text"]) for one in made]
                file.write(orjson.dumps([record["id"], row], option=orjson.OPT_APPEND_NEWLINE))
    return {}


def _score(tool: Any, text: str) -> tuple[Any, bool | None]:
    try:
        score = tool.score_document(text)
        return score, bool(tool.keep_document(score))
    except Exception as error:  # noqa: BLE001  (the peer's filters raise on documents without words)
        return type(error).__name__, None


def warc(path: str, output: str, extractor: str) -> dict[str, object]:
    """The text of the pages of a WARC file by its own iterator, extractor and stage, without an executor."""
    from nemo_curator.stages.text.download.base.iterator import DocumentIterateExtractStage
    from nemo_curator.stages.text.download.common_crawl.extract import CommonCrawlHTMLExtractor
    from nemo_curator.stages.text.download.common_crawl.warc_iterator import CommonCrawlWarcIterator
    from nemo_curator.tasks import FileGroupTask

    stage = DocumentIterateExtractStage(CommonCrawlWarcIterator(), CommonCrawlHTMLExtractor(extractor))
    batch = stage.process(FileGroupTask(dataset_name="warc", data=[path]))
    frame = batch.to_pandas()
    frame.to_json(output, orient="records", lines=True, force_ascii=False)
    return {"rows": len(frame)}


if __name__ == "__main__":
    answer = globals()[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(answer))
