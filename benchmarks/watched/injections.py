"""Forty leaks that users could write into twelve programs of this folder. `third_party.py` runs them.

A leak replaces lines of a program. The line marked `# grows` is the line that a message must contain.
`owner` lists the correct names of the holder. `effect` is the text of the pattern, or "grows" for a leak
without a known pattern.
"""

from typing import NamedTuple


class Injection(NamedTuple):
    """A leak in a program, and the correct message."""

    program: str
    name: str
    owner: tuple[str, ...]
    effect: str
    lines: dict[str, str]
    """New text by line of the program. The program has the line exactly once, in any indentation."""


GRAPHS = "keeps every autograd graph alive"
CHAIN = "keeps the autograd graph of every earlier step alive"
COUNTER = "keeps an entry for every number ever used as a key"
VIEWS = "keeps a whole array for every small view"
TRACEBACKS = "keeps the local variables of the frames in every traceback"

_PPO = 'model = PPO("MlpPolicy", env, n_steps=128, batch_size=64, n_epochs=10, device="cpu", seed=1)'
_PPO_LEARN = "model.learn(total_timesteps=512 * iterations, log_interval=20)"
_PPO_ENV = 'env = make_vec_env("CartPole-v1", n_envs=4, seed=1)'
_RENDERED = 'env_kwargs={"render_mode": "rgb_array"}'
# The agent soon balances the pole for as long as an episode lasts.
_SHORT = 'env_kwargs={"render_mode": "rgb_array", "max_episode_steps": 50}'
_PPO_RENDERED = f'env = make_vec_env("CartPole-v1", n_envs=4, seed=1, {_RENDERED})'
_DQN_LEARN = "model.learn(total_timesteps=1_000 + steps, log_interval=100)"
_DQN_ENV = "env = gym.wrappers.FlattenObservation(gym.wrappers.FrameStackObservation(env, stack))"
_RL_LOSS = 'loss = loss_module(replay.sample())["loss"]'
_RL_REPLAY = "replay = TensorDictReplayBuffer(storage=LazyTensorStorage(8 * steps + 10_000), batch_size=64)"
_RL_EXTEND = "replay.extend(data.reshape(-1))"
_LIT_STEP = "def training_step(self, batch, _index):"
_LIT_LOG = 'self.log("train_loss", loss)'
_LIT_OPTIMIZERS = "def configure_optimizers(self):"
_HF_TRAIN = "Trainer(model=GPT2LMHeadModel(shape), args=arguments, train_dataset=data).train()"
_HF_TOKENS = "tokens = torch.randint(0, 256, (2_048, 32))"
_LORA = 'lora = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")'
_UNET_LOSS = "loss = functional.mse_loss(predicted, noise)"

