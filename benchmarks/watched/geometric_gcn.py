"""Graph classification with PyTorch Geometric: a GCN learns to tell dense from sparse random graphs."""

import argparse
import time

import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, global_mean_pool
from torch_geometric.transforms import BaseTransform
from torch_geometric.utils import degree, erdos_renyi_graph

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=900, help="optimizer steps")


class AddDegree(BaseTransform):
    """Adds the degree of each node as a feature."""

    def forward(self, data):  # noqa: D102
        data.x = degree(data.edge_index[0], data.num_nodes).unsqueeze(1)
        return data


class GCN(torch.nn.Module):
    """Two graph convolutions, and a linear layer for the mean of the nodes."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.linear = GCNConv(1, 32), GCNConv(32, 32), torch.nn.Linear(32, 2)

    def forward(self, data):  # noqa: D102
        nodes = self.conv2(self.conv1(data.x, data.edge_index).relu(), data.edge_index)
        return self.linear(global_mean_pool(nodes, data.batch))


def random_graphs(count, transform):
    """Return random graphs. The class of each is the density of its edges."""
    labels = torch.arange(count) % 2
    edges = [erdos_renyi_graph(40, 0.15 if label else 0.1) for label in labels]
    return [
        transform(Data(edge_index=e, y=y.view(1), num_nodes=40)) for e, y in zip(edges, labels, strict=True)
    ]


torch.set_num_threads(1)
gcn, add_degree = GCN(), AddDegree()
holdout = Batch.from_data_list(random_graphs(32, add_degree))
optimizer = torch.optim.Adam(gcn.parameters(), lr=1e-2)


def train_step(batch):
    """Train with a batch of graphs."""
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(gcn(batch), batch.y).backward()
    optimizer.step()
    time.sleep(0.04)


for number in range(parser.parse_args().steps):
    train_step(Batch.from_data_list(random_graphs(8, add_degree)))
    if number % 10 == 0:
        print(f"{number} {(gcn(holdout).argmax(1) == holdout.y).float().mean():.3f}", flush=True)
