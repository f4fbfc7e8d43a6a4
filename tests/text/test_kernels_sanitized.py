"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, with bytes that are not even UTF-8."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fuzz.sanitized_kernels import build_kernels, feed_kernels

SECONDS = 6


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc and its sanitizers")
def test_random_bytes_break_nothing(tmp_path: Path) -> None:
    done = feed_kernels(build_kernels(tmp_path), SECONDS, 1)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout) > 50
