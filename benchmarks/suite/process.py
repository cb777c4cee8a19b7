"""Something that is measured in another process: a peer, in its own interpreter."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

OUR_SPINNING = "GOMP_SPINCOUNT"  # what `import reverie` sets for itself; peers run as they do without us


class ProcessVariant:
    """A process that answers each line of its standard input with one line of JSON.

    The first line it prints holds its facts. `{"seconds": s}` asks for a block of that length, which it
    answers with the seconds of each call and, again, facts. It ends when its input ends.

    Args:
        name: Of the variant.
        command: Of the process; the options follow as one argument of JSON.
        options: For it.

    Raises:
        RuntimeError: If it ends before it is ready.
    """

    def __init__(self, name: str, command: Sequence[str], options: Mapping[str, Any]) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile("w+")  # not a pipe: a full one would stop the process
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
        """See `Variant.warm_up`; what a peer needs more of, its script does before it is ready."""
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
        """End the process; may be called twice."""
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
