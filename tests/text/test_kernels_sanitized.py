"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, with bytes that are not even UTF-8."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 6


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc and its sanitizers")
def test_random_bytes_break_nothing(tmp_path: Path) -> None:
    extension = tmp_path / "_kernels.so"
    sources = sorted((ROOT / "kernels").glob("*.c"))
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-shared", "-fPIC"]
    include = f"-I{sysconfig.get_paths()['include']}"
    subprocess.run(["gcc", "-D_GNU_SOURCE", *flags, include, "-o", extension, *sources], check=True)
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    env = {
        **os.environ,
        "LD_PRELOAD": runtime.stdout.strip(),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    script = Path(__file__).with_name("fuzz_kernels.py")
    command = [sys.executable, script, extension, str(SECONDS), "1"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout) > 50
