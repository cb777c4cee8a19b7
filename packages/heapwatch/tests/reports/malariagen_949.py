"""Configure the same logger for every new client.

Report: https://github.com/malariagen/malariagen-data-python/pull/949
Cause: `logging.getLogger` always returns the same logger, and each client adds a handler with a file.
Resolution: remove and close the previous handlers before a handler is added.
"""

import logging
import os


class LoggingHelper:
    def __init__(self) -> None:
        self.logger = logging.getLogger("malariagen_data")
        self.logger.addHandler(logging.FileHandler(os.devnull))  # grows

    def close(self) -> None:
        for handler in self.logger.handlers[:]:
            self.logger.removeHandler(handler)
            handler.close()


def step(number: int) -> None:
    LoggingHelper()


def resolved(number: int) -> None:
    LoggingHelper().close()
