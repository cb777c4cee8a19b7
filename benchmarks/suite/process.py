"""A variant that is measured in another process: a peer with its own interpreter."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

# `import reverie` sets this variable. Peers run without it.
OUR_SPINNING = "GOMP_SPINCOUNT"


class ProcessVariant:
    """A process that answers each line of its standard input with one line of JSON.

    Its first line contains facts. `{"seconds": s}` requests a block of that length. The answer contains the
    seconds of each call and further facts. The process exits when its input ends.

    Args:
        name: Name of the variant.
        command: Command of the process. The options follow as one JSON argument.
        options: Options of the process.

    Raises:
        RuntimeError: If the process ends before it is ready.
    """

    def __init__(self, name: str, command: Sequence[str], options: Mapping[str, Any]) -> None:
        self.name = name
        # Use a file, because a full pipe would block the process.
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [*command, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={name: value for name, value in os.environ.items() if name != OUR_SPINNING},
        )
        self.facts: dict[str, Any] = self._read()["facts"]

    def warm_up(self) -> None:
        """See `Variant.warm_up`. A peer's script finishes its own warm-up before it is ready."""
        self.facts["first_call_s"] = self.block(0.0)[0]

    def block(self, seconds: float) -> list[float]:
        """See `Variant.block`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"seconds": seconds}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        self.facts |= answer["facts"]
        return answer["calls"]

    def close(self) -> None:
        """End the process. Repeated calls have no effect."""
        if not self._errors.closed:
            self._process.communicate()
            self._errors.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.communicate()
            self._errors.seek(0)
            lines = self._errors.read().strip().splitlines()
            self._errors.close()
            last = lines[-1:] or [f"exit code {self._process.returncode}"]
            raise RuntimeError(f"{self.name} ended without an answer: {last[0]}")
        return json.loads(line)
