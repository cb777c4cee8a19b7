"""Show what a run is about to do, with units."""

from ..config.schema import TrainConfig
from ..utils.timestep import EnvSpec
from ..utils.units import count_text, size_text
from .recipes import RunRecipe


def start_banner(
    config: TrainConfig, spec: EnvSpec, recipe: RunRecipe, *, parameters: int, replay_bytes: int
) -> list[str]:
    """Return the banner of a run, one line per item.

    Args:
        config: The run, its folder named.
        spec: Its environments.
        recipe: Its kind.
        parameters: Trained numbers of the model.
        replay_bytes: Bytes that the replay buffer owns.
    """
    buffer = config.buffer
    lines = {
        "run": f"{config.name}, seed {config.seed}",
        "environment": f"{spec.name}, {count_text(spec.num_envs, 'environment')}, "
        f"{count_text(spec.action_repeat, 'frame')} per agent step",
        **({"observation": "; ".join(spec.notices)} if spec.notices else {}),
        "device": f"{config.device.value}, precision {config.precision.value}, compile "
        f"{config.compile.value}",
        "model": f"{recipe.model_name(config)}, {parameters:,} parameters",
        "replay": f"{buffer.capacity:,} records, {size_text(replay_bytes)} in {buffer.storage.value}",
    }
    lines |= recipe.banner_lines(config, spec)
    lines["folder"] = str(config.run_dir)
    width = max(map(len, lines))
    return [f"{name:<{width}}  {text}" for name, text in lines.items()]
