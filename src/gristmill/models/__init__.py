"""Models: one small interface over the engines that run them.

The names below are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy import lazy

if TYPE_CHECKING:
    from gristmill.models.clip_to_onnx import export as export
    from gristmill.models.image_preprocess import Preprocess as Preprocess
    from gristmill.models.model import Device as Device
    from gristmill.models.model import Model as Model
    from gristmill.models.model import load_model as load_model
    from gristmill.models.model_files import Wanted as Wanted

_HOME: dict[str, str] = {
    "Device": "model",
    "Model": "model",
    "Preprocess": "image_preprocess",
    "Wanted": "model_files",
    "export": "clip_to_onnx",
    "load_model": "model",
}

__all__ = ["Device", "Model", "Preprocess", "Wanted", "export", "load_model"]

__getattr__, __dir__ = lazy(__name__, _HOME)
