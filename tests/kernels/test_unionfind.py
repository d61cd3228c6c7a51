from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.kernels.unionfind import components, first_of_group

TOP = 2**64 - 1

rows = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2, 1 << 32, 1 << 63, TOP - 1, TOP]) | st.integers(0, TOP),
        st.integers(0, 2),
    ),
    max_size=40,
)


def plain_first(pairs: list[tuple[int, int]], keys: list[int]) -> list[int]:
    best: dict[tuple[int, int], int] = {}
    for row, pair in enumerate(pairs):
        if pair not in best or keys[row] < keys[best[pair]]:
            best[pair] = row
    return [best[pair] for pair in pairs]


@given(rows, st.randoms(use_true_random=False), st.sampled_from([np.uint8, np.uint64]))
def test_groups_equal_a_dictionary(pairs, random, low_type) -> None:
    keys = list(range(len(pairs)))
    random.shuffle(keys)
    high = np.array([pair[0] for pair in pairs], np.uint64)
    low = np.array([pair[1] for pair in pairs], low_type)
    found = first_of_group(high, low, np.array(keys, np.int64))
    assert found.tolist() == plain_first(pairs, keys)


@pytest.mark.parametrize("bits", [0, 20, 44, 64])
def test_groups_of_many_rows_equal_a_dictionary(bits: int) -> None:
    random = np.random.default_rng(bits)
    pool = random.integers(0, 2**bits, 3000, dtype=np.uint64)
    high = random.choice(pool, 6000)
    low = random.integers(0, 2, 6000, dtype=np.uint64)
    keys = random.permutation(6000)
    found = first_of_group(high, low, keys)
    pairs = list(zip(high.tolist(), low.tolist(), strict=True))
    assert found.tolist() == plain_first(pairs, keys.tolist())


def plain_components(edges: list[tuple[int, int]]) -> dict[int, int]:
    labels = {node: node for edge in edges for node in edge}
    for _ in labels:
        for one, other in edges:
            labels[one] = labels[other] = min(labels[one], labels[other])
    return labels


edge_lists = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=14)


@given(edge_lists)
def test_components_equal_repeated_minima(edges: list[tuple[int, int]]) -> None:
    edges = [(one * 1000 + 3, other * 1000 + 3) for one, other in edges]
    ends = np.array(edges, np.int64).reshape(-1, 2)
    nodes = np.unique(ends)
    labels = components(nodes, ends[:, 0].copy(), ends[:, 1].copy())
    assert dict(zip(nodes.tolist(), labels.tolist(), strict=True)) == plain_components(edges)


@given(edge_lists, st.randoms(use_true_random=False))
def test_labels_do_not_depend_on_the_order_of_edges(edges, random) -> None:
    shuffled = [edge if random.random() < 0.5 else edge[::-1] for edge in edges]
    random.shuffle(shuffled)
    nodes = np.unique(np.array(edges, np.int64))
    results = [
        components(nodes, *np.array(some, np.int64).reshape(-1, 2).T.copy()).tolist()
        for some in (edges, shuffled)
    ]
    assert results[0] == results[1]


def test_a_long_chain_is_one_component() -> None:
    nodes = np.arange(5000)
    order = np.random.default_rng(0).permutation(4999)
    assert components(nodes, nodes[1:][order], nodes[:-1][order]).max() == 0
