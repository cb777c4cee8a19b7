"""Train: `python scripts/train.py experiment=dreamer_ataripong`, then overrides such as `seed=2`."""

if __name__ == "__main__":  # the processes of environments import this file
    from reverie.commands.entry import train

    train()
