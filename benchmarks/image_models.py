"""Figure: what the framework adds to a model, and whether CPU stages work while the model does.

Pictures in tar archives, shown to Yahoo's open_nsfw (a ResNet of real weights, in ONNX Runtime with one thread): by a
loop of nothing but tarfile, simplejpeg, Pillow and the runtime; and by a pipeline of reader and `ImageEmbeddingStage`.
CPU seconds of the whole process tree for each picture; start-up is taken out as the time of a run over a few of them.
Target: at most 5 % above the loop.

`overlap`: of the time in which pictures are made ready by a stage with a pool of its own, the share in which the model
worked on others.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from process_measurement import HERE, WORK, measure, stable

FEW, MANY, PER_TAR = 40, 400, 40
SAMPLE_S = 0.1


def run(rounds: int = 3, many: int = MANY) -> dict[str, Any]:
    folders = {count: archives(count) for count in (FEW, many)}
    found: dict[tuple[str, int], list[Any]] = {}
    for _ in range(rounds):
        for count, folder in folders.items():
            for how in ("loop", "pipeline"):
                command = [sys.executable, str(HERE / "image_models.py"), how, str(folder)]
                found.setdefault((how, count), []).append(measure(command, memory=True, sample_s=SAMPLE_S))
    result: dict[str, Any] = {"pictures": many}
    each: dict[str, list[float]] = {}
    for how in ("loop", "pipeline"):
        pairs = list(zip(found[how, FEW], found[how, many], strict=True))
        each[how] = [(large.cpu - small.cpu) * 1e3 / (many - FEW) for small, large in pairs]
        result[f"{how}_cpu_ms"] = stable(each[how])
        result[f"{how}_wall_ms"] = stable([(large.wall - small.wall) * 1e3 / (many - FEW) for small, large in pairs])
        result[f"{how}_memory_mb"] = stable([large.together for _, large in pairs], 0)
        assert all(large.answer == {"rows": many} for _, large in pairs), "pictures are missing"
    ratios = [100 * (mine / bare - 1) for bare, mine in zip(each["loop"], each["pipeline"], strict=True)]
    result["overhead_percent"] = stable(ratios, 1)
    measured = [
        measure([sys.executable, str(HERE / "image_models.py"), "overlap", str(folders[many])]) for _ in range(rounds)
    ]
    result["overlap_percent"] = stable([one.answer["overlap_percent"] for one in measured], 1)
    return result


def archives(count: int) -> Path:
    """Tar archives with as many pictures, made once."""
    import numpy as np
    from PIL import Image

    folder = WORK / f"pictures-{count}"
    if folder.exists():
        return folder
    made = folder.with_suffix(".partial")
    made.mkdir(parents=True, exist_ok=True)
    for first in range(0, count, PER_TAR):
        with tarfile.open(made / f"{first:06}.tar", "w") as tar:
            for number in range(first, min(first + PER_TAR, count)):
                coarse = np.random.default_rng(number).integers(0, 256, (24, 32, 3), np.uint8)
                buffer = io.BytesIO()
                Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
                member = tarfile.TarInfo(f"{number:06}.jpg")
                member.size = buffer.tell()
                buffer.seek(0)
                tar.addfile(member, buffer)
    made.rename(folder)
    return folder


def loop(folder: str) -> dict[str, Any]:
    """The model, and what it cannot do without."""
    import numpy as np
    import onnxruntime
    import simplejpeg
    from PIL import Image

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(_model(), options, providers=["CPUExecutionProvider"])
    name, mean = session.get_inputs()[0].name, np.array([104, 117, 123], np.float32)
    rows, waiting = 0, []
    for path in sorted(Path(folder).glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                pixels = simplejpeg.decode_jpeg(tar.extractfile(member).read(), "RGB")  # type: ignore[union-attr]
                small = Image.fromarray(pixels).resize((256, 256), Image.Resampling.BILINEAR)
                waiting.append(np.asarray(small)[16:240, 16:240, ::-1] - mean)
                if len(waiting) == 4:
                    rows += len(session.run(None, {name: np.stack(waiting)})[0])
                    waiting = []
    return {"rows": rows}


def pipeline(folder: str) -> dict[str, Any]:
    from gristmill import LocalExecutor, Pipeline
    from gristmill.image import ImageEmbeddingStage, WebDatasetReader

    stages = [WebDatasetReader(folder), ImageEmbeddingStage(_model(), remove_image_data=True)]
    done = Pipeline("embed", stages=stages).run(LocalExecutor(num_workers=1), report=False)
    return {"rows": sum(task.num_items for task in done)}


def overlap(folder: str) -> dict[str, Any]:
    import time

    import pyarrow as pa

    from gristmill import ImageBatch, LocalExecutor, Pipeline, ProcessingStage
    from gristmill.image import ImageEmbeddingStage, WebDatasetReader, pixels_of

    def timed(batch: ImageBatch, name: str, began: float) -> ImageBatch:
        spans = [[began, time.monotonic()]] * batch.num_items
        return batch.with_column(name, pa.array(spans, pa.list_(pa.float64())))

    class Prepare(ProcessingStage[ImageBatch, ImageBatch]):
        num_workers = 1  # a pool of its own

        def process(self, task: ImageBatch) -> ImageBatch:
            began = time.monotonic()
            for _ in range(4):  # as if there was more to do than decode
                pixels_of(ImageBatch(task.data), self)
            return timed(task, "prepared", began)

    class Embed(ImageEmbeddingStage):
        def process_batch(self, tasks: Any) -> Any:
            began = time.monotonic()
            return [timed(batch, "seen", began) for batch in super().process_batch(tasks)]

    stages = [WebDatasetReader(folder, task_batch_size=10), Prepare(), Embed(_model(), remove_image_data=True)]
    done = Pipeline("overlap", stages=stages).run(LocalExecutor(num_workers=2), report=False)
    tables = [task.data for task in done]
    prepared, seen = (joined(table[name][0].as_py() for table in tables) for name in ("prepared", "seen"))
    total = sum(end - began for began, end in prepared)
    shared = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in prepared for b in seen)
    return {"overlap_percent": round(100 * shared / total, 1)}


def joined(spans: Iterable[Sequence[float]]) -> list[list[float]]:
    """Spans of time without what they have in common: tasks of one call have about the same."""
    found: list[list[float]] = []
    for began, end in sorted(spans):
        if found and began <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([began, end])
    return found


def _model() -> str:
    from gristmill.models import Wanted

    return str(Wanted("open_nsfw").place())


if __name__ == "__main__":
    from process_measurement import show

    if len(sys.argv) > 1:
        print(json.dumps({"loop": loop, "pipeline": pipeline, "overlap": overlap}[sys.argv[1]](sys.argv[2])))
    else:
        show(run(rounds=1))
