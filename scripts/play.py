"""Play a game alongside the model's dream of it: `python scripts/play.py run=pretrained:pong`."""

# Environment processes import this file.
if __name__ == "__main__":
    from reverie.commands.entry import play

    play()
