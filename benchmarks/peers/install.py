"""Installs the systems that Gristmill is compared with, each in a virtual environment under the user's cache directory.

Every package is pinned in NAME.txt and installed without looking at its dependencies: what the measured stages never
import, such as PyTorch and all of CUDA, is left out. A changed list makes a new environment. fastText is compiled.

    python benchmarks/peers/install.py [NAME...]
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

LISTS = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gristmill" / "peers"


def peers() -> list[str]:
    return sorted(path.stem for path in LISTS.glob("*.txt"))


def version(peer: str) -> str:
    """The release of a peer that is pinned."""
    return pins(peer)[peer]


def pins(peer: str) -> dict[str, str]:
    """All packages of a peer's environment, and their versions."""
    lines = (LISTS / f"{peer}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def interpreter(peer: str) -> Path:
    """The Python of a peer's environment, which is made first if it is not there."""
    wanted = LISTS / f"{peer}.txt"
    home = CACHE / f"{peer}-{hashlib.sha256(wanted.read_bytes()).hexdigest()[:8]}"
    python, stamp = home / "bin" / "python", home / "complete"
    if not stamp.exists():
        print(f"installing {peer} {version(peer)}: several minutes", flush=True)
        venv.create(home, clear=True, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--requirement", str(wanted)], check=True)
        stamp.touch()
    return python


def additions(peer: str, kind: str) -> Path:
    """A directory with more packages for a peer, to be named in PYTHONPATH: those of KIND/NAME.txt."""
    wanted = LISTS / kind / f"{peer}.txt"
    home = CACHE / f"{peer}-{kind}-{hashlib.sha256(wanted.read_bytes()).hexdigest()[:8]}"
    if not (home / "complete").exists():
        pip = [str(interpreter(peer)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--upgrade", "--target", str(home), "--requirement", str(wanted)], check=True)
        (home / "complete").touch()
    return home


def main() -> None:
    for peer in sys.argv[1:] or peers():
        print(interpreter(peer))


if __name__ == "__main__":
    main()
