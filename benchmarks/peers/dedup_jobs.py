"""What is measured of other systems that deduplicate, each by its own interpreter: `python dedup_jobs.py NAME IN OUT`.

All read the JSON lines of a folder and write what they keep below another, with two processes or threads. Near
duplicates are found by runs of 5 words, with 14 bands of 8 numbers, which is what datatrove does if one says nothing.
The last line of output is JSON.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

WORDS, BANDS, ROWS, THRESHOLD, PROCESSES = 5, 14, 8, 0.8, 2


# -- text-dedup ----------------------------------------------------------------------------------------------


def text_dedup_exact(folder: str, output: str) -> dict[str, object]:
    _text_dedup("exact_hash", folder, output, "--hash_func", "xxh3")
    return {}


def text_dedup_fuzzy(folder: str, output: str) -> dict[str, object]:
    shape = ["--ngram", str(WORDS), "--num_perm", str(BANDS * ROWS), "--b", str(BANDS), "--r", str(ROWS)]
    _text_dedup("minhash", folder, output, *shape, "--hash_func", "xxh3")
    return {}


def _text_dedup(name: str, folder: str, output: str, *options: str) -> None:
    """Its commands, called in this process."""
    from importlib import import_module

    files = ["--path", "json", "--data_files", f"{folder}/*.jsonl", "--split", "train", "--column", "text"]
    places = ["--cache_dir", f"{output}/cache", "--output", f"{output}/kept", "--num_proc", str(PROCESSES)]
    import_module(f"text_dedup.{name}").main([*files, *places, *options], standalone_mode=False)


# -- datatrove -----------------------------------------------------------------------------------------------


def datatrove_exact(folder: str, output: str) -> dict[str, object]:
    """Its three steps."""
    from datatrove.data import Document
    from datatrove.pipeline.dedup import ExactDedupConfig, ExactDedupFilter, ExactDedupSignature, ExactFindDedups

    def content(document: Document) -> str:
        return document.text

    config = ExactDedupConfig(content_getter=content)
    files = len(list(Path(folder).glob("*.jsonl")))
    finders = PROCESSES
    _trove(output, "1", files, _read(folder), ExactDedupSignature(f"{output}/hashes", config, finder_workers=finders))
    _trove(output, "2", finders, ExactFindDedups(f"{output}/hashes", f"{output}/found", config))
    _trove(output, "3", files, _read(folder), ExactDedupFilter(f"{output}/found", config), _write(output))
    return {}


def datatrove_fuzzy(folder: str, output: str) -> dict[str, object]:
    """Its four steps."""
    from datatrove.pipeline.dedup import (
        MinhashConfig,
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )

    config = MinhashConfig(n_grams=WORDS, num_buckets=BANDS, hashes_per_bucket=ROWS)
    files = len(list(Path(folder).glob("*.jsonl")))
    signed, found, removed = (f"{output}/{name}" for name in ("signatures", "buckets", "removed"))
    _trove(output, "1", files, _read(folder), MinhashDedupSignature(signed, config=config))
    _trove(output, "2", BANDS, MinhashDedupBuckets(signed, found, config=config))
    _trove(output, "3", 1, MinhashDedupCluster(found, removed, config=config))
    _trove(output, "4", files, _read(folder), MinhashDedupFilter(removed), _write(output))
    return {}


def _read(folder: str) -> Any:
    from datatrove.pipeline.readers import JsonlReader

    return JsonlReader(folder, glob_pattern="*.jsonl")


def _write(output: str) -> Any:
    from datatrove.pipeline.writers import JsonlWriter

    return JsonlWriter(f"{output}/kept", compression=None)


def _trove(output: str, step: str, tasks: int, *steps: Any) -> None:
    from datatrove.executor import LocalPipelineExecutor

    LocalPipelineExecutor(
        pipeline=list(steps), tasks=tasks, workers=min(PROCESSES, tasks), logging_dir=f"{output}/logs/{step}"
    ).run()


# -- Data-Juicer ---------------------------------------------------------------------------------------------


def data_juicer_exact(folder: str, output: str) -> dict[str, object]:
    return _juicer(folder, output, {"document_deduplicator": {}})


def data_juicer_fuzzy(folder: str, output: str) -> dict[str, object]:
    shape = {"num_permutations": BANDS * ROWS, "num_bands": BANDS, "num_rows_per_band": ROWS}
    how = {"tokenization": "space", "window_size": WORDS, "jaccard_threshold": THRESHOLD, **shape}
    return _juicer(folder, output, {"document_minhash_deduplicator": how})


def _nothing() -> None:
    pass


def _juicer(folder: str, output: str, step: dict[str, Any]) -> dict[str, object]:
    """After each step it frees its models, for which it would install PyTorch, though there are none."""
    from unittest import mock

    from data_juicer.config import init_configs
    from data_juicer.core import DefaultExecutor

    recipe = Path(output, "recipe.yaml")
    recipe.parent.mkdir(parents=True, exist_ok=True)
    whole = {"project_name": "measured", "dataset_path": folder, "export_path": f"{output}/kept/kept.jsonl"}
    recipe.write_text(json.dumps({**whole, "np": PROCESSES, "process": [step], "work_dir": output}))
    with mock.patch("data_juicer.ops.base_op.free_models", _nothing):
        DefaultExecutor(init_configs(["--config", str(recipe)])).run()
    return {}


# -- dolma ---------------------------------------------------------------------------------------------------


def dolma_exact(folder: str, output: str) -> dict[str, object]:
    """Its two steps: one notes which texts a Bloom filter has seen, the other leaves those documents out."""
    documents = _dolma_documents(folder, output)
    bloom = {"file": f"{output}/bloom", "read_only": False}
    bloom |= {"estimated_doc_count": 1_000_000, "desired_false_positive_rate": 1e-6}
    dedupe = {"name": "seen", "documents": {"key": "$.text", "attribute_name": "seen"}}
    _dolma("dedupe", output, {"documents": [documents], "dedupe": dedupe, "bloom_filter": bloom})
    unseen = {"syntax": "jq", "exclude": ["(.attributes.seen // []) | length > 0"]}
    stream = {"name": "kept", "documents": [documents], "attributes": ["seen"], "filter": unseen}
    stream |= {"output": {"path": f"{output}/kept"}, "compression": {"output": ""}}
    _dolma("mix", output, {"streams": [stream]})
    for path in list(Path(output, "kept").glob("*.json")):
        path.rename(path.with_suffix(".jsonl"))
    return {}


def dolma_tags(folder: str, output: str) -> dict[str, object]:
    """What its taggers of Gopher and C4 say of each document, beside the documents."""
    documents = _dolma_documents(folder, output)
    _dolma("tag", output, {"documents": [documents], "taggers": ["gopher_v2", "c4_v2"], "experiment": "tags"})
    return {"rows": sum(path.read_bytes().count(b"\n") for path in Path(output).glob("attributes/tags/*.jsonl"))}


def _dolma_documents(folder: str, output: str) -> str:
    """It writes beside a folder that must be called `documents`."""
    documents = Path(output, "documents")
    documents.mkdir(parents=True)
    for path in Path(folder).glob("*.jsonl"):
        (documents / path.name).symlink_to(path.resolve())
    return f"{documents}/*.jsonl"


def _dolma(command: str, output: str, recipe: dict[str, Any]) -> None:
    """Its commands, called in this process."""
    from dolma.cli.main import main

    path = Path(output, f"{command}.yaml")
    path.write_text(json.dumps({**recipe, "processes": PROCESSES}))
    main(["--config", str(path), command])


# -- libraries: what a user writes around them is here -------------------------------------------------------


def rensa_fuzzy(folder: str, output: str) -> dict[str, object]:
    """One process: its deduplicator looks at one document after another, and keeps an index of those before."""
    import orjson
    from rensa import RMinHashDeduplicator

    seen = RMinHashDeduplicator(threshold=THRESHOLD, num_perm=BANDS * ROWS, use_lsh=True, num_bands=BANDS, seed=42)
    Path(output, "kept").mkdir(parents=True, exist_ok=True)
    for path in sorted(Path(folder).glob("*.jsonl")):
        with open(path, "rb") as lines, open(Path(output, "kept", path.name), "wb") as kept:
            some = lines.readlines()
            records = [orjson.loads(line) for line in some]
            duplicates = seen.add_pairs((record["id"], _shingles(record["text"])) for record in records)
            kept.writelines(line for line, new in zip(some, duplicates, strict=True) if new)
    return {}


def _shingles(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[start : start + WORDS]) for start in range(max(len(words) - WORDS + 1, 1))]


def polars_exact(folder: str, output: str) -> dict[str, object]:
    """The first of each, in order, which is what Gristmill gives."""
    return _polars(folder, output, keep="first", maintain_order=True)


def polars_any_exact(folder: str, output: str) -> dict[str, object]:
    """Any of each, in any order."""
    return _polars(folder, output, keep="any", maintain_order=False)


def _polars(folder: str, output: str, **how: Any) -> dict[str, object]:
    os.environ["POLARS_MAX_THREADS"] = str(PROCESSES)
    import polars as pl

    Path(output, "kept").mkdir(parents=True, exist_ok=True)
    rows = pl.scan_ndjson(f"{folder}/*.jsonl").unique(subset=["text"], **how)
    rows.sink_ndjson(f"{output}/kept/kept.jsonl")
    return {}


if __name__ == "__main__":
    answer = globals()[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(answer))
