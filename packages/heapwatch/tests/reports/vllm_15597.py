"""Look up the group of each sequence in a dict of the engine.

Report: https://github.com/vllm-project/vllm/issues/15597
Cause: a request with several samples adds an entry for each, and no entry is ever deleted.
Resolution: delete the entries when the request is finished.

Like offline inference, it numbers the requests. Random identifiers get no fix.
"""

import numpy as np


class Engine:
    def __init__(self) -> None:
        self.seq_id_to_seq_group: dict[str, np.ndarray] = {}

    def add_request(self, request_id: int, samples: int) -> None:
        group = np.ones(40_000, np.uint8)
        for sample in range(samples):
            self.seq_id_to_seq_group[f"{request_id}_parallel_sample_{sample}"] = group  # grows


engine = Engine()


def step(number: int) -> None:
    engine.add_request(number, samples=2)


def resolved(number: int) -> None:
    step(number)
    engine.seq_id_to_seq_group = {}
