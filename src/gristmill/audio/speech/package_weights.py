"""Weights that come inside installed packages, and the ONNX sessions that run them.

A package is looked up and not imported: some of them would load PyTorch.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from gristmill.core.errors import InputError, MissingDependencyError
from gristmill.models.model_loader import Device
from gristmill.models.onnx_engine import OnnxModel

RATE = 16_000
"""Samples per second that the models hear."""


class PackageFile(NamedTuple):
    """A file in a package, and how the package is installed."""

    package: str
    path: str
    install: str

    def find(self) -> Path:
        """Where the file is. Raises MissingDependencyError with the way out."""
        spec = find_spec(self.package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            if (found := Path(place) / self.path).is_file():
                return found
        state = (
            f"the package {self.package!r} has no file {self.path}" if spec else f"{self.package!r} is not installed"
        )
        raise MissingDependencyError(f"{state}, which has the weights: {self.install}")


@cache
def session(path: str, threads: int = 1) -> OnnxModel:
    """The model in a file. It is loaded once in each worker."""
    if not Path(path).is_file():
        raise InputError(f"{path}: there is no such file: give the path of the weights, as ONNX")
    return OnnxModel(Path(path), Device(threads=threads))
