"""Lists the models in the cache, with the checksum of their weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from gristmill.models.model_files import cache

WEIGHTS = ("*.onnx", "*.onnx_data", "*.safetensors", "*.bin")


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache."""

    name: str
    place: Path
    nbytes: int

    def checksum(self) -> str:
        return weights_checksum(self.place)


def cached_models(place: Path | None = None) -> list[CachedModel]:
    """The models in a directory of models, by default the cache: folders `OWNER/NAME` with weights."""
    root = place or cache()
    folders = [folder for folder in sorted(root.glob("*/*")) if folder.is_dir() and not folder.name.startswith(".")]
    models = []
    for folder in folders:
        if files := weight_files(folder):
            name = folder.relative_to(root).as_posix()
            models.append(CachedModel(name, folder, sum(file.stat().st_size for file in files)))
    return models


def weight_files(place: Path) -> list[Path]:
    return sorted({file for pattern in WEIGHTS for file in place.rglob(pattern) if file.is_file()})


def weights_checksum(place: Path) -> str:
    """A checksum of the names and contents of all files with weights."""
    whole = hashlib.sha256()
    for file in weight_files(place):
        with open(file, "rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        whole.update(f"{file.relative_to(place).as_posix()} {digest}\n".encode())
    return f"sha256:{whole.hexdigest()}"
