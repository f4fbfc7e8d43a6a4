"""What is installed, what this machine has, and what can be reached. Nothing heavy is imported, nothing is started.

Gives up: checking that credentials are valid; only their presence is checked.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gristmill import __version__

OK, NOTE, OPTIONAL, MISSING, PROBLEM = "ok", "note", "optional", "missing", "problem"
"""Only what is missing for a recipe, or a problem, is a reason for exit code 1; optional is an extra not installed."""

FEATURES: Mapping[str, str] = {
    "text": "UnicodeReformatter",
    "zh": "filters with lang='zh'",
    "lang": "language identification, fastText models",
    "tokenizers": "counting tokens, writing tokens",
    "s3": "s3:// paths",
    "pandas": "to_pandas()",
    "polars": "to_polars()",
    "ray": "running on Ray",
    "xenna": "XennaExecutor",
    "download": "fetching from the web",
    "web": "extracting text from HTML and Common Crawl",
    "wiki": "Wikipedia dumps",
    "pdf": "reading PDF",
    "image": "images",
    "qrcode": "QR codes in images",
    "interleaved": "documents of text and images, also from PDF and HTML",
    "audio": "recordings, and the sound of videos",
    "video": "films and clips",
    "asr": "speech recognition with Whisper",
    "shots": "TransNetV2, which finds cuts in films",
    "onnx": "ONNX models",
    "torch": "PyTorch models",
    "transformers": "text models of architectures that are not built in",
    "wordllama": "static embeddings of text",
    "nsfw": "the NSFW filter for images with its own weights",
    "hub": "the Hugging Face hub",
    "otel": "traces with OpenTelemetry",
}
"""What each extra is for."""

DEVELOPMENT = frozenset({"all", "bench", "browser", "dev"})
"""Extras that no feature needs."""

_REQUIRED = re.compile(r"([A-Za-z0-9._-]+)(\[[^\]]*\])?([^;]*)(?:;.*extra\s*==\s*[\"']([\w-]+)[\"'])?")
_CREDENTIALS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "S3": (("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"), "~/.aws/credentials"),
    "Google Cloud": (
        ("GOOGLE_APPLICATION_CREDENTIALS",),
        "~/.config/gcloud/application_default_credentials.json",
    ),
    "Azure": (("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_CLIENT_SECRET"), ""),
    "Hugging Face": (("HF_TOKEN",), "~/.cache/huggingface/token"),
}
_CLUSTER = "ray/ray_current_cluster"
_CONNECT_S = 2.0


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One thing that was looked at: how it is, and what to do about it."""

    area: str
    name: str
    state: str
    text: str
    fix: str = ""


def check_environment() -> Iterator[DoctorFinding]:
    """All there is to say without a recipe."""
    yield from _software()
    yield from _extras()
    yield from _machine()
    yield from _gpus()
    yield from _ray()
    yield from _credentials()


# -- software ----------------------------------------------------------------------------------------------


def _software() -> Iterator[DoctorFinding]:
    supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    version = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    fix = "" if supported else "use Python 3.11, 3.12 or 3.13"
    yield DoctorFinding("software", "Python", OK if supported else PROBLEM, version, fix)
    yield DoctorFinding("software", "gristmill", OK, __version__)
    built = importlib.util.find_spec("gristmill._kernels") is not None
    if built:
        yield DoctorFinding("software", "kernels", OK, "C kernels available")
    else:
        fix = "install a C compiler and the headers of Python, then pip install --force-reinstall gristmill"
        yield DoctorFinding(
            "software", "kernels", NOTE, "C kernels not built; the slower Python versions are used", fix
        )
    for package in requirements().get("", ()):
        if installed_version(package) is None:
            yield DoctorFinding("software", package, PROBLEM, "not installed", "pip install gristmill")


def requirements() -> dict[str, list[str]]:
    """The packages that each extra asks for; those that are always needed under the empty name."""
    try:
        lines = importlib.metadata.requires("gristmill") or []
    except importlib.metadata.PackageNotFoundError:  # used from its source, without being installed
        return {}
    found: dict[str, set[str]] = {}
    for line in lines:
        if parts := _REQUIRED.match(line):
            found.setdefault(parts[4] or "", set()).add(parts[1].lower() + (parts[2] or ""))
    return {extra: sorted(_packages(extra, found)) for extra in found if extra not in DEVELOPMENT}


def _packages(extra: str, found: Mapping[str, set[str]]) -> set[str]:
    """The packages of an extra, with those of the extras that it contains."""
    packages: set[str] = set()
    for name in found.get(extra, ()):
        package, _, inner = name.rstrip("]").partition("[")
        if package == "gristmill":
            packages.update(*(_packages(other.strip(), found) for other in inner.split(",")))
        else:
            packages.add(package)
    return packages


def installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def install_command(*extras: str) -> str:
    return f"pip install 'gristmill[{','.join(extras)}]'"


def _extras() -> Iterator[DoctorFinding]:
    wanted = requirements()
    if not wanted:
        text = "not installed as a package, so that its extras are not known"
        yield DoctorFinding(
            "extras", "gristmill", NOTE, text, "pip install gristmill, or pip install -e . in its source"
        )
    for extra, packages in sorted(wanted.items()):
        if not extra:
            continue
        versions = {package: installed_version(package) for package in packages}
        lacks = [package for package, version in versions.items() if version is None]
        if lacks:
            text = f"not installed: {', '.join(lacks)}. Needed for: {FEATURES.get(extra, extra)}"
            yield DoctorFinding("extras", extra, OPTIONAL, text, install_command(extra))
        else:
            text = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield DoctorFinding("extras", extra, OK, text)


# -- the machine -------------------------------------------------------------------------------------------


def _machine() -> Iterator[DoctorFinding]:
    from gristmill.executors.machine_resources import count_cpus, total_memory_gb

    yield DoctorFinding(
        "machine", "cores", OK, f"{count_cpus()} available to this process, {os.cpu_count()} on the machine"
    )
    total, free = total_memory_gb(), _available_gb()
    if total is not None:
        yield DoctorFinding("machine", "memory", OK, f"{total:.1f} GB" + (f", {free:.1f} GB available" if free else ""))
    for name, place in (("disk here", Path.cwd()), ("disk for temporary files", Path(tempfile.gettempdir()))):
        yield _disk(
            name, place, 1e9, "results that do not fit in memory are written to disk: free some space, or set TMPDIR"
        )
    shared = Path("/dev/shm")  # noqa: S108  it is only looked at
    if shared.is_dir():
        fix = "workers exchange rows there, or else through slower files: start docker with --shm-size=4g or more"
        yield _disk("shared memory", shared, 256e6, fix)


def _disk(name: str, place: Path, least: float, fix: str) -> DoctorFinding:
    usage = shutil.disk_usage(place)
    enough = usage.free >= least
    text = f"{usage.free / 1e9:,.1f} GB free of {usage.total / 1e9:,.1f} GB"
    return DoctorFinding("machine", name, OK if enough else NOTE, text, "" if enough else fix)


def _available_gb() -> float | None:
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 / 1e9 if found else None


def _gpus() -> Iterator[DoctorFinding]:
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    if not shutil.which("nvidia-smi"):
        yield DoctorFinding("machine", "GPUs", OK, "none found; all stages can run on a CPU")
        return
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stdout", "") or str(error)
        yield DoctorFinding(
            "machine", "GPUs", NOTE, f"nvidia-smi fails: {said.strip()[:200]}", "check the NVIDIA driver"
        )
        return
    for number, line in enumerate(answer.splitlines()):
        yield DoctorFinding("machine", f"GPU {number}", OK, line.strip())


# -- what can be reached -----------------------------------------------------------------------------------


def _ray() -> Iterator[DoctorFinding]:
    version = installed_version("ray")
    if version is None:
        yield DoctorFinding("ray", "ray", NOTE, "not installed: pipelines run on this machine", install_command("ray"))
        return
    yield DoctorFinding("ray", "ray", OK, version)
    address = os.environ.get("RAY_ADDRESS", "")
    if address:
        yield _check_address("RAY_ADDRESS", address, PROBLEM, "start the cluster, or unset RAY_ADDRESS")
        return
    known = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), _CLUSTER)
    if known.is_file():
        yield _check_address(
            "cluster on this machine", known.read_text().strip(), NOTE, f"the cluster is gone: delete {known}"
        )
    else:
        yield DoctorFinding(
            "ray", "cluster", OK, "none is running on this machine; Ray executors start one when needed"
        )


def _check_address(name: str, address: str, otherwise: str, fix: str) -> DoctorFinding:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, ValueError) as error:
        return DoctorFinding("ray", name, otherwise, f"{address} does not answer: {error}", fix)
    return DoctorFinding("ray", name, OK, f"{address} answers")


def _credentials() -> Iterator[DoctorFinding]:
    for name, (variables, file) in _CREDENTIALS.items():
        found = [f"${variable}" for variable in variables if os.environ.get(variable)]
        if file and Path(file).expanduser().is_file():
            found.append(file)
        text = f"found: {', '.join(found)}" if found else "none found; only what is public can be reached"
        yield DoctorFinding("credentials", name, OK if found else NOTE, text)
