"""Builds the kernels with AddressSanitizer and UndefinedBehaviorSanitizer, and feeds them random bytes."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build_kernels(folder: Path) -> Path:
    extension = folder / "_kernels.so"
    sources = sorted((ROOT / "kernels").glob("*.c"))
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-shared", "-fPIC"]
    include = f"-I{sysconfig.get_paths()['include']}"
    subprocess.run(["gcc", "-D_GNU_SOURCE", *flags, include, "-o", extension, *sources], check=True)
    return extension


def feed_kernels(extension: Path, seconds: float, seed: int) -> subprocess.CompletedProcess[str]:
    """Prints how many rounds were done; a round feeds each kernel with some texts."""
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    env = {
        **os.environ,
        "LD_PRELOAD": runtime.stdout.strip(),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    script = ROOT / "tests" / "text" / "fuzz_kernels.py"
    command = [sys.executable, script, extension, str(seconds), str(seed)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def run_kernels(extension: Path, seconds: float, seed: int, out: Path) -> tuple[int, int]:
    """The rounds that were done, and 1 if a kernel failed."""
    done = feed_kernels(extension, seconds, seed)
    if done.returncode == 0:
        return int(done.stdout), 0
    (out / "failures").mkdir(parents=True, exist_ok=True)
    (out / "failures" / f"{seed}.txt").write_text(done.stderr[-20_000:])
    return 1, 1
