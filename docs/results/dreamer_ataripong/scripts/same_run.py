"""Compare the logs of the same seed on two machines: `python same_run.py`."""

from pathlib import Path

from reverie.utils.logging.json_lines import read_lines

RUNS = Path(__file__).parents[1]


def main() -> None:
    for seed in (1, 2):
        one, other = (
            {line["step"]: losses(line) for line in read_lines(RUNS / run / "metrics.jsonl") if losses(line)}
            for run in (f"long/actor_1e-4_seed_{seed}", f"long/i_seed{seed}")
        )
        steps = sorted(one.keys() & other.keys())
        equal = sum(one[step] == other[step] for step in steps)
        print(f"seed {seed}: losses equal at {equal} of {len(steps)} log lines, up to step {steps[-1]:,}")


def losses(line: dict[str, float]) -> dict[str, float]:
    return {tag: value for tag, value in line.items() if tag.startswith("train/loss/")}


if __name__ == "__main__":
    main()
