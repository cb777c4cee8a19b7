"""A pandas monitor of a stream of sensor readings: rolling means, alarms and trends."""

import argparse
import time
import uuid
from collections import deque

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=900, help="batches")
steps = parser.parse_args().steps
SENSORS = ["temperature", "pressure", "flow", "current", "voltage", "vibration"]


@pd.api.extensions.register_dataframe_accessor("sensors")
class Sensors:
    """Statistics of the sensors of a table."""

    def __init__(self, table):
        self.table = table

    def means(self):
        """Return the rolling means."""
        return self.table[SENSORS].rolling(30).mean()


class Monitor:
    """The newest readings."""

    def __init__(self):
        self.window = None

    def add(self, batch):
        """Add a batch, and return the current window."""
        if self.window is None:
            self.window = batch
        message = union_categoricals([self.window["message"], batch["message"]])
        window = pd.concat([self.window, batch]).assign(message=message).iloc[-600:]
        window["message"] = window["message"].cat.remove_unused_categories()
        self.window = window
        return window


def read_batches():
    """Yield batches of readings."""
    random, start = np.random.default_rng(1), pd.Timestamp("2025-01-01")
    for number in range(steps):
        index = pd.date_range(start + pd.Timedelta(minutes=number), periods=100, freq="600ms")
        batch = pd.DataFrame(random.standard_normal((100, 6)), index, SENSORS)
        names = [f"plant/line-3/press-{row % 9}/readings/{uuid.uuid4()}" for row in range(100)]
        batch["message"] = pd.Categorical(names)
        yield batch
        time.sleep(0.05)


def trends(tables):
    """Yield the slope of each sensor over the last windows."""
    recent = deque(maxlen=20)
    for table in tables:
        means = table.sensors.means()
        recent.append(means.to_numpy()[-1])
        yield np.mean(np.diff(list(recent), axis=0), axis=0) if len(recent) > 1 else recent[-1]


monitor, rising = Monitor(), 0
for slope in trends(monitor.add(batch) for batch in read_batches()):
    rising += int((slope > 0.02).any())
print(f"windows with a rising sensor: {rising} of {steps}")
