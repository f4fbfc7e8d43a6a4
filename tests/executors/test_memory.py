"""Memory: workers hold their blocks in large pages, also after they have given back what they did not use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gristmill.executors.zygote import _MEMORY

PROGRAM = """
import re
from gristmill.executors.memory import give_back, use_large_pages

def large(block):
    "Whether a block lies in memory that is to have large pages."
    inside = False
    for line in open("/proc/self/smaps"):
        if place := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(place[1], 16) <= id(block) + 2**20 < int(place[2], 16)
        elif inside and line.startswith("VmFlags"):
            return " hg" in line

found = [large(bytes(2**24))]
for _ in range(2):
    use_large_pages()
    found.append(large(bytes(2**24)))
    give_back()
    found.append(large(bytes(2**24)))
print(found)
"""


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has no large pages")
def test_blocks_lie_in_large_pages() -> None:
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **_MEMORY}, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "[False, True, False, True, False]"
