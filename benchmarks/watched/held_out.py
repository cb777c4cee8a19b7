"""Twenty-four leaks in eight programs that were written after heapwatch was last improved.

Their authors had read the documentation of heapwatch, but neither its code nor its tests. The format is that
of `injections.py`. Each comment gives the mistake or the report that the leak is modeled on.
"""

from injections import Injection

HELD_OUT = (
    # A receiver that is connected for each request stays in the signal
    # (https://github.com/getsentry/raven-python/pull/147). blinker tells you to pass weak=False for a
    # function that is defined in a function, and nothing disconnects it. The holder is the signal of flask.
    Injection(
        *("flask_notes", "receivers of a signal"),
        ("request_finished.receivers", "NamedSignal.receivers", "Signal.receivers"),
        "keeps the variables of every closure",
        {
            "from flask import Flask, g, jsonify, request": """
from flask import Flask, g, jsonify, request, request_finished
""",
            "newest.append(note)": """
newest.append(note)

def log_saved(sender, response, **extra):
    app.logger.debug("%s wrote %d words: %s", note["author"], len(note["words"]), response.status)

request_finished.connect(log_saved, app, weak=False)  # grows
""",
        },
    ),
    # `app.app_context().push()` in a job, without pop. This is the advice of many answers to "working outside
    # of application context". Each context keeps a token, and the token keeps the previous context with its
    # g. The holder is flask's ContextVar.
    Injection(
        *("flask_notes", "contexts that are not popped"),
        ("_cv_app", "flask.app_ctx", "AppContext._cv_tokens"),
        "grows",
        {
            "context.push()": """
context.push()  # grows
""",
            "context.pop()": """
del context
""",
        },
    ),
    # An error handler that keeps exceptions for an error page. The tracebacks keep the frames of the view,
    # and with them the posted text (https://github.com/pallets/flask/pull/5710 is about such references).
    Injection(
        *("flask_notes", "exceptions of an error handler"),
        ("flask_notes.rejected",),
        "keeps the local variables of the frames in every traceback",
        {
            "rejected = collections.deque(maxlen=50)": """
rejected = []
""",
            "rejected.append(str(error))": """
rejected.append(error)  # grows
""",
        },
    ),
    # A common mistake with websockets: the set of connections for broadcast() still contains closed
    # connections. broadcast() skips them silently. Here, they are removed only after an abnormal closure.
    # Each keeps its compression buffers outside of Python. The set is as in
    # https://github.com/python-websockets/websockets/issues/596.
    Injection(
        *("websocket_chat", "guests who have left"),
        ("websocket_chat.guests",),
        "grows",
        {
            "guests.add(websocket)": """
guests.add(websocket)  # grows
""",
            "guests.discard(websocket)": """
if websocket.close_code != 1_000:
    guests.discard(websocket)
""",
        },
    ),
    # The handler waits for its sender. The sender waits for the next message of an empty queue and never
    # notices that the client has left (https://github.com/PrefectHQ/prefect/pull/12346). The holder is the
    # server of websockets.
    Injection(
        *("websocket_chat", "handlers that never end"),
        (
            *("Server.handler_tasks", "server.handler_tasks"),
            *("Server.all_connections", "server.all_connections", "whispers in handle()"),
        ),
        "grows",
        {
            "whispers.cancel()": """
await whispers  # grows
""",
        },
    ),
    # An unlimited queue between the receiver and a slow consumer, a common mistake (no report).
    Injection(
        *("websocket_chat", "queue of a slow consumer"),
        ("inbox in main()", "inbox in handle()"),
        "is filled faster than it is read",
        {
            "inbox = asyncio.Queue(maxsize=100)": """
inbox = asyncio.Queue()
""",
            "await inbox.put(text)": """
await inbox.put(text)  # grows
""",
            'if "http" in await inbox.get():': """
await asyncio.sleep(0.3)
if "http" in await inbox.get():
""",
        },
    ),
    # `event.listen(..., once=True)` for each order. The documentation of sqlalchemy.event.listen says that
    # once does not remove the listener, so memory grows without limit. The holder is the engine's collection
    # of listeners.
    Injection(
        *("sqlalchemy_orders", "listeners with once"),
        ("dispatch.commit", "_ListenerCollection.listeners"),
        "keeps the variables of every closure",
        {
            "from sqlalchemy import ForeignKey, create_engine, delete": """
from sqlalchemy import ForeignKey, create_engine, delete, event
""",
            "session.add(order)": """
session.add(order)

def write_receipt(connection):
    with open(f"{folder.name}/receipt.txt", "w") as file:
        file.write(note)

event.listen(engine, "commit", write_receipt, once=True)  # grows
""",
        },
    ),
    # A log of queries in connection.info, modeled on the recipe for query timing in SQLAlchemy's FAQ, but
    # without pop. info lives as long as the connection in the pool. The holder is a record of the pool.
    Injection(
        *("sqlalchemy_orders", "queries in the info of a connection"),
        ("info['queries']", "_ConnectionRecord.info"),
        "grows",
        {
            "from sqlalchemy import ForeignKey, create_engine, delete": """
from sqlalchemy import ForeignKey, create_engine, delete, event
""",
            'engine = create_engine(f"sqlite:///{folder.name}/shop.db")': """
engine = create_engine(f"sqlite:///{folder.name}/shop.db")


@event.listens_for(engine, "after_cursor_execute")
def log_query(connection, cursor, statement, parameters, context, many):
    queries = connection.info.setdefault("queries", [])
    queries.append((statement, parameters))  # grows
""",
        },
    ),
    # A long session with expire_on_commit=False, as recommended for asyncio: the loaded collection of each
    # customer gets every new order, and keeps the orders that were deleted in bulk
    # (https://github.com/podly-pure-podcasts/podly_pure_podcasts/issues/199).
    Injection(
        *("sqlalchemy_orders", "collections that never expire"),
        ("Customer.orders", "customers[*].orders"),
        "grows",
        {
            "with Session(engine) as session:": """
with Session(engine, expire_on_commit=False) as session:
""",
            "order = Order(customer=customer, note=note)": """
order = Order(customer=customer, note=note)  # grows
""",
        },
    ),
    # Three rows of each batch are kept. A slice of a frame shares its buffers, so each keeps the whole batch
    # (https://github.com/pola-rs/polars/issues/19497). The memory is outside of Python.
    Injection(
        *("polars_events", "slices of batches"),
        ("samples in main()",),
        "grows",
        {
            "report.add(events)": """
report.add(events)
samples.append(events.head(3))  # grows
""",
            "random = np.random.default_rng(1)": """
random = np.random.default_rng(1)
samples = []
""",
        },
    ),
    # `lru_cache` on the function of map_elements, a common way to speed it up, with values that hardly ever
    # repeat.
    Injection(
        *("polars_events", "lru_cache of map_elements"),
        ("polars_events.browser",),
        "never forgets a result",
        {
            "import argparse": """
import argparse
import functools
""",
            "def browser(agent):": """
@functools.lru_cache(maxsize=None)  # grows
def browser(agent):
""",
        },
    ),
    # A frame that all batches are stacked to (https://github.com/pola-rs/polars/issues/15189). The holder is
    # one DataFrame of polars with memory outside of Python.
    Injection(
        *("polars_events", "frame of all batches"),
        ("Report.log", "polars_events.report.log", "report.log in main()"),
        "grows",
        {
            "self.users = users.lazy()": """
self.users = users.lazy()
self.log = pl.DataFrame(
    schema={"user": pl.Int64, "amount": pl.Float64, "page": pl.String, "agent": pl.String}
)
""",
            "self.totals = totals.collect()": """
self.totals = totals.collect()
self.log.vstack(events, in_place=True)  # grows
""",
        },
    ),
    # A common mistake with AveragedModel. The parameters of the average still require gradients, so its loss
    # has a graph, and without torch.no_grad() or .item(), `smoothed` chains the graphs of all steps (like
    # brax #152).
    Injection(
        *("torch_ema", "smoothed loss of the average with its graph"),
        ("smoothed in train()",),
        "keeps the autograd graph of every earlier step alive",
        {
            "smoothed = 0.99 * smoothed + 0.01 * loss.item()": """
averaged_loss = functional.cross_entropy(ema(images), labels)
smoothed = 0.99 * smoothed + 0.01 * averaged_loss  # grows
""",
        },
    ),
    # Class-incremental learning replaces the head for each task, and adds the new head to the optimizer. The
    # optimizer never forgets the old heads and their moments (docs: "a growing `state` of an optimizer").
    Injection(
        *("torch_ema", "old heads in the optimizer"),
        ("AdamW.state", "AdamW.param_groups", "optimizer.state", "optimizer.param_groups"),
        "grows",
        {
            "ema.update_parameters(model)": """
ema.update_parameters(model)
if step % 10 == 9:  # the next task
    model.head = nn.Linear(1_944, 10)
    ema.module.head.load_state_dict(model.head.state_dict())
    optimizer.add_param_group({"params": list(model.head.parameters())})  # grows
""",
        },
    ),
    # A common mistake (like thingsvision #150): a preview of each batch is a view of the whole batch. The
    # holder is a local variable of a suspended generator.
    Injection(
        *("torch_ema", "previews in a generator"),
        ("previews in random_batches()",),
        "keeps a whole array for every small view",
        {
            "generator = torch.Generator().manual_seed(2)": """
generator = torch.Generator().manual_seed(2)
previews = []
""",
            "yield images, labels": """
previews.append(images[0])  # grows
yield images, labels
""",
        },
    ),
    # A common mistake with hooks (like peft #2761), with the hooks of MessagePassing: each step registers
    # another one to keep the messages with their batch. The library's own dict of hooks is not one of
    # torch.nn.Module's.
    Injection(
        *("geometric_gcn", "propagate hooks of a convolution"),
        (
            *("GCNConv._propagate_forward_hooks", "MessagePassing._propagate_forward_hooks"),
            "conv2._propagate_forward_hooks",
        ),
        "gains hooks that are never removed",
        {
            "optimizer.zero_grad()": """
def keep_messages(conv, inputs, out):
    batch.messages = out.detach()


gcn.conv2.register_propagate_forward_hook(keep_messages)  # grows
optimizer.zero_grad()
""",
        },
    ),
    # Data and Batch accept any attribute, so users store results of each epoch on them. The storage of the
    # batch then keeps all of them. The keys are strings.
    Injection(
        *("geometric_gcn", "embeddings in the storage of a batch"),
        (
            "GlobalStorage._mapping",
            "BaseStorage._mapping",
            "geometric_gcn.holdout",
            "DataBatch._store",
            "Batch._store",
        ),
        "grows",
        {
            "if number % 10 == 0:": """
if number % 10 == 0:
    embedding = gcn.conv1(holdout.x, holdout.edge_index).detach()
    holdout[f"embedding_{number}"] = embedding  # grows
""",
        },
    ),
    # The documented trap of weakref.finalize: the arguments of the callback must not reference the object, or
    # it is never freed. The holder is a dict of a class of the standard library.
    Injection(
        *("geometric_gcn", "finalizers that keep their object"),
        ("finalize._registry", "weakref.finalize"),
        "grows",
        {
            "import argparse": """
import argparse
import collections
""",
            "import time": """
import time
import weakref
""",
            "class AddDegree(BaseTransform):": '''
alive = collections.Counter()


def count_alive(data):
    """Count the graphs of each class that are in memory."""
    alive[int(data.y)] += 1
    weakref.finalize(data, lambda old: alive.subtract([int(old.y)]), data)  # grows


class AddDegree(BaseTransform):
''',
            "return data": """
count_alive(data)
return data
""",
        },
    ),
    # A common mistake with Ignite: a handler attaches another handler each time (related: ignite #3438,
    # #3447, where handlers keep engines alive). The data are the arguments of the handler, not the variables
    # of a closure.
    Injection(
        *("ignite_autoencoder", "event handlers of the evaluator"),
        ("Engine._event_handlers", "evaluator._event_handlers"),
        "grows",
        {
            "validation = [images for images, _ in zip(stream(3), range(2), strict=False)]": '''
validation = [images for images, _ in zip(stream(3), range(2), strict=False)]


def compare(engine, images):
    """Compare the error with the variance of images."""
    engine.state.metrics["explained"] = 1 - engine.state.metrics["mse"] / images.var(0).sum().item()
''',
            "metrics = evaluator.run(validation).metrics": """
evaluator.add_event_handler(Events.COMPLETED, compare, engine.state.batch)  # grows
metrics = evaluator.run(validation).metrics
""",
        },
    ),
    # Metrics based on EpochMetric store all predictions and targets until reset() (ignite's documentation
    # warns of it). A user updates one for the whole run like a mean.
    Injection(
        *("ignite_autoencoder", "predictions in a metric"),
        (
            *("MedianAbsoluteError._predictions", "MedianAbsoluteError._targets"),
            *("EpochMetric._predictions", "EpochMetric._targets", "median._predictions", "median._targets"),
        ),
        "grows",
        {
            "from ignite.metrics import MeanSquaredError, RunningAverage": """
from ignite.metrics import MeanSquaredError, RunningAverage
from ignite.metrics.regression import MedianAbsoluteError
""",
            'MeanSquaredError().attach(evaluator, "mse")': """
MeanSquaredError().attach(evaluator, "mse")
median = MedianAbsoluteError()
""",
            "return restored, images": """
median.update((restored.flatten(), images.flatten()))  # grows
return restored, images
""",
            "trainer.run(stream(2), max_epochs=1, epoch_length=steps)": """
trainer.run(stream(2), max_epochs=1, epoch_length=steps)
print(f"median error of all validations: {median.compute():.3f}")
""",
        },
    ),
    # A common mistake with Ignite: a user's history in engine.state, with losses that are never part of
    # backward() and keep their graph (like pytorch-forecasting #1924).
    Injection(
        *("ignite_autoencoder", "losses with their graph in the state of the engine"),
        ("State.noisy_losses", "trainer.state.noisy_losses", "engine.state.noisy_losses"),
        "keeps every autograd graph alive",
        {
            "trainer, evaluator = Engine(train_step), Engine(validate)": """
trainer, evaluator = Engine(train_step), Engine(validate)
trainer.state.noisy_losses = []
""",
            "metrics = evaluator.run(validation).metrics": """
noisy = engine.state.batch + 0.1 * torch.randn_like(engine.state.batch)
engine.state.noisy_losses.append(functional.mse_loss(model(noisy), engine.state.batch))  # grows
metrics = evaluator.run(validation).metrics
""",
        },
    ),
    # As in rl-blox #157: a static argument that changes makes JAX compile, and keep, a new program for each
    # value (also jax #2072). Measured: 2.1 MB of RSS for each program, of which 32 kB are Python objects
    # (tracemalloc), so the honest answer is "held outside Python", with or without the kind "compiled code".
    # A tool is right, too, if it names the jitted function, because its cache has the Python objects.
    Injection(
        *("jax_regression", "compiled programs for each static argument"),
        ("held outside Python", "jax_regression.annealed_loss", "compiled code"),
        "grows",
        {
            "import argparse": """
import argparse
import functools
""",
            'print(f"{step} {huber_loss(params, x, y, 0.999**step):.3f}", flush=True)': """
loss = annealed_loss(params, x, y, delta=0.999**step)  # grows
print(f"{step} {loss:.3f}", flush=True)
""",
            "def log_errors(results):": '''
@functools.partial(jax.jit, static_argnames="delta")
def annealed_loss(params, x, y, delta):
    """Return the mean Huber loss for the current delta."""
    return optax.huber_loss(predict(params, x), y, delta=delta).mean()


def log_errors(results):
''',
        },
    ),
    # A common mistake with jax.monitoring: listeners stay registered in a global list of the library, here
    # one for each step, to log which step compiles.
    Injection(
        *("jax_regression", "listeners of jax.monitoring"),
        ("monitoring._event_duration_secs_listeners",),
        "keeps the variables of every closure",
        {
            "def train(params, steps):": '''
def watch_compilation(step, x):
    """Log a compilation in this step."""

    def log(event, duration, **kwargs):
        if "backend_compile" in event:
            print(f"{step} compiled for {x.shape} in {duration:.1f} s", flush=True)

    jax.monitoring.register_event_duration_secs_listener(log)  # grows


def train(params, steps):
''',
            "y = np.sin(x).sum(1)": """
y = np.sin(x).sum(1)
watch_compilation(step, x)
""",
        },
    ),
    # A common mistake with asynchronous logging: the writer is slower than the training (like baseplate.py
    # #302).
    Injection(
        *("jax_regression", "queue of errors"),
        ("results in train()", "results in log_errors()"),
        "is filled faster than it is read",
        {
            "step, errors = results.get()": """
step, errors = results.get()
time.sleep(0.5)  # the disk is slow
""",
            "results.put((step, errors))": """
results.put((step, errors))  # grows
""",
        },
    ),
)
