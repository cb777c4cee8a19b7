"""A sampler: Curious Replay.

reverie-train experiment=dreamer_catch buffer.sampler=curious_replay:CuriousReplay

Kauvar et al. 2023, arXiv:2306.15934: p = c beta^visits + (|loss| + eps)^alpha. Constants: `run_local.py` of
AutonomousAgentsLab/cr-dv3.
"""

import numpy as np

C, BETA, EPS, ALPHA, NEW = 1e4, 0.7, 0.01, 0.7, 1e5


class CuriousReplay:
    """Prefers windows that were trained on rarely, or that the world model predicts badly."""

    def __init__(self, num_rows):
        self.visits, self.priority = np.zeros(num_rows, np.int64), np.full(num_rows, NEW)

    def added(self, rows):
        self.visits[rows], self.priority[rows] = 0, NEW

    def draw(self, rows, count, generator):
        total = self.priority[rows].cumsum()
        return np.searchsorted(total, generator.random(count) * total[-1], side="right")

    def learned(self, rows, losses):
        np.add.at(self.visits, rows, 1)
        self.priority[rows] = C * BETA ** self.visits[rows] + (np.abs(losses) + EPS) ** ALPHA

    def state_dict(self):
        return {"visits": self.visits, "priority": self.priority}

    def load_state_dict(self, state):
        self.visits[:], self.priority[:] = state["visits"], state["priority"]
