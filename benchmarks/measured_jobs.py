"""The programs that are measured, each in a process of its own: `python benchmarks/measured_jobs.py NAME ARGUMENTS...`.

They import nothing before they need it, as a user's script would, and print one line of JSON as their answer.
"""

import sys


def import_gristmill() -> dict[str, object]:
    import gristmill  # noqa: F401

    heavy = [name for name in ("numpy", "pandas", "polars", "pyarrow", "ray", "rich", "torch") if name in sys.modules]
    return {"modules": len(sys.modules), "heavy": heavy}


def small(folder: str, output: str, workers: str = "default") -> dict[str, object]:
    """Read, two filters, write; how it looks when the first file of output is there."""
    import os
    import time

    began = time.perf_counter()
    from gristmill import LocalExecutor, Pipeline
    from gristmill.text import JsonlReader, JsonlWriter, MeanWordLengthFilter, ScoreFilter, WordCountFilter

    pipeline = Pipeline("small")
    pipeline.add_stage(JsonlReader(folder))
    pipeline.add_stage(ScoreFilter(WordCountFilter(min_words=50)))
    pipeline.add_stage(ScoreFilter(MeanWordLengthFilter()))
    pipeline.add_stage(JsonlWriter(output, mode="overwrite"))
    first = None
    rows = 0
    executor = LocalExecutor(num_workers=None if workers == "default" else int(workers))
    for written in pipeline.stream(executor):
        if first is None:
            wall, driver = time.perf_counter() - began, time.process_time()
            from process_measurement import children_cpu, loaded

            first = {
                "first_cpu": driver + children_cpu(os.getpid()),
                "first_wall": wall,
                "pandas_in_workers": loaded("pandas", os.getpid()),
            }
        rows += written.num_items
    return {"rows": rows, "pandas_in_driver": "pandas" in sys.modules, "driver_cpu": time.process_time(), **first}


def small_loop(folder: str, output: str) -> dict[str, object]:
    """The same work in a plain loop."""
    from pathlib import Path

    import orjson

    rows = 0
    Path(output).mkdir(parents=True, exist_ok=True)
    for path in sorted(Path(folder).glob("*.jsonl")):
        with open(path, "rb") as lines, open(Path(output, path.name), "wb") as kept:
            for line in lines:
                record = orjson.loads(line)
                if 50 <= len(record["text"].split()) <= 100000:
                    words = record["text"].split()
                    if 3 <= sum(map(len, words)) / len(words) <= 10:
                        kept.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
                        rows += 1
    return {"rows": rows}


def tiny(count: str, fuse: str) -> dict[str, object]:
    """Many tasks of 100 bytes through three stages that do next to nothing."""
    import time

    from gristmill import LocalExecutor, Pipeline, Task, processing_stage

    @processing_stage(name="one")
    def one(task: Task) -> Task:
        return Task(data=task.data)

    @processing_stage(name="two")
    def two(task: Task) -> Task:
        return Task(data=task.data)

    @processing_stage(name="three")
    def three(task: Task) -> Task:
        return Task(data=task.data)

    tasks = [Task(data=b"%0100d" % number) for number in range(int(count))]
    began = time.perf_counter()
    executor = LocalExecutor(num_workers=0) if fuse == "inline" else LocalExecutor(fuse=fuse == "fused")
    result = Pipeline("tiny", stages=[one, two, three]).run(executor, initial_tasks=tasks)
    wall = time.perf_counter() - began
    assert len(result) == int(count), len(result)
    return {"run_wall": wall}


def tiny_pools(count: str, chunk: str) -> dict[str, object]:
    """The same through three pools of the standard library, of one process each."""
    import multiprocessing
    import time

    tasks = [b"%0100d" % number for number in range(int(count))]
    began = time.perf_counter()
    with multiprocessing.Pool(1) as one, multiprocessing.Pool(1) as two, multiprocessing.Pool(1) as three:
        results = iter(tasks)
        for pool in (one, two, three):
            results = pool.imap(bytes, results, int(chunk))
        assert sum(1 for _ in results) == int(count)
    return {"run_wall": time.perf_counter() - began}


