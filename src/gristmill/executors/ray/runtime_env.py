"""The environment of a stage on a Ray cluster: packages of its own, put where every node finds them.

Packages (`pip`, `uv`, wheels among `py_modules`) are installed once, on the driver, into a folder that holds only what
the environment of the driver does not have in the version that is asked for. The folder is uploaded, and on each node
it comes before what is installed there. So two stages of one pipeline can have two versions of one package, and nodes
need neither an index nor a copy of the whole environment, which is what Ray would make of `pip`.

What is given up: nodes of another platform or Python than the driver's, and packages of several hundred megabytes.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gristmill.core.errors import GristmillError

_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]


class RuntimeEnvironments:
    """The environments of a run's stages."""

    def __init__(self) -> None:
        self._folders: dict[str, tempfile.TemporaryDirectory[str]] = {}

    def prepare(self, env: Mapping[str, Any]) -> dict[str, Any]:
        """The environment as Ray takes it: with nothing that lies on this machine only."""
        env = dict(env)
        modules = [str(module) if isinstance(module, Path) else module for module in env.pop("py_modules", ())]
        wheels = [
            module
            for module in modules
            if isinstance(module, str) and module.endswith(".whl") and _is_local_path(module)
        ]
        wishes = [_pip_arguments(env.pop(tool, ())) for tool in ("pip", "uv")]
        packages = [*wheels, *(package for packages, _ in wishes for package in packages)]
        shared = self._uploaded({"py_modules": [module for module in modules if module not in wheels], **env})
        if packages and (folder := self._installed(packages, [option for _, options in wishes for option in options])):
            shared["py_modules"] = [_upload(folder), *shared.get("py_modules", ())]
        return shared

    def close(self) -> None:
        for folder in self._folders.values():
            folder.cleanup()

    def _installed(self, packages: list[str], options: list[str]) -> str | None:
        """The folder with the packages, if any of them is not here anyway."""
        key = json.dumps([packages, options])
        if key not in self._folders:
            folder = self._folders[key] = tempfile.TemporaryDirectory(prefix="gristmill-env-")
            report = Path(folder.name, "report.json")
            _run([*_PIP, "--dry-run", "--report", str(report), *options, *packages])
            found = json.loads(report.read_text())["install"]
            report.unlink()
            if found:
                urls = [package["download_info"]["url"] for package in found]
                _run([*_PIP, "--target", folder.name, "--no-deps", *options, *urls])
        name = self._folders[key].name
        return name if any(Path(name).iterdir()) else None

    def _uploaded(self, env: dict[str, Any]) -> dict[str, Any]:
        """The environment with its own modules and working directory uploaded, as Ray does it for a whole job."""
        if not env["py_modules"]:
            del env["py_modules"]
        with tempfile.TemporaryDirectory() as scratch:
            for what in ("py_modules", "working_dir"):
                upload = getattr(
                    importlib.import_module(f"ray._private.runtime_env.{what}"), f"upload_{what}_if_needed"
                )
                env = upload(env, include_gitignore=True, scratch_dir=scratch)
        return env


def merge_runtime_envs(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> dict[str, Any]:
    """An environment for all stages, and one stage's own, which goes before."""
    first, second = first or {}, second or {}
    both = {**first, **second}
    if "env_vars" in both:
        both["env_vars"] = {**first.get("env_vars", {}), **second.get("env_vars", {})}
    return both


def _pip_arguments(wish: Any) -> tuple[list[str], list[str]]:
    """What pip is asked to install, and how: a list of packages, a requirements file, or a mapping with `packages`."""
    if isinstance(wish, str | Path):
        return ["-r", str(wish)], []
    if isinstance(wish, Mapping):
        options = wish.get("pip_install_options") or wish.get("uv_pip_install_options") or ()
        return _pip_arguments(wish.get("packages", ()))[0], list(options)
    return [str(package) for package in wish], []


def _is_local_path(module: str) -> bool:
    return "://" not in module


def _upload(folder: str) -> str:
    packaging = importlib.import_module("ray._private.runtime_env.packaging")
    uri: str = packaging.get_uri_for_directory(folder, include_gitignore=False)
    with tempfile.TemporaryDirectory() as scratch:
        packaging.upload_package_if_needed(uri, scratch, folder, include_gitignore=False)
    return uri


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GristmillError(f"pip said:\n{(done.stderr or done.stdout).strip()[-2000:]}")
