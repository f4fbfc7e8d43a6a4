"""Gristmill's side of the comparisons: `python gristmill_jobs.py NAME ARGUMENTS...`. It prints JSON."""

import json
import sys
from pathlib import Path
from typing import Any


def make(tools: str) -> list[Any]:
    import gristmill.text

    return [getattr(gristmill.text, name)(**arguments) for name, arguments in json.loads(Path(tools).read_text())]


def chain(folder: str, output: str, tools: str, executor: str = "LocalExecutor") -> dict[str, object]:
    """JSON lines to JSON lines, a stage for each filter or modifier."""
    import gristmill
    from gristmill import Pipeline
    from gristmill.text import JsonlReader, JsonlWriter

    pipeline = Pipeline("measured")
    pipeline.add_stage(JsonlReader(folder))
    for tool in make(tools):
        pipeline.add_stage(_stage(tool))
    pipeline.add_stage(JsonlWriter(output, mode="overwrite"))
    pipeline.run(getattr(gristmill, executor)())
    return {}


def _stage(tool: Any) -> Any:
    from gristmill.text import DocumentFilter, FastTextLangId, Modify, ScoreFilter

    if isinstance(tool, DocumentFilter):
        return ScoreFilter(tool, score_field="language" if isinstance(tool, FastTextLangId) else None)
    return Modify(tool)


def tags(folder: str, output: str, tools: str) -> dict[str, object]:
    """JSON lines to JSON lines, with a score of each filter beside the text; none is dropped."""
    from gristmill import Pipeline
    from gristmill.text import JsonlReader, JsonlWriter, Score

    scores = [Score(tool, score_field=type(tool).__name__) for tool in make(tools)]
    stages = [JsonlReader(folder), *scores, JsonlWriter(output, mode="overwrite")]
    return {"rows": Pipeline("measured", stages=stages).run().summary().rows_out}


def fineweb(folder: str, output: str, stages: str) -> dict[str, object]:
    """The recipe: "all" of its stages, or only the "filters" of text and the redaction."""
    from gristmill import LocalExecutor, Pipeline
    from gristmill.dedup import FuzzyDeduplicationStage
    from gristmill.recipes import load_recipe
    from gristmill.text import IdentifyLanguage, ScoreFilter, UrlBlocklistFilter

    made = load_recipe("fineweb", {"input": folder, "output": output}).build().stages
    if stages == "filters":
        made = [
            one
            for one in made
            if not isinstance(one, IdentifyLanguage | FuzzyDeduplicationStage)
            and not (isinstance(one, ScoreFilter) and isinstance(one.filter_obj, UrlBlocklistFilter))
        ]
    made[-1].mode = "overwrite"
    return {"rows": Pipeline("measured", stages=made).run(LocalExecutor(1)).summary().rows_out}


def exact(folder: str, output: str, options: str = "{}") -> dict[str, object]:
    """Texts that were there before are dropped."""
    from gristmill.dedup import ExactDeduplicationStage

    return _dedup(folder, output, ExactDeduplicationStage(**json.loads(options)))


def fuzzy(folder: str, output: str, options: str = "{}") -> dict[str, object]:
    """Texts that are nearly as others are dropped."""
    from gristmill.dedup import FuzzyDeduplicationStage

    return _dedup(folder, output, FuzzyDeduplicationStage(**json.loads(options)))


def _dedup(folder: str, output: str, stage: Any) -> dict[str, object]:
    from gristmill import LocalExecutor, Pipeline
    from gristmill.text import JsonlReader, JsonlWriter

    stages = [JsonlReader(folder), stage, JsonlWriter(output, mode="overwrite")]
    Pipeline("measured", stages=stages).run(LocalExecutor(num_workers=2))
    return {}


def scores(folder: str, output: str, tools: str) -> dict[str, object]:
    """The score of every document by each filter, and whether it is kept, one JSON line per document."""
    import orjson
    import pyarrow as pa

    made = make(tools)
    for tool in made:
        tool.setup()
    with open(output, "wb") as file:
        for path in sorted(Path(folder).glob("*.jsonl")):
            records = [orjson.loads(line) for line in path.read_bytes().splitlines()]
            texts = pa.array([record["text"] for record in records])
            columns = [_column(tool, texts) for tool in made]
            for record, *row in zip(records, *columns, strict=True):
                file.write(orjson.dumps([record["id"], row], option=orjson.OPT_APPEND_NEWLINE))
    return {}


def _column(tool: Any, texts: Any) -> list[tuple[Any, bool]]:
    found = tool.score_batch(texts)
    return list(zip(found.to_pylist(), tool.keep_batch(found).to_pylist(), strict=True))


if __name__ == "__main__":
    answer = globals()[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(answer))
