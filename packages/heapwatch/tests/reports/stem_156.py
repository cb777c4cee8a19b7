"""Remember a failure, and raise it again.

Report: https://github.com/torproject/stem/pull/156
Cause: each raise adds its frames to the traceback of the exception, and the frames keep their variables.
Resolution: remember only the text of the exception.
"""

import numpy as np


class Controller:
    def __init__(self) -> None:
        self.address_error: Exception | None = None

    def get_address(self) -> None:
        reply = np.ones(40_000, np.uint8)
        if self.address_error is None:
            self.address_error = ValueError(f"no address in {len(reply)} bytes")  # grows
        raise self.address_error


controller = Controller()


def step(number: int) -> None:
    try:
        controller.get_address()
    except ValueError:
        pass


def resolved(number: int) -> None:
    step(number)
    controller.address_error = None
