"""The job of the deployment examples: the same script on a laptop, under Slurm and on a Ray cluster.

python examples/deploy/curate.py INPUT OUTPUT RUN_DIR
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext

from gristmill import Pipeline, RayActorPoolExecutor, SlurmRayClient
from gristmill.text import JsonlReader, JsonlWriter, ScoreFilter, WordCountFilter


def main(source: str, output: str, run_dir: str) -> None:
    pipeline = Pipeline(
        name="curate",
        stages=[JsonlReader(source), ScoreFilter(WordCountFilter(min_words=20)), JsonlWriter(output)],
    )
    with SlurmRayClient() if "SLURM_JOB_ID" in os.environ else nullcontext():
        result = pipeline.run(RayActorPoolExecutor(), run_dir=run_dir)
    print(result.summary())


if __name__ == "__main__":
    main(*sys.argv[1:])
