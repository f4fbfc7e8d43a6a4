"""Inference: one small interface over the engines that run models.

The names below are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.lazy_imports import lazy

if TYPE_CHECKING:
    from gristmill.models.clip_to_onnx import export as export
    from gristmill.models.image_preprocess import Preprocess as Preprocess
    from gristmill.models.model_files import Wanted as Wanted
    from gristmill.models.model_loader import Device as Device
    from gristmill.models.model_loader import Model as Model
    from gristmill.models.model_loader import load_model as load_model
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
