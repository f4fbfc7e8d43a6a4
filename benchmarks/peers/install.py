"""Installs the systems that Gristmill is compared with, each in a virtual environment under the user's cache directory.

Every package is pinned in NAME.txt and installed without looking at its dependencies: what the measured stages never
import, such as PyTorch and all of CUDA, is left out. A changed list makes a new environment. fastText is compiled.

One that cannot be installed, since a package is not to be had or does not compile here, is named; the others go on.

    python benchmarks/peers/install.py [NAME...]
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

LISTS = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gristmill" / "peers"
PIP = ("pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
_failed: dict[str, str] = {}


class NotInstalled(RuntimeError):
    """A peer's environment cannot be made here."""


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
        began = time.perf_counter()
        if peer not in _failed:
            print(f"installing {peer} {version(peer)}: several minutes", flush=True)
        _once(peer, [sys.executable, "-m", "venv", "--clear", str(home)])
        _once(peer, [str(python), "-m", *PIP, "--requirement", str(wanted)])
        stamp.touch()
        print(f"installed {peer} in {time.perf_counter() - began:.0f} s", flush=True)
    return python


def _once(peer: str, command: list[str]) -> None:
    """Run a command. What has failed for a peer is not tried again, and told with the last that was said."""
    if peer not in _failed:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            _failed[peer] = f"{peer} {version(peer)} cannot be installed: {said[-1] if said else done.returncode}"
    if peer in _failed:
        raise NotInstalled(_failed[peer])


def additions(peer: str, kind: str) -> Path:
    """A directory with more packages for a peer, to be named in PYTHONPATH: those of KIND/NAME.txt."""
    wanted = LISTS / kind / f"{peer}.txt"
    home = CACHE / f"{peer}-{kind}-{hashlib.sha256(wanted.read_bytes()).hexdigest()[:8]}"
    if not (home / "complete").exists():
        pip = [str(interpreter(peer)), "-m", *PIP, "--upgrade", "--target", str(home)]
        _once(peer, [*pip, "--requirement", str(wanted)])
        (home / "complete").touch()
    return home


def main() -> int:
    for peer in sys.argv[1:] or peers():
        try:
            print(interpreter(peer))
            if (LISTS / "web" / f"{peer}.txt").exists():
                print(additions(peer, "web"))
        except NotInstalled as error:
            print(error, flush=True)
    return len(_failed)


if __name__ == "__main__":
    sys.exit(main())
