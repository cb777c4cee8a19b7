"""Instruments for Atari Pong, imported only by runs that use them."""
