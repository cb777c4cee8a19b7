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
# A recurrent agent keeps its state for the next step. If this state has an autograd graph, the graphs of
# all earlier steps stay in memory. This notebook shows such an agent, a tool that finds the object that keeps
# the graphs, and the fix.

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
# ## Watch the agent
#
# Call `sample` after each step. It measures only when a sample is due. The defaults (half a second between
# samples, 1 % of the time) are for programs that run for hours. This one runs for seconds, so it needs more
# frequent samples.


# %%
def watched(agent):
    with Watch(roots={"agent": agent}, seconds=0.01, share=1.0, folder="memory") as watch:
        for step in range(50_000):
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
# The report contains the attribute, its growth and the fix. `memory/watch.html` also shows the curves and the
# path to the holder.
#
# ## Find the holders of graphs
#
# The same search also works at any time without a watch:

# %%
[holder] = graph_holders({"agent": leaking}).holders
print(f"{holder.pattern}: {holder.nbytes / 1e6:.1f} MB, {holder.steps_deep} steps deep")

# %% [markdown]
# ## Fix the leak, and test the fix
#
# Detach the state. `no_growth` fails if calls retain memory, so add such a test to your test suite.

# %%
repaired = RepairedAgent()
print(watched(repaired).verdict, len(graph_holders({"agent": repaired}).holders), "holders of graphs")


# %%
@no_growth(steps=50)
def one_step():
    repaired.act(torch.randn(64, 16))


one_step()
