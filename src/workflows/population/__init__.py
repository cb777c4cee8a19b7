"""A population of learners: evolution and TD3 over one shared replay."""

from ...utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
