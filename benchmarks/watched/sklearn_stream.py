"""A pandas and scikit-learn loop: features of chunks of a table, and a classifier that learns online."""

import argparse

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import StandardScaler

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=10_000, help="chunks")
steps = parser.parse_args().steps


class Clip(TransformerMixin, BaseEstimator):
    """Clips outliers."""

    def __init__(self, limit=3.0):
        self.limit = limit

    def fit(self, X, y=None):
        """Return the transformer, which has no state."""
        return self

    def transform(self, X):
        """Return the clipped features."""
        return np.clip(X, -self.limit, self.limit)


random = np.random.default_rng(1)
scaler, clip, classifier = StandardScaler(), Clip(), SGDClassifier(random_state=1)
for number in range(steps):
    chunk = pd.DataFrame(random.standard_normal((256, 16)), columns=[f"x{i}" for i in range(16)])
    chunk["key"] = random.integers(0, 32, 256)
    chunk["y"] = (chunk["x0"] + chunk["x1"] > 0).astype(int)
    means = chunk.groupby("key")["x2"].transform("mean")
    features = chunk.drop(columns=["key", "y"]).assign(x2=chunk["x2"] - means).to_numpy()
    scaler.partial_fit(features)
    clean = clip.fit_transform(scaler.transform(features))
    classifier.partial_fit(clean, chunk["y"], classes=[0, 1])
    if number % 500 == 0:
        print(f"{number} {classifier.score(clean, chunk['y']):.3f}", flush=True)