def text(path: str, output: str, stages: str = "", workers: str = "default") -> dict[str, object]:
    """JSON lines in, the named stages, JSON lines out."""
    import gristmill.text
    from gristmill import LocalExecutor, Pipeline
    from gristmill.text import JsonlReader, JsonlWriter, Modify, ScoreFilter

    pipeline = Pipeline("text")
    pipeline.add_stage(JsonlReader(path))
    for name in filter(None, stages.split(",")):
        tool = getattr(gristmill.text, name)()
        pipeline.add_stage(ScoreFilter(tool) if name.endswith("Filter") else Modify(tool))
    pipeline.add_stage(JsonlWriter(output, mode="overwrite"))
    result = pipeline.run(LocalExecutor(num_workers=None if workers == "default" else int(workers)))
    summary = result.summary()
    return {"rows_in": summary.rows_in, "rows_out": summary.rows_out}


def copy_loop(path: str, output: str) -> dict[str, object]:
    """Parse each line and write it again: what JSON lines to JSON lines costs with nothing around it."""
    from pathlib import Path

    import orjson

    rows = 0
    Path(output).mkdir(parents=True, exist_ok=True)
    with open(path, "rb") as lines, open(Path(output, "copy.jsonl"), "wb") as copied:
        for line in lines:
            copied.write(orjson.dumps(orjson.loads(line), option=orjson.OPT_APPEND_NEWLINE))
            rows += 1
    return {"rows_out": rows}


def parquet(path: str, output: str) -> dict[str, object]:
    """Parquet in, Parquet out, nothing between."""
    from gristmill import Pipeline
    from gristmill.text import ParquetReader, ParquetWriter

    stages = [ParquetReader(path), ParquetWriter(output, mode="overwrite")]
    return {"rows_out": Pipeline("parquet", stages=stages).run().summary().rows_out}


def copy_parquet(path: str, output: str) -> dict[str, object]:
    """The same by pyarrow in a plain loop, on one thread."""
    from pathlib import Path

    import pyarrow.parquet as pq

    rows = 0
    Path(output).mkdir(parents=True, exist_ok=True)
    with (
        pq.ParquetFile(path) as file,
        pq.ParquetWriter(f"{output}/copy.parquet", file.schema_arrow, compression="zstd") as to,
    ):
        for batch in file.iter_batches(8192, use_threads=False):
            to.write_batch(batch)
            rows += batch.num_rows
    return {"rows_out": rows}


def _nothing(*_: object) -> str:
    return ""


class _NoHash:
    update = hexdigest = _nothing


def books(demo: str, output: str, loop_turns: str = "30") -> dict[str, object]:
    """The demo pipeline by turns without ledger, checksums, manifest and counters, with them, and with a report too:
    CPU seconds of the best turn of each, which others on the machine have disturbed least. In each turn bytes pass
    through what makes checksums, which makes none without them."""
    import shutil
    import tempfile
    import time
    from unittest import mock

    from gristmill import LocalExecutor
    from gristmill.recipes import load_recipe

    recipe = load_recipe(f"{demo}/recipe.yaml", {"input": f"{demo}/data", "output": output})
    switched_off = [
        mock.patch("gristmill.core.records.stage_stats.StageStats.saw", _nothing),
        mock.patch("gristmill.core.records.stage_stats.StageStats.gave", _nothing),
        mock.patch("gristmill.io.storage.checksum.xxhash.xxh3_128", _NoHash),
        mock.patch("gristmill.io.write.commit.write_manifest", _nothing),
        mock.patch("gristmill.core.run.run_segments.check_books", _nothing),
    ]
    demo_runs = tempfile.mkdtemp()
    seconds = {"with_s": 1e9, "without_s": 1e9, "report_s": 1e9}
    for _ in range(int(loop_turns)):
        for name, best in list(seconds.items()):
            for switch in switched_off if name == "without_s" else ():
                switch.start()
            began = time.process_time()
            run_dir = None if name == "without_s" else tempfile.mkdtemp(dir=demo_runs)
            options = {"max_errors": None, "report": name == "report_s"}  # a share of errors needs the counters
            recipe.build().run(LocalExecutor(0), run_dir=run_dir, **options)
            seconds[name] = min(best, time.process_time() - began)
            mock.patch.stopall()
    shutil.rmtree(demo_runs)
    return seconds


