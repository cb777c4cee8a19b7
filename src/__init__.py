"""Reverie: a reference DreamerV3 in PyTorch whose memory provably does not grow."""

if __name__ != "reverie":  # a second import would be a second set of classes
    raise ImportError(f"Import this package as `reverie`, not as `{__name__}`.")

__version__ = "0.1.0"
