"""Trains a small classifier on the iris dataset, and saves the model and its score."""
# pyright: basic, reportMissingImports=false

import argparse
import pickle
from pathlib import Path

from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from retarget import track  # available in every job

parser = argparse.ArgumentParser()
parser.add_argument("--regularization", type=float, default=1.0)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

flowers = load_iris()
train_x, test_x, train_y, test_y = train_test_split(
    flowers.data, flowers.target, test_size=0.3, random_state=args.seed
)
print(f"training on {len(train_x)} flowers, regularization {args.regularization:g}")
model = make_pipeline(StandardScaler(), LogisticRegression(C=1 / args.regularization))
model.fit(train_x, train_y)
accuracy = float(accuracy_score(test_y, model.predict(test_x)))
print(f"accuracy on {len(test_x)} test flowers: {accuracy:.3f}")
track.param(regularization=args.regularization, seed=args.seed)
track.log(accuracy=accuracy)

outputs = Path("outputs")  # saved when the job ends
outputs.mkdir(exist_ok=True)
(outputs / "model.pkl").write_bytes(pickle.dumps(model))
