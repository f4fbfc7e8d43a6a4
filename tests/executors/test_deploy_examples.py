"""The files of `examples/deploy`: the script runs as Slurm would run it, the manifests have their form."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gristmill.recipes import load_recipe

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"

SRUN = """#!/bin/bash
# what srun does with one task per node, on two nodes that are this machine
shift
for node in 0 1; do SLURM_NODEID=$node "$@" & done
for node in 0 1; do wait -n || { kill $(jobs -p); exit 1; }; done
"""


@pytest.mark.ray
def test_the_slurm_script_runs_on_all_nodes(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "in").mkdir()
    rows = [{"id": number, "text": "grist " * number} for number in range(40)]
    (tmp_path / "in" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "srun").write_text(SRUN)
    (commands / "srun").chmod(0o755)
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {
        "PATH": f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "78",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_ON_NODE": "1",
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }
    places = [str(tmp_path / name) for name in ("in", "out", "run")]
    done = subprocess.run(
        ["bash", DEPLOY / "slurm.sh", *places], env=env, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 0, done.stderr
    [file] = (tmp_path / "out").glob("*.jsonl")
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == list(range(20, 40))
    assert "commit_jsonl" in done.stdout


def test_the_kubernetes_job_runs_a_recipe_that_there_is() -> None:
    job: dict[str, Any] = yaml.safe_load((DEPLOY / "rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    command = shlex.split(job["spec"]["entrypoint"])
    assert command[:2] == ["gristmill", "run"]
    settings = dict(command[index + 1].split("=", 1) for index, word in enumerate(command) if word == "--set")
    recipe = load_recipe(command[2], settings)
    assert recipe.build().stages
    assert recipe.executor(command[command.index("--executor") + 1]) is not None
    spec = job["spec"]["rayClusterSpec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    assert all(group["template"]["spec"]["containers"][0]["image"] for group in groups)


def test_the_cloud_file_has_the_node_types_that_it_names() -> None:
    cloud: dict[str, Any] = yaml.safe_load((DEPLOY / "cloud.yaml").read_text())
    assert cloud["head_node_type"] in cloud["available_node_types"]
    assert cloud["available_node_types"]["head"]["resources"] == {"CPU": 0}
