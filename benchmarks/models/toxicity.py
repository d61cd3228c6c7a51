"""Make corpuskit/models/toxicity.model: the weights of alt-profanity-check as a linear model of ours.

    python -m venv peer && peer/bin/pip install alt-profanity-check==1.9.1
    peer/bin/python benchmarks/models/toxicity.py export weights.npz
    PYTHONPATH=. python benchmarks/models/toxicity.py write weights.npz corpuskit/models/toxicity.model

That package (MIT) learned from 200,000 labelled tweets and comments of Wikipedia: TF-IDF of 15,442
words, and the mean of five linear classifiers, each with a sigmoid. Their mean as one classifier
differs in the third decimal. What is not the same: here a word that occurs n times counts
1 + log(n), not n, and words are hashed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

BITS = 22
"""2 ** 22 buckets: of words that it does not know 0.4 % fall on one that it does."""


def export(output: Path) -> None:
    """Write the weights with the versions of scikit-learn and joblib that the package pins."""
    import joblib
    import profanity_check

    folder = Path(profanity_check.__file__).parent / "data"
    vectorizer = joblib.load(folder / "vectorizer.joblib")
    weights, bias = np.zeros(len(vectorizer.vocabulary_)), 0.0
    members = joblib.load(folder / "model.joblib").calibrated_classifiers_
    for member in members:
        sigmoid, classifier = member.calibrators[0], member.estimator
        weights -= sigmoid.a_ * classifier.coef_[0] / len(members)
        bias -= (sigmoid.a_ * classifier.intercept_[0] + sigmoid.b_) / len(members)
    words = sorted(vectorizer.vocabulary_, key=vectorizer.vocabulary_.get)
    np.savez(output, words=np.array(words), idf=vectorizer.idf_, weights=weights, bias=bias)


def write(weights: Path, output: Path) -> None:
    """Write the model."""
    from corpuskit.kernels.textfeatures import GramSettings
    from corpuskit.stages.annotators._card import ModelCard
    from corpuskit.stages.annotators._linear import LinearWeights, count_texts, write_linear

    given = np.load(weights)
    grams = GramSettings(words=1, minn=1, maxn=0, bits=BITS)
    encoded = [word.encode() for word in given["words"].tolist()]
    ends = np.cumsum([len(word) for word in encoded])
    data = np.frombuffer(b"".join(encoded), np.uint8)
    buckets = count_texts(np.append(0, ends[:-1]), ends, data, grams).buckets
    table = np.zeros((1 << BITS, 2), np.float32)
    table[buckets, 0] = given["idf"]
    table[buckets, 1] = given["weights"] * given["idf"]
    card = ModelCard(normalize=("lower", "punct"))
    bias = np.array([given["bias"]])
    write_linear(output, LinearWeights(("other", "toxic"), grams, table, bias, None, card))


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    {"export": export, "write": write}[command](*map(Path, paths))
