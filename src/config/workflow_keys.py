"""Which settings only one workflow reads: typing them for the other is a mistake, and said to be one."""

from ..utils.errors import UserError
from .schema import TrainConfig, WorkflowName

ONLY = {
    WorkflowName.dreamer: (
        "model",
        "world_model",
        "controller",
        "optimizer",
        "env.num_envs",
        "training.train_ratio",
        "training.sequence_length",
        "training.warmup_steps",
        "training.log_interval",
        "training.max_nonfinite",
        "training.evaluation_interval",
        "training.evaluation_episodes",
        "training.video_interval",
        "training.max_updates_owed",
        "buffer.store_latents",
        "buffer.latent_dtype",
        "buffer.cross_episodes",
        "logger.progress",
        "memory.snapshot_interval",
    ),
    WorkflowName.population: (
        "population",
        "td3",
        "engine",
        "ray",
        "training.generations",
        "training.gradient_steps_per_generation",
        "training.gradient_accumulation_steps",
    ),
}
"""Sections and settings by the workflow that reads them; all others are for both."""


def require_read(config: TrainConfig, typed_keys: list[str]) -> None:
    """Check that the run reads every setting that was typed.

    Args:
        config: The run.
        typed_keys: Keys and groups of the command line.

    Raises:
        UserError: Naming the first one that nothing would read.
    """
    for workflow, names in ONLY.items():
        if workflow is config.workflow:
            continue
        for key in typed_keys:
            if any(key == name or key.startswith(f"{name}.") for name in names):
                raise UserError(
                    f"{key} is read by workflow={workflow.value} only, and {config.name} runs workflow="
                    f"{config.workflow.value}. Leave it out."
                )
