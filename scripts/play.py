"""Play a game and the dream of it, side by side: `python scripts/play.py run=pretrained:pong`."""

if __name__ == "__main__":  # the processes of environments import this file
    from reverie.commands.entry import play

    play()
