"""Hydra's YAML files with the presets of runs, importable as `reverie.configs`."""
