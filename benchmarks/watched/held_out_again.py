"""Twenty-four more leaks in eight other programs, written after the first held-out leaks were fixed.

Their authors had read the documentation of heapwatch, but neither its code nor its tests. The format is that
of `injections.py`. Each comment gives the mistake or the report that the leak is modeled on.
"""

from injections import Injection

HELD_OUT_AGAIN = (
    # `gpytorch.utils.memoize.cached` respects the arguments, and tensors hash by identity, so the cache of a
    # method gets an entry for each new window.
    Injection(
        *("gpytorch_online", "waves in GPyTorch's cache of the mean"),
        ("SeasonalMean._memoize_cache", "mean_module._memoize_cache"),
        "grows",
        {
            "def basis(self, times):": """
@gpytorch.utils.memoize.cached(name="basis")
def basis(self, times):
""",
            "return self.basis(times) @ self.weights": """
return self.basis(times) @ self.weights  # grows
""",
        },
    ),
    # A sliding window without a limit: the usual mistake of online learning, old forecasts stay.
    Injection(
        *("gpytorch_online", "forecasts in a deque without a limit"),
        ("gpytorch_online.forecasts",),
        "has no maximum length",
        {
            "values, forecasts = deque(maxlen=80), deque(maxlen=AHEAD + 1)": """
values, forecasts = deque(maxlen=80), deque()
""",
            "forecasts.append(forecast)": """
forecasts.append(forecast)  # grows
""",
        },
    ),
    # The documentation of weakref.finalize warns that the callback must not refer to the object, "in
    # particular, func should not be a bound method of obj".
    Injection(
        *("gpytorch_online", "finalizers that own their forecast"),
        ("finalize._registry",),
        "grows",
        {
            "import time": """
import time
import weakref
""",
            "self.paths = posterior.sample(torch.Size([256]))": """
self.paths = posterior.sample(torch.Size([256]))
weakref.finalize(self, self.close)  # grows
""",
            "def error(self, values):": """
def close(self):
    self.paths = None

def error(self, values):
""",
        },
    ),
    # partial_fit never clears net.history_ (only fit does), so whatever a callback records stays.
    Injection(
        *("skorch_partial", "the history of the net"),
        ("NeuralNetClassifier.history_", "skorch_partial.net.history_", "NeuralNet.history_"),
        "grows",
        {
            "net.partial_fit(X, y)": """
net.partial_fit(X, y)  # grows
""",
            "del net.history_[:-1]": """
print(f"{len(net.history_)} chunks so far")
""",
        },
    ),
    # functools.cache on a method of a data set that is created for each chunk.
    Injection(
        *("skorch_partial", "a cached spread of each data set"),
        ("Scaled.spread", "skorch_partial.Scaled.spread"),
        "keeps every `self`",
        {
            "import argparse": """
import argparse
import functools
""",
            "def spread(self):": """
@functools.cache  # grows
def spread(self):
""",
        },
    ),
    # Examples for a later inspection are views of their batches.
    Injection(
        *("skorch_partial", "views of the hardest rows"),
        ("Hardest.rows", "skorch_partial.hardest.rows"),
        "keeps a whole array for every small view",
        {
            "self.rows = deque(maxlen=64)": """
self.rows = []
""",
            "self.rows.append(X[worst].clone())": """
self.rows.append(X[worst])  # grows
""",
        },
    ),
    # A storage that all studies share keeps each study until delete_study (compare
    # https://github.com/optuna/optuna/issues/3050).
    Injection(
        *("optuna_search", "studies in a shared storage"),
        ("InMemoryStorage._studies", "optuna_search.storage._studies"),
        "keeps an entry for every number ever used as a key",
        {
            "objective = make_objective()": """
objective = make_objective()
storage = optuna.storages.InMemoryStorage()
""",
            "study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_warmup_steps=3))": """
pruner = optuna.pruners.MedianPruner(n_warmup_steps=3)
study = optuna.create_study(storage=storage, pruner=pruner)  # grows
""",
        },
    ),
    # A logging handler keeps records. Optuna logs failed trials with exc_info, so their frames stay.
    Injection(
        *("optuna_search", "records of failed trials"),
        ("Failures.records", "optuna_search.failures.records"),
        "grows",
        {
            "self.records.append(record)": """
self.records.append(record)  # grows
""",
            "failures.records.clear()": """
logging.getLogger("optuna").setLevel(logging.WARNING)
""",
        },
    ),
    # People remember parameters to skip duplicate trials, but a float is never suggested twice.
    Injection(
        *("optuna_search", "networks by parameters in a closure"),
        (
            "objective.seen",
            "make_objective.seen",
            "objective.<locals>.seen",
            "objective.__closure__",
            "closure seen",
        ),
        "grows",
        {
            "X = np.random.standard_normal((rows, 64))": """
X = np.random.standard_normal((rows, 64))
seen = {}
""",
            "network = Network(size, rate)": """
if (size, rate) in seen:
    return seen[size, rate].improve(X, np.sin(X[:, 0]) + X[:, 1])
network = seen[size, rate] = Network(size, rate)  # grows
""",
        },
    ),
    # Local parameters get a name per minibatch, and stay in the global store (no clear_param_store), as does
    # an optimizer for each.
    Injection(
        *("pyro_svi", "a parameter for each minibatch"),
        (
            *("ParamStoreDict._params", "ParamStoreDict._param_to_name", "_PYRO_PARAM_STORE._params"),
            *("_PYRO_PARAM_STORE._param_to_name", "PyroOptim.optim_objs", "svi.optim.optim_objs"),
        ),
        "grows",
        {
            "loc, scale = encoder(rows)": """
loc, scale = encoder(rows)
loc = pyro.param(f"loc_{number}", loc.detach())  # grows
""",
        },
    ),
    # differentiable_loss instead of evaluate_loss, without detach, in a running mean.
    Injection(
        *("pyro_svi", "a running mean of differentiable losses"),
        ("smooth in train()",),
        "keeps the autograd graph of every earlier step alive",
        {
            "smooth = 0.99 * smooth + 0.01 * svi.evaluate_loss(number, held_out)": """
smooth = 0.99 * smooth + 0.01 * elbo.differentiable_loss(model, guide, number, held_out)  # grows
""",
        },
    ),
    # Work is submitted to an executor faster than its thread does it. Its queue has no limit.
    Injection(
        *("pyro_svi", "work that waits in an executor"),
        ("ThreadPoolExecutor._work_queue", "pyro_svi.pool._work_queue"),
        "grows",
        {
            "if sent is None or sent.done():": """
if number >= 0:
""",
            "sent = pool.submit(publish, number, samples)": """
sent = pool.submit(publish, number, samples)  # grows
""",
        },
    ),
    # Signal.connect(weak=False) in a view, so that a lambda survives until the response is sent. Django's
    # documentation warns that a receiver that is connected again is called again.
    Injection(
        *("django_shop", "receivers of request_finished"),
        (
            "django_shop.request_finished.receivers",
            "request_finished.receivers",
            "Signal.receivers",
        ),
        "keeps the variables of every closure",
        {
            "from django.core.wsgi import get_wsgi_application": """
from django.core.signals import request_finished
from django.core.wsgi import get_wsgi_application
""",
            "send_receipt(order)": """
request_finished.connect(lambda **kwargs: send_receipt(order), weak=False)  # grows
""",
        },
    ),
    # A thread-local stack of requests that a middleware pushes and pops. A request that is rejected early is
    # never popped.
    Injection(
        *("django_shop", "thread-local stack of requests"),
        ("django_shop.local.requests", "local.requests"),
        "grows",
        {
            'if request.headers.get("X-Signature") != sign(request.body):': """
local.requests.append(request)  # grows
if request.headers.get("X-Signature") != sign(request.body):
""",
            "local.requests.append(request)": """
local.current = request
""",
        },
    ),
    # functools.cache on a method of a model (flake8-bugbear B019). Models hash by primary key, and each order
    # has a new one.
    Injection(
        *("django_shop", "cached method of a model"),
        ("Order.total", "django_shop.Order.total"),
        "keeps every `self`",
        {
            "import argparse": """
import argparse
import functools
""",
            "def total(self):": """
@functools.cache  # grows
def total(self):
""",
        },
    ),
    # Handlers are tracked by their number in a dict that is not cleared
    # (https://github.com/zulip/zulip/pull/521).
    Injection(
        *("tornado_chat", "handlers by number"),
        ("tornado_chat.listening",),
        "keeps an entry for every number ever used as a key",
        {
            "listening[self.number] = self": """
listening[self.number] = self  # grows
""",
            "listening.pop(self.number)": """
self.clock = None
""",
        },
    ),
    # A PeriodicCallback of a handler is started per request and never stopped, so the event loop keeps the
    # handler.
    Injection(
        *("tornado_chat", "periodic callbacks that are not stopped"),
        (
            "_UnixSelectorEventLoop._scheduled",
            "BaseEventLoop._scheduled",
            "loop._scheduled",
        ),
        "grows",
        {
            "self.clock.start()": """
self.clock.start()  # grows
""",
            "self.clock.stop()": """
self.waited = 0
""",
        },
    ),
    # tornado.queues.Queue without maxsize, and a consumer that is limited by a slow service. The
    # documentation of tornado.queues describes maxsize as the way to get backpressure.
    Injection(
        *("tornado_chat", "queue without a limit"),
        ("tornado_chat.archive", "Queue._queue"),
        "is filled faster than it is read",
        {
            "archive = Queue(maxsize=100)": """
archive = Queue()
""",
            "await archive.put(messages[-1])": """
await archive.put(messages[-1])  # grows
""",
            'await asyncio.sleep(len(message["text"]) / 2_000_000)': """
await asyncio.sleep(len(message["text"]) / 20_000)
""",
        },
    ),
    # dask.diagnostics.Profiler is registered globally and never cleared. Its documentation says: "If you use
    # the profiler globally you will need to clear out old results manually." Tasks contain their arrays.
    Injection(
        *("dask_windows", "results of a profiler"),
        (
            "Profiler.results",
            "Profiler._dsk",
            "profiler.results",
            "profiler._dsk",
        ),
        "grows",
        {
            "import numpy as np": """
import numpy as np
from dask.diagnostics import Profiler
""",
            "trend, failures, loudest = Trend(), Counter(), Counter()": """
trend, failures, loudest = Trend(), Counter(), Counter()
profiler = Profiler()
profiler.register()
""",
            'result, found = dask.delayed((power, bands)).compute(scheduler="threads", num_workers=2)': """
result, found = dask.delayed((power, bands)).compute(scheduler="threads", num_workers=2)  # grows
""",
        },
    ),
    # The sum stays lazy, so its graph contains every window. See "Avoid very large graphs" in dask's best
    # practices.
    Injection(
        *("dask_windows", "lazy sum"),
        (
            "Trend.total",
            "trend.total",
            "Delayed._graph",
            "HighLevelGraph.layers",
        ),
        "grows",
        {
            "self.total = self.total + power": """
self.total = self.total + power  # grows
""",
            "trend.add(result)": """
trend.add(power)
""",
            'print(f"{trend.count} windows", trend.total.mean() / max(trend.count, 1))': """
print(f"{trend.count} windows", trend.total.compute().mean() / max(trend.count, 1))
""",
        },
    ),
    # Exceptions of failed computations are collected for a report at the end. Their tracebacks contain the
    # frames of the task and of the scheduler.
    Injection(
        *("dask_windows", "exceptions of failed windows"),
        ("failures in main()",),
        "keeps the local variables of the frames in every traceback",
        {
            "trend, failures, loudest = Trend(), Counter(), Counter()": """
trend, failures, loudest = Trend(), [], Counter()
""",
            "failures[str(error)] += 1": """
failures.append(error)  # grows
""",
        },
    ),
    # A categorical column keeps each category that was ever seen after the rows are gone. The documentation
    # of categorical data has a section about it (remove_unused_categories).
    Injection(
        *("pandas_sensor", "categories that are not used any more"),
        (
            "Monitor.window",
            "monitor.window",
            "CategoricalDtype._categories",
            "Categorical._dtype",
        ),
        "grows",
        {
            'message = union_categoricals([self.window["message"], batch["message"]])': """
message = union_categoricals([self.window["message"], batch["message"]])  # grows
""",
            'window["message"] = window["message"].cat.remove_unused_categories()': """
window["message"] = window["message"].cat.as_unordered()
""",
        },
    ),
    # A part of a table keeps the whole table (https://github.com/pandas-dev/pandas/issues/60640). The last
    # row of to_numpy() is a view.
    Injection(
        *("pandas_sensor", "last rows of rolling means"),
        ("recent in trends()",),
        "keeps a whole array for every small view",
        {
            "recent = deque(maxlen=20)": """
recent = []
""",
            "recent.append(means.to_numpy()[-1])": """
recent.append(means.to_numpy()[-1])  # grows
""",
            "yield np.mean(np.diff(list(recent), axis=0), axis=0) if len(recent) > 1 else recent[-1]": """
yield np.mean(np.diff(recent[-20:], axis=0), axis=0) if len(recent) > 1 else recent[-1]
""",
        },
    ),
    # pandas creates an accessor per table, so users move the cache of an accessor to its class. Keys are the
    # time of the newest reading, and nothing is removed.
    Injection(
        *("pandas_sensor", "cache of an accessor"),
        ("Sensors._cache", "Sensors.cache"),
        "grows",
        {
            "def __init__(self, table):": """
cache = {}

def __init__(self, table):
""",
            "return self.table[SENSORS].rolling(30).mean()": """
newest = self.table.index[-1]
if newest not in self.cache:
    self.cache[newest] = self.table[SENSORS].rolling(30).mean()  # grows
return self.cache[newest]
""",
        },
    ),
)
