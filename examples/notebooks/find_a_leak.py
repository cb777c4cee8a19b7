# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Find a leak
#
# A recurrent agent acts, and keeps its state for the next step. If that state has a graph, the graph of
# every earlier step stays in memory. Here is such an agent, the tool that says who holds what, and the
# repair.

# %%
import torch

from reverie.memory import Watch, graph_holders, no_growth


class Agent:
    def __init__(self):
        self.cell = torch.nn.GRUCell(16, 64)
        self.state = torch.zeros(64, 64)

    def act(self, observation):
        self.state = self.cell(observation, self.state)
        return self.state.mean(1)


class RepairedAgent(Agent):
    def act(self, observation):
        self.state = self.cell(observation, self.state.detach()).detach()
        return self.state.mean(1)


# %% [markdown]
# ## Watch it
#
# `sample` is called after each step and measures when a sample is due. For a program that runs for hours
# the defaults are right: samples half a second apart, 1 % of the time. This one runs for seconds, so it is
# looked at more often.


# %%
def watched(agent):
    with Watch(roots={"agent": agent}, seconds=0.01, share=1.0, folder="memory") as watch:
        for step in range(50_000):  # the verdict ends it, after some seconds
            agent.act(torch.randn(64, 16))
            watch.sample(step)
            if watch.verdict in ("leak", "flat"):
                break
    return watch


leaking = Agent()
watch = watched(leaking)
print(watch.verdict)
for finding in watch.findings:
    print(finding.text())

# %% [markdown]
# Read the path from the left: `agent.state` holds a graph, and uses a parameter once in each step of it.
# `memory/watch.html` has the curves.
#
# ## Ask who holds graphs
#
# The same search without a watch, at any moment:

# %%
[holder] = graph_holders({"agent": leaking}).holders
print(f"{holder.pattern}: {holder.nbytes / 1e6:.1f} MB, {holder.steps_deep} steps deep")

# %% [markdown]
# ## Repair it, and keep it repaired
#
# `detach` what is kept. Then `no_growth` fails whenever a call leaves something behind: a test for your
# suite.

# %%
repaired = RepairedAgent()
print(watched(repaired).verdict, len(graph_holders({"agent": repaired}).holders), "holders of graphs")


# %%
@no_growth(steps=50)
def one_step():
    repaired.act(torch.randn(64, 16))


one_step()
