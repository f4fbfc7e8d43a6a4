"""A process may have few file descriptors, and some above its limit."""

import subprocess
import sys

SCRIPT = """
import os, resource, sys
from gristmill import LocalExecutor, Pipeline
from gristmill.text import JsonlReader, JsonlWriter

if __name__ == "__main__":
    os.dup2(os.open(os.devnull, os.O_RDONLY), 200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    stages = [JsonlReader("in.jsonl"), JsonlWriter("out")]
    Pipeline("few", stages=stages).run(LocalExecutor(num_workers=2))
"""


def test_descriptors_above_a_limit_that_was_lowered_do_no_harm(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text":"x"}\n' * 10)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sum(len(path.read_text().splitlines()) for path in (tmp_path / "out").iterdir()) == 10
