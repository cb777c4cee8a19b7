"""What every run begins with, imported and composed once in the process that runs are forked from.

A fault changes none of it.
"""

import torch._dynamo  # noqa: F401

from reverie.config.compose import compose_jobs

from . import zoo

for settings in (zoo.SETTINGS, zoo.POPULATION_SETTINGS):
    compose_jobs([*settings])
