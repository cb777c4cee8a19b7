"""Time Reverie beside its peers and the machine's limits: `scripts/benchmark.py bench.rows=update_size1m`."""

from reverie.commands import benchmark

if __name__ == "__main__":
    benchmark()
