"""Train: `python scripts/train.py experiment=dreamer_ataripong`, then overrides such as `seed=2`."""

from reverie.orchestration.train import main

if __name__ == "__main__":
    main()
