"""Measure how well a Pong world model encodes the ball, paddles and points."""
