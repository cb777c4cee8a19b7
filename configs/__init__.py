"""What a run is made of: Hydra's YAML files, importable as `reverie.configs`."""
