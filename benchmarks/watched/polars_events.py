"""A polars pipeline: batches of web events are joined with the users and added to totals of each page."""

import argparse
import time

import numpy as np
import polars as pl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=800, help="batches")
steps = parser.parse_args().steps


def browser(agent):
    """Return the name of the browser, without its version."""
    return agent.split("/")[0]


class Report:
    """The events and the income of each page."""

    def __init__(self, users):
        self.users = users.lazy()
        self.totals = pl.DataFrame(schema={"page": pl.String, "events": pl.UInt32, "income": pl.Float64})

    def add(self, events):
        """Add a batch of events."""
        batch = (
            events.lazy()
            .join(self.users, on="user")
            .filter(pl.col("agent").map_elements(browser, return_dtype=pl.String) != "robot")
            .group_by("page")
            .agg(events=pl.len(), income=(pl.col("amount") * pl.col("rate")).sum())
        )
        totals = pl.concat([self.totals.lazy(), batch]).group_by("page").agg(pl.sum("events", "income"))
        self.totals = totals.collect()


def read_events(random, rows=1_000):
    """Return a batch of random events."""
    columns = {"user": random.integers(0, 500, rows), "amount": random.exponential(5, rows)}
    columns["page"] = random.choice(["home", "shop", "blog", "help"], rows)
    agents = random.choice(["firefox", "chrome", "robot"], rows)
    columns["agent"] = [f"{agent}/{random.random()}" for agent in agents]
    return pl.DataFrame(columns)


def main():
    """Read and report all batches."""
    random = np.random.default_rng(1)
    report = Report(pl.DataFrame({"user": np.arange(500), "rate": random.random(500)}))
    for number in range(steps):
        events = read_events(random)
        report.add(events)
        if number % 100 == 0:
            print(number, report.totals.rows(), flush=True)
        time.sleep(0.05)


main()
