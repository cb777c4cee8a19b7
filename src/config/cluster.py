"""What every use of a Ray cluster needs."""

import importlib.util

from ..utils.errors import UserError

LEAST_OBJECT_STORE_MIB = 80
"""Ray starts no object store that is smaller than 75 MiB."""


def require_ray(asked: str, otherwise: str = "") -> None:
    """Refuse what needs the package ray, as it was typed, where it is missing; does not import it."""
    if importlib.util.find_spec("ray") is None:
        repair = f"Run `pip install 'reverie[ray]'`{otherwise}."
        raise UserError(f"{asked} needs the package ray, which is not installed here. {repair}")
