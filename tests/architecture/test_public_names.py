"""No public name disappears, and every filter, modifier and text stage is public.

`public_names.json` holds the public names of the last release. New names need no entry: run
`python tests/architecture/test_public_names.py` before a release to add them. Removing one breaks users' code:
announce it in CHANGELOG.md first.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill import ProcessingStage
from gristmill.image import ImageFilter
from gristmill.text import DocumentFilter, DocumentModifier

SNAPSHOT = Path(__file__).with_name("public_names.json")
RELEASED: dict[str, list[str]] = json.loads(SNAPSHOT.read_text())
NOW = {package: list(importlib.import_module(package).__all__) for package in RELEASED}

INNER_TEXT_STAGES = {
    "ArrowReaderStage",
    "AssignBuckets",
    "CommitMegatron",
    "CsvReaderStage",
    "EducationalValueStage",
    "FileReader",
    "JsonlReaderStage",
    "LabelStage",
    "LlamaGuardStage",
    "ListBlendFiles",
    "ParquetReaderStage",
    "PublishedClassifier",
    "ReadBlendFiles",
    "ReaderStage",
    "SampleBlend",
    "TextModelStage",
    "TextReaderStage",
}
"""What public composite stages are made of, and bases."""


@pytest.mark.parametrize("package", RELEASED)
def test_no_public_name_disappears(package: str) -> None:
    assert not set(RELEASED[package]) - set(NOW[package])


@pytest.mark.parametrize(("package", "name"), [(package, name) for package, names in NOW.items() for name in names])
def test_each_public_name_can_be_imported_and_has_a_docstring(package: str, name: str) -> None:
    module = importlib.import_module(package)
    assert (getattr(module, name).__doc__ or "").strip(), f"{package}.{name} has no docstring"
    assert name in dir(module)


@pytest.mark.parametrize("package", NOW)
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match="NoSuchName"):
        _ = importlib.import_module(package).NoSuchName


def test_a_star_import_gives_all_names() -> None:
    code = "from gristmill import *; from gristmill.text import *; print(Pipeline.__name__, ScoreFilter.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Pipeline ScoreFilter\n"


def concrete_classes(package: str, base: type) -> Iterator[str]:
    parent = importlib.import_module(package)
    for found in pkgutil.walk_packages(parent.__path__, f"{package}."):
        for name, value in vars(importlib.import_module(found.name)).items():
            is_own = inspect.isclass(value) and value.__module__ == found.name and not name.startswith("_")
            if is_own and issubclass(value, base) and not inspect.isabstract(value):
                yield name


@pytest.mark.parametrize(
    ("package", "base", "inner"),
    [
        ("gristmill.text", DocumentFilter, set()),
        ("gristmill.text", DocumentModifier, set()),
        ("gristmill.text", ProcessingStage, INNER_TEXT_STAGES),
        ("gristmill.image", ImageFilter, set()),
    ],
)
def test_every_filter_modifier_and_stage_is_public(package: str, base: type, inner: set[str]) -> None:
    missing = set(concrete_classes(package, base)) - set(NOW[package]) - inner
    assert not missing, f"import them in {package}/__init__.py: {sorted(missing)}"


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps({package: sorted(names) for package, names in NOW.items()}, indent=1) + "\n")
