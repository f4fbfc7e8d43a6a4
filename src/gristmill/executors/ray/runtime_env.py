"""Runtime environments of stages on a Ray cluster: packages that only one stage uses.

Packages (`pip`, `uv`, wheels in `py_modules`) are installed once, on the driver, into a folder with only what the
driver's environment does not have in the requested version. The folder is uploaded, and precedes the installed packages
on each node. So two stages of a pipeline can use two versions of a package, and nodes need neither a package index nor
the copy of the whole environment that Ray's own `pip` support would create.

What is given up: nodes with another platform or Python version than the driver, and packages of several hundred
megabytes.
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
    """Prepares the environments of a run, each package set once."""

    def __init__(self) -> None:
        self._folders: dict[str, tempfile.TemporaryDirectory[str]] = {}

    def prepare(self, env: Mapping[str, Any]) -> dict[str, Any]:
        """The environment for Ray, with everything that exists only on this machine uploaded."""
        env = dict(env)
        modules = [str(module) if isinstance(module, Path) else module for module in env.pop("py_modules", ())]
        wheels = [
            module
            for module in modules
            if isinstance(module, str) and module.endswith(".whl") and _is_local_path(module)
        ]
        requested = [_pip_arguments(env.pop(tool, ())) for tool in ("pip", "uv")]
        packages = [*wheels, *(package for packages, _ in requested for package in packages)]
        shared = self._uploaded({"py_modules": [module for module in modules if module not in wheels], **env})
        if packages and (
            folder := self._installed(packages, [option for _, options in requested for option in options])
        ):
            shared["py_modules"] = [_upload(folder), *shared.get("py_modules", ())]
        return shared

    def close(self) -> None:
        for folder in self._folders.values():
            folder.cleanup()

    def _installed(self, packages: list[str], options: list[str]) -> str | None:
        """The folder with the packages; None if the driver has all of them."""
        key = json.dumps([packages, options])
        if key not in self._folders:
            folder = self._folders[key] = tempfile.TemporaryDirectory(prefix="gristmill-env-")
            report = Path(folder.name, "report.json")
            _run([*_PIP, "--dry-run", "--report", str(report), *options, *packages])
            packages_to_install = json.loads(report.read_text())["install"]
            report.unlink()
            if packages_to_install:
                urls = [package["download_info"]["url"] for package in packages_to_install]
                _run([*_PIP, "--target", folder.name, "--no-deps", *options, *urls])
        name = self._folders[key].name
        return name if any(Path(name).iterdir()) else None

    def _uploaded(self, env: dict[str, Any]) -> dict[str, Any]:
        """Upload modules and working directory, as Ray does for a whole job."""
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
    """Merge the environment of all stages with that of one stage, which takes precedence."""
    first, second = first or {}, second or {}
    both = {**first, **second}
    if "env_vars" in both:
        both["env_vars"] = {**first.get("env_vars", {}), **second.get("env_vars", {})}
    return both


def _pip_arguments(requirements: Any) -> tuple[list[str], list[str]]:
    """Packages and options for pip, from a list, a requirements file, or a mapping with `packages`."""
    if isinstance(requirements, str | Path):
        return ["-r", str(requirements)], []
    if isinstance(requirements, Mapping):
        options = requirements.get("pip_install_options") or requirements.get("uv_pip_install_options") or ()
        return _pip_arguments(requirements.get("packages", ()))[0], list(options)
    return [str(package) for package in requirements], []


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
        raise GristmillError(f"pip failed:\n{(done.stderr or done.stdout).strip()[-2000:]}")
