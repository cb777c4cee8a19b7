"""Export a Reverie agent to a single ONNX file that runs without Reverie and PyTorch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .onnx_file import export_onnx as export_onnx

__version__ = "0.1.0"
__all__ = ["export_onnx"]


def __getattr__(name: str) -> Any:
    # Importing torch is slow, so it is imported on first use.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .onnx_file import export_onnx

    return export_onnx
