"""Train: `python scripts/train.py experiment=dreamer_ataripong`, then overrides such as `seed=2`."""

# Environment processes import this file.
if __name__ == "__main__":
    from reverie.commands.entry import train

    train()
