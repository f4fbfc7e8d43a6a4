"""Where the heads that judge embeddings of CLIP come from: how pleasing a picture is, and whether it is unsafe.

Stages of every modality whose samples are pictures inherit one of these.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gristmill.core.errors import ContractError, InputError
from gristmill.models.model_files import AESTHETIC
from gristmill.models.model_loader import Array, onnx_file
from gristmill.samples.model_stages import SampleModelStage, head_file


class LoadsAestheticHead(SampleModelStage[Any, Any]):
    """LAION's predictor of how pleasing a picture is: `weights_path`, a file in `model_dir`, or fetched once."""

    weights_path: str | None

    def check(self) -> None:
        if self._local_head() is None:
            self.wanted().beside(AESTHETIC).check()

    def setup_on_node(self, node_info: Any = None, worker_metadata: Any = None) -> None:
        if self._local_head() is None:
            self.wanted().beside(AESTHETIC).fetch()

    def _local_head(self) -> Path | None:
        names = ("aesthetic*.safetensors", "aesthetic*.pth", "sac*logos*ava*.pth", "sac*logos*ava*.safetensors")
        return head_file(self.name, self.weights_path, self.model_dir, names)

    def _head_file(self) -> Path:
        return self._local_head() or self.wanted().beside(AESTHETIC).fetch() / "model.safetensors"


class LoadsUnsafeHead(SampleModelStage[Any, Any]):
    """LAION's head for unsafe pictures, or a model of pictures that gives the probability itself."""

    weights_path: str | None

    def check(self) -> None:
        if self._local_head() is None and onnx_file(self.wanted().place(), "vision") is None:
            raise InputError(
                f"{self.name}: {self.model_dir} holds neither a model of images (.onnx) nor a head for CLIP "
                "(*nsfw*.safetensors): use model_dir='open_nsfw', or give weights_path=..., for example of LAION's "
                "CLIP-based-NSFW-Detector"
            )

    def setup_on_node(self, node_info: Any = None, worker_metadata: Any = None) -> None:
        """Nothing is fetched before pictures come."""

    def _local_head(self) -> Path | None:
        names = ("*nsfw*.safetensors", "*nsfw*.pth")
        return head_file(self.name, self.weights_path, self.model_dir, names)

    def _probabilities(self, values: Array) -> Array:
        """Those that a model of pictures gives: the last of its numbers."""
        scores = values[:, -1]
        if len(values) and (values.shape[1] > 2 or scores.min() < 0 or scores.max() > 1 + 1e-6):
            raise ContractError(
                f"stage {self.name!r}: the model gives {values.shape[1]} numbers for each image, from "
                f"{values.min():g} to {values.max():g}, and not a probability: use one that ends in softmax or "
                "sigmoid, with the unsafe class last"
            )
        return np.minimum(scores, 1)