def resume(folder: str, output: str, run_dir: str) -> dict[str, object]:
    """Goes on with a run, which may be finished."""
    from gristmill import Pipeline
    from gristmill.text import JsonlReader, JsonlWriter, ScoreFilter, WordCountFilter

    stages = [JsonlReader(folder), ScoreFilter(WordCountFilter()), JsonlWriter(output)]
    result = Pipeline("many", stages=stages).run(run_dir=run_dir)
    return {"rows": result.summary().rows_in, "files": len(result.files())}


def look_at(*folders: str) -> dict[str, object]:
    """The sizes of all files of some folders: what going on with a run that is finished must do at least."""
    import os

    return {"bytes": sum(file.stat().st_size for folder in folders for file in os.scandir(folder))}


def warc(path: str, output: str, extractor: str) -> dict[str, object]:
    """The text of the pages of a WARC file, to JSON lines."""
    from gristmill import Pipeline
    from gristmill.download import WarcReader
    from gristmill.text import JsonlWriter

    stages = [WarcReader(path, extractor=extractor), JsonlWriter(output, mode="overwrite")]
    return {"rows": Pipeline("warc", stages=stages).run().summary().rows_out}


def warc_extract(path: str, extractor: str) -> dict[str, object]:
    """CPU seconds of our extraction and of the library's, page by page, and on how many pages they agree."""
    import time

    from gristmill.download import CommonCrawlWarcIterator, get_stop_list_dict
    from gristmill.download.web.charset import decode_page
    from gristmill.download.web.html_extractors import ParagraphExtractor, make_algorithm

    words = get_stop_list_dict(["en"])["en"]
    kwargs = {} if extractor == "justext" else {"required_stopword_density": 0}
    kwargs |= {"deduplicate": False} if extractor == "trafilatura" else {}
    algorithm = make_algorithm(extractor, kwargs)
    assert isinstance(algorithm, ParagraphExtractor)
    bare = _bare(extractor, words)
    ours_s = bare_s = pages = same = 0.0
    for record in CommonCrawlWarcIterator().iterate(path):
        html = decode_page(record["content"], record["content_type"])
        began = time.process_time()
        found = algorithm.extract_text(html, words, "en") if pages % 2 else bare(html)
        middle = time.process_time()
        theirs = bare(html) if pages % 2 else algorithm.extract_text(html, words, "en")
        first, second = middle - began, time.process_time() - middle
        ours_s += first if pages % 2 else second
        bare_s += second if pages % 2 else first
        pages += 1
        same += found == theirs
    return {"ours_s": ours_s, "bare_s": bare_s, "pages": int(pages), "same": int(same)}


def _bare(extractor: str, words: frozenset[str]):
    import justext
    import trafilatura
    from resiliparse.extract.html2text import extract_plain_text

    def lines(text: str | None) -> list[str]:
        return [line for line in (text or "").split("\n") if line]

    return {
        "resiliparse": lambda html: lines(extract_plain_text(html, main_content=True, alt_texts=False)),
        "justext": lambda html: [one.text for one in justext.justext(html, words) if not one.is_boilerplate],
        "trafilatura": lambda html: lines(trafilatura.extract(html)),
    }[extractor]


if __name__ == "__main__":
    import json

    answer = globals()[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(answer))
