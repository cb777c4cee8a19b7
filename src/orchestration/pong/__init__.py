"""Instruments for runs of Atari Pong, imported only by a run that uses them."""