INJECTIONS = (
    Injection(
        *("sb3_ppo", "frames in a callback", ("Recorder.seen",), "grows"),
        {
            _PPO_ENV: _PPO_RENDERED,
            _PPO_LEARN: """
from stable_baselines3.common.callbacks import BaseCallback


class Recorder(BaseCallback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def _on_step(self):
        if self.n_calls % 100 == 0:
            self.seen.append(self.training_env.render())  # grows
        return True


model.learn(total_timesteps=512 * iterations, log_interval=20, callback=Recorder())
""",
        },
    ),
    Injection(
        *("sb3_ppo", "entropies in a policy", ("Policy.entropies",), GRAPHS),
        {
            _PPO: """
from stable_baselines3.common.policies import ActorCriticPolicy


class Policy(ActorCriticPolicy):
    entropies = []

    def evaluate_actions(self, obs, actions):
        values, log_prob, entropy = super().evaluate_actions(obs, actions)
        self.entropies.append(entropy.mean())  # grows
        return values, log_prob, entropy


model = PPO(Policy, env, n_steps=128, batch_size=64, n_epochs=10, device="cpu", seed=1)
"""
        },
    ),
    Injection(
        *("sb3_ppo", "last frames by episode in a wrapper", ("LastFrames.by_episode",), COUNTER),
        {
            _PPO_ENV: f"""
import gymnasium


class LastFrames(gymnasium.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.by_episode, self.episode = {{}}, 0

    def step(self, action):
        result = super().step(action)
        if result[2] or result[3]:
            self.by_episode[self.episode] = self.render()  # grows
            self.episode += 1
        return result


env = make_vec_env("CartPole-v1", n_envs=4, seed=1, wrapper_class=LastFrames, {_SHORT})
"""
        },
    ),
    Injection(
        *("sb3_ppo", "lru_cache of features", ("Shaped.features",), "never forgets a result"),
        {
            _PPO_ENV: """
import functools

import gymnasium
import numpy


class Shaped(gymnasium.Wrapper):
    directions = numpy.random.default_rng(1).standard_normal((4, 1_024))

    @functools.lru_cache(maxsize=None)  # grows
    def features(self, state):
        return numpy.cos(numpy.frombuffer(state, numpy.float32) @ self.directions)

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + 0.1 * self.features(observation.tobytes()).mean(), *rest


env = make_vec_env("CartPole-v1", n_envs=4, seed=1, wrapper_class=Shaped)
"""
        },
    ),
    Injection(
        *("sb3_dqn", "an observation of each batch", ("Sampled.observations",), VIEWS),
        {
            _DQN_LEARN: """
from stable_baselines3.common.callbacks import BaseCallback


class Sampled(BaseCallback):
    def _init_callback(self):
        self.observations = []

    def _on_step(self):
        if self.num_timesteps > 1_000 and self.n_calls % 4 == 0:
            self.observations.append(self.model.replay_buffer.sample(64).observations[0])  # grows
        return True


model.learn(total_timesteps=1_000 + steps, log_interval=100, callback=Sampled())
"""
        },
    ),
    Injection(
        *("sb3_dqn", "errors in a wrapper", ("Checked.errors",), TRACEBACKS),
        {
            _DQN_ENV: """
import numpy as np

env = gym.wrappers.FlattenObservation(gym.wrappers.FrameStackObservation(env, stack))


def check(observation):
    scaled = observation / 0.05
    spectrum = np.correlate(scaled, scaled, "full")
    if spectrum.max() > 1:
        raise ValueError("the pole or the cart moves too fast")


class Checked(gym.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.errors = []

    def step(self, action):
        result = super().step(action)
        try:
            check(result[0])
        except ValueError as error:
            self.errors.append(error)  # grows
        return result


env = Checked(env)
"""
        },
    ),
    Injection(
        *("sb3_dqn", "a list on the model", ("sb3_dqn.model.history", "DQN.history"), "grows"),
        {
            _DQN_LEARN: """
model.history = []


def remember(local, _):
    if model.num_timesteps > 1_000:
        model.history.append(model.replay_buffer.sample(16).observations)  # grows
    return True


model.learn(total_timesteps=1_000 + steps, log_interval=100, callback=remember)
"""
        },
    ),
    Injection(
        *("torchrl_replay", "a sum of losses", ("torchrl_replay.total",), CHAIN),
        {
            "for data in Collector(env, explorer, frames_per_batch=64, total_frames=4 * steps):": """
total = 0.0
for data in Collector(env, explorer, frames_per_batch=64, total_frames=4 * steps):
""",
            _RL_LOSS: f"""
{_RL_LOSS}
total += loss  # grows
""",
        },
    ),
    Injection(
        *("torchrl_replay", "a list on the replay", ("torchrl_replay.replay.trajectories",), "grows"),
        {
            _RL_REPLAY: f"""
{_RL_REPLAY}
replay.trajectories = []
""",
            _RL_EXTEND: f"""
{_RL_EXTEND}
replay.trajectories.append(data["observation"].clone())  # grows
""",
        },
    ),
    Injection(
        *("torchrl_replay", "a storage without a limit"),
        ("torchrl_replay.replay._storage._storage", "ListStorage._storage", "torchrl_replay.replay"),
        "grows",
        {
            _RL_REPLAY: """
from torchrl.data import ListStorage

replay = TensorDictReplayBuffer(storage=ListStorage(), batch_size=64)
""",
            _RL_EXTEND: f"{_RL_EXTEND}  # grows",
        },
    ),
    Injection(
        *("lightning_fit", "outputs of the steps", ("Classifier.outputs",), GRAPHS),
        {
            _LIT_LOG: f"""
{_LIT_LOG}
self.outputs.append(loss)  # grows
""",
            "def __init__(self):": """
outputs = []

def __init__(self):
""",
        },
    ),
    Injection(
        *(
            "lightning_fit",
            "a writer for each epoch",
            ("TensorBoard",),
            "keeps a thread and a file for each writer",
        ),
        {
            _LIT_OPTIMIZERS: f"""
def on_train_epoch_end(self):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("events")  # grows
    writer.add_scalar("loss", float(self.trainer.callback_metrics["train_loss"]), self.current_epoch)

{_LIT_OPTIMIZERS}
""",
            "data = TensorDataset(torch.randn(16_384, 64), torch.randint(0, 10, (16_384,)))": """
data = TensorDataset(torch.randn(2_048, 64), torch.randint(0, 10, (2_048,)))
""",
        },
    ),
    Injection(
        *("lightning_fit", "hooks in the training step"),
        ("Classifier.layers[1]._forward_hooks", "Classifier.layers.1._forward_hooks"),
        "gains hooks that are never removed",
        {
            _LIT_STEP: """
def training_step(self, batch, index):
    if index % 4 == 0:
        kept = {"inputs": batch[0]}
        self.layers[1].register_forward_hook(lambda _, given, out: kept.update(out=out.detach()))  # grows
""",
        },
    ),
    Injection(
        *("lightning_fit", "a figure for each epoch", ("Gcf.figs", "pyplot"), "keeps every figure open"),
        {
            _LIT_OPTIMIZERS: f"""
def on_train_epoch_end(self):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()  # grows
    axes.hist(self.layers[0].weight.detach().flatten().numpy())
    figure.savefig("weights.png")

{_LIT_OPTIMIZERS}
""",
            "data = TensorDataset(torch.randn(16_384, 64), torch.randint(0, 10, (16_384,)))": """
data = TensorDataset(torch.randn(2_048, 64), torch.randint(0, 10, (2_048,)))
""",
        },
    ),
    Injection(
        *("hf_trainer", "losses in compute_loss", ("LoggingTrainer.losses",), GRAPHS),
        {
            _HF_TRAIN: """
class LoggingTrainer(Trainer):
    losses = []

    def compute_loss(self, *values, **options):
        loss = super().compute_loss(*values, **options)
        self.losses.append(loss)  # grows
        return loss

LoggingTrainer(model=GPT2LMHeadModel(shape), args=arguments, train_dataset=data).train()
"""
        },
    ),
    Injection(
        *("hf_trainer", "predictions by step", ("PredictingTrainer.predictions",), COUNTER),
        {
            _HF_TRAIN: """
class PredictingTrainer(Trainer):
    predictions = {}

    def compute_loss(self, model, inputs, return_outputs=False, **options):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **options)
        if self.state.global_step % 4 == 0:
            self.predictions[self.state.global_step] = outputs.logits.detach()  # grows
        return (loss, outputs) if return_outputs else loss

PredictingTrainer(model=GPT2LMHeadModel(shape), args=arguments, train_dataset=data).train()
"""
        },
    ),
    Injection(
        *(
            "hf_trainer",
            "a handler for each report",
            ("logging", "logging.getLogger('losses')"),
            "keeps every handler",
        ),
        {
            _HF_TRAIN: """
import logging

from transformers import TrainerCallback

class FileLog(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **options):
        log = logging.getLogger("losses")
        log.addHandler(logging.FileHandler("losses.log"))  # grows
        log.warning("%s", logs)

arguments.logging_steps = 10
model = GPT2LMHeadModel(shape)
Trainer(model=model, args=arguments, train_dataset=data, callbacks=[FileLog()]).train()
"""
        },
    ),
    Injection(
        *("hf_trainer", "lru_cache by tensor", ("hf_trainer.one_hot",)),
        "keeps every argument and result, and never finds a tensor again",
        {
            _HF_TOKENS: f"""
import functools

{_HF_TOKENS}


@functools.lru_cache(maxsize=None)  # grows
def one_hot(tokens):
    return torch.nn.functional.one_hot(tokens, 256).to(torch.uint8)


def collate(rows):
    tokens = torch.stack([each["input_ids"] for each in rows])
    is_rare = one_hot(tokens).sum((0, 1)) < 2
    return {{"input_ids": tokens, "labels": torch.where(is_rare[tokens], -100, tokens)}}
""",
            _HF_TRAIN: """
model = GPT2LMHeadModel(shape)
Trainer(model=model, args=arguments, train_dataset=data, data_collator=collate).train()
""",
        },
    ),
    Injection(
        *("torchmetrics_loader", "an image of each batch", ("torchmetrics_loader.examples",), VIEWS),
        {
            "for epoch in range(steps // 64):": """
examples = []
for epoch in range(steps // 64):
""",
            "logits = model(images).squeeze(1)": """
logits = model(images).squeeze(1)
examples.append(images[0])  # grows
""",
        },
    ),
    Injection(
        *("torchmetrics_loader", "a metric without a reset"),
        ("torchmetrics_loader.features.value",),
        "grows",
        {
            "for epoch in range(steps // 64):": """
features = torchmetrics.CatMetric()
for epoch in range(steps // 64):
""",
            "accuracy.update(logits.detach(), labels)": """
accuracy.update(logits.detach(), labels)
features.update(model[:3](images).detach())  # grows
""",
        },
    ),
    Injection(
        *("torchmetrics_loader", "functions for later", ("torchmetrics_loader.pending",)),
        "keeps the variables of every closure",
        {
            "for epoch in range(steps // 64):": """
pending = []
for epoch in range(steps // 64):
""",
            "logits = model(images).squeeze(1)": """
logits = model(images).squeeze(1)
pending.append(lambda images=images, logits=logits: print(images.mean(), logits.mean()))  # grows
""",
        },
    ),
    Injection(
        *("accelerate_loop", "gathered logits", ("accelerate_loop.all_logits",), GRAPHS),
        {
            "for epoch in range(steps // 64):": """
all_logits = []
for epoch in range(steps // 64):
""",
            "predictions, truth = accelerator.gather_for_metrics((logits.argmax(-1), labels))": """
predictions, truth = accelerator.gather_for_metrics((logits.argmax(-1), labels))
all_logits.append(accelerator.gather_for_metrics(logits))  # grows
""",
        },
    ),
    Injection(
        *(
            "accelerate_loop",
            "a queue that is read slowly",
            ("Log.lines",),
            "is filled faster than it is read",
        ),
        {
            "torch.set_num_threads(1)": """
import queue
import threading
import time


class Log(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.lines = queue.Queue()

    def run(self):
        while True:
            step, inputs = self.lines.get()
            time.sleep(1.0)
            print(step, float(inputs.mean()))


log = Log()
log.start()
torch.set_num_threads(1)
""",
            "accelerator.backward(loss)": """
accelerator.backward(loss)
log.lines.put((epoch, inputs))  # grows
""",
        },
    ),
    Injection(
        *(
            "accelerate_loop",
            "a prepared loader for each epoch",
            ("accelerate_loop.accelerator._dataloaders",),
        ),
        "grows",
        {
            "right = 0": """
right = 0
loader = accelerator.prepare(sequences())  # grows
""",
            "data = TensorDataset(torch.randn(1_024, 16, 32), torch.randint(0, 4, (1_024,)))": """
data = TensorDataset(torch.randn(128, 16, 32), torch.randint(0, 4, (128,)))
""",
        },
    ),
    Injection(
        *("peft_lora", "logits of the batches", ("peft_lora.logits",), GRAPHS),
        {
            "for task in range(steps // 16):": """
logits = []
for task in range(steps // 16):
""",
            "loss = model(input_ids=batch, labels=batch).loss": """
outputs = model(input_ids=batch, labels=batch)
logits.append(outputs.logits)  # grows
loss = outputs.loss
""",
        },
    ),
    Injection(
        *("peft_lora", "an adapter for each task", ("lora_A", "lora_B", "peft_config"), COUNTER),
        {
            "meter = Meter(tokens)": """
meter = Meter(tokens)
model.add_adapter(f"task_{task}", lora)  # grows
""",
            _LORA: """
lora = LoraConfig(r=64, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
""",
            "for batch in tokens.split(4):": "for batch in tokens[:8].split(4):",
        },
    ),
    Injection(
        *(
            "peft_lora",
            "listeners of finished tasks",
            ("Events.listeners",),
            "keeps the object of every bound method",
        ),
        {
            "torch.set_num_threads(1)": """
class Events:
    def __init__(self):
        self.listeners = []

    def subscribe(self, listener):
        self.listeners.append(listener)  # grows


events = Events()
torch.set_num_threads(1)
""",
            "meter = Meter(tokens)": """
meter = Meter(tokens)
events.subscribe(meter.update)
""",
            "tokens = torch.randint(0, 256, (64, 32))": "tokens = torch.randint(0, 256, (512, 32))",
            "for batch in tokens.split(4):": "for batch in tokens[:8].split(4):",
        },
    ),
    Injection(
        *("diffusers_unet", "residuals", ("diffusers_unet.residuals",), GRAPHS),
        {
            "for epoch in range(steps // 128):": """
residuals = []
for epoch in range(steps // 128):
""",
            _UNET_LOSS: f"""
{_UNET_LOSS}
residuals.append((predicted - noise).square().mean((1, 2, 3)))  # grows
""",
        },
    ),
    Injection(
        *("diffusers_unet", "a map for each image", ("mmap", "Images.maps"), "keeps every map open"),
        {
            "return torch.from_numpy(self.images[index].copy())": """
if index % 8 == 0:
    self.maps.append(np.memmap(self.path, np.float32, "r", shape=(512, 1, 16, 16)))  # grows
return torch.from_numpy(self.images[index].copy())
""",
            "self.path = path": """
self.path = path
self.maps = []
""",
        },
    ),
    Injection(
        *("diffusers_unet", "weights of each average", ("diffusers_unet.averages",), "grows"),
        {
            "for epoch in range(steps // 128):": """
averages = []
for epoch in range(steps // 128):
""",
            "ema.step(unet.parameters())": """
ema.step(unet.parameters())
if ema.optimization_step % 8 == 0:
    averages.append([each.clone() for each in ema.shadow_params])  # grows
""",
        },
    ),
    Injection(
        *("fastapi_server", "sessions in the state of the app"),
        ("fastapi_server.app.state.sessions", "fastapi_server.app.state._state['sessions']"),
        "grows",
        {
            "app = FastAPI()": """
app = FastAPI()
app.state.sessions = {}
""",
            "body = await request.json()": """
body = await request.json()
app.state.sessions[body["id"]] = body  # grows
""",
        },
    ),
    Injection(
        *("fastapi_server", "a cached method of a request", ("Classifier.classify",), "keeps every `self`"),
        {
            "def classify(self, values):": """
@functools.lru_cache(maxsize=None)  # grows
def classify(self, values):
""",
            "import argparse": """
import argparse
import functools
""",
        },
    ),
    Injection(
        *("fastapi_server", "bodies in a middleware", ("Audit.bodies",), "grows"),
        {
            "app = FastAPI()": """
from starlette.middleware.base import BaseHTTPMiddleware


class Audit(BaseHTTPMiddleware):
    def __init__(self, app):
        super().__init__(app)
        self.bodies = []

    async def dispatch(self, request, call_next):
        self.bodies.append(await request.body())  # grows
        return await call_next(request)


app = FastAPI()
app.add_middleware(Audit)
"""
        },
    ),
    Injection(
        *("fastapi_server", "errors of requests", ("fastapi_server.errors",), TRACEBACKS),
        {
            "app = FastAPI()": """
app = FastAPI()
errors = []


def check(values):
    squares = [each * each for each in values]
    if sum(squares) > len(values):
        raise ValueError("the vector is too long")
""",
            "body = await request.json()": """
body = await request.json()
try:
    check(body["values"])
except ValueError as error:
    errors.append(error)  # grows
""",
        },
    ),
    Injection(
        *("aiohttp_server", "a queue without a limit", ("Jobs.queue",), "is filled faster than it is read"),
        {
            "self.queue = asyncio.Queue(maxsize=64)": "self.queue = asyncio.Queue()",
            "await self.queue.put(body)": "await self.queue.put(body)  # grows",
            "await asyncio.sleep(0.005)": "await asyncio.sleep(0.5)",
        },
    ),
    Injection(
        *("aiohttp_server", "recent uploads", ("Jobs.recent",), "has no maximum length"),
        {
            "self.done = 0": """
self.done = 0
self.recent = collections.deque()
""",
            "body = await request.read()": """
body = await request.read()
self.recent.append(body)  # grows
""",
            "import asyncio": """
import asyncio
import collections
""",
        },
    ),
    Injection(
        *("aiohttp_server", "tasks of requests", ("Jobs.tasks",), "grows"),
        {
            "self.done = 0": """
self.done = 0
self.tasks = []
""",
            "async def upload(self, request):": """
async def compress(self, body):
    return zlib.compress(body)

async def upload(self, request):
""",
            "body = await request.read()": """
body = await request.read()
self.tasks.append(asyncio.create_task(self.compress(body)))  # grows
""",
            "import os": """
import os
import zlib
""",
        },
    ),
    Injection(
        *("sklearn_stream", "a table that grows", ("sklearn_stream.history",), "grows"),
        {
            "scaler.partial_fit(features)": """
scaler.partial_fit(features)
if number % 4 == 0:
    history = pd.concat([history, chunk])  # grows
""",
            "random = np.random.default_rng(1)": """
history = pd.DataFrame()
random = np.random.default_rng(1)
""",
        },
    ),
    Injection(
        *("sklearn_stream", "features in a transformer", ("Clip.history_",), "grows"),
        {
            "return np.clip(X, -self.limit, self.limit)": """
self.history_.append(X)  # grows
return np.clip(X, -self.limit, self.limit)
""",
            "self.limit = limit": """
self.limit = limit
self.history_ = []
""",
        },
    ),
    Injection(
        *("sklearn_stream", "the first row of each chunk", ("sklearn_stream.heads",), VIEWS),
        {
            "scaler.partial_fit(features)": """
scaler.partial_fit(features)
heads.append(features[0])  # grows
""",
            "random = np.random.default_rng(1)": """
heads = []
random = np.random.default_rng(1)
""",
        },
    ),
)
