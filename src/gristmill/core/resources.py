"""The resources that one worker of a stage asks for. A declaration only: nothing is measured."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Resources:
    """What one worker of a stage needs.

    `gpus` may be a fraction (0.25: four workers share a GPU). `gpu_memory_gb` asks for a part of one
    GPU by its memory; it becomes a share only on the machine where the worker is placed. With `or_cpu`, the stage
    runs without a GPU where there is none (`core/plan/adapt_to_executor.py`).
    """

    cpus: float = 1.0
    gpus: float = 0.0
    gpu_memory_gb: float = 0.0
    memory_gb: float = 0.0
    or_cpu: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "or_cpu":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ValueError(f"Resources({field.name}={value!r}): must be a number, 0 or more")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"Resources(gpus={self.gpus}): more than one GPU must be a whole number of them")
        if self.gpus and self.gpu_memory_gb:
            raise ValueError(
                f"Resources(gpus={self.gpus}, gpu_memory_gb={self.gpu_memory_gb}): give one of the two, "
                "a share of a GPU or an amount of its memory"
            )

    @property
    def requires_gpu(self) -> bool:
        return self.gpus > 0 or self.gpu_memory_gb > 0

    def gpu_share(self, total_gb: float | None) -> float:
        """The share of a GPU with `total_gb` of memory that one worker takes."""
        if not self.gpu_memory_gb:
            return self.gpus
        if total_gb is None:
            return 1.0  # memory unknown: be safe, take the whole device
        return self.gpu_memory_gb / total_gb

    def __str__(self) -> str:
        wishes = [f"{name}={value:g}" for name, value in vars(self).items() if value and name != "or_cpu"]
        return " ".join([*wishes, *(["or_cpu"] if self.or_cpu else [])]) or "nothing"
