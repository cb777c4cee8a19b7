"""Requirements for Ray clusters."""

import importlib.util

from ..utils.errors import UserError

LEAST_OBJECT_STORE_MIB = 80
"""Minimum size of an object store in MiB. Ray rejects sizes below 75 MiB."""


def require_ray(asked: str, otherwise: str = "") -> None:
    """Raise a `UserError` if ray is missing but the setting `asked` needs it. Ray is not imported."""
    if importlib.util.find_spec("ray") is None:
        repair = f"Run `pip install -c constraints.txt -e '.[ray]'`{otherwise}."
        raise UserError(f"{asked} requires the package ray, which is not installed. {repair}")
