"""Tests of exchangeability have the level they say, find what is planted, and permuted networks train alike."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zbkernels.exchangeability.optimizers import RULES, optimizer
from zbkernels.exchangeability.permuting import permute_hidden, random_hidden_orders, relative_distance
from zbkernels.exchangeability.stacked_mlp import StackedMLP
from zbkernels.exchangeability.symmetry_tests import (
    SIDES,
    entries,
    exchangeability,
    holm,
    labelled,
    linked,
    random_orders,
    unevenness_of_energy,
)
from zbkernels.experiments.exchangeability.ensembles import trained
from zbkernels.experiments.exchangeability.symmetry_measures import (
    PAIR,
    SCALE,
    SHIFT,
    plant,
    planted_ensemble,
    power,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def exchangeable(count: int, rows: int, columns: int, g: torch.Generator) -> Tensor:
    """Row and column exchangeable, far from IID and heavy-tailed: f(A, B_j, C_i, D_ji) of Theorem 2."""
    a, b, c = (torch.randn(count, *shape, generator=g) for shape in ((1, 1), (rows, 1), (1, columns)))
    d = torch.randn(count, rows, columns, generator=g)
    return a.exp() * (b * c + (b + c) * d.tan())


@pytest.mark.parametrize("make", ["iid", "exchangeable"])
def test_the_level_is_exact(make: str) -> None:
    """Of 300 ensembles of only three networks; with 19 permutations p ≤ a has probability a for a = 0.05, 0.1, ..."""
    g, values = generator(), []
    for trial in range(300):
        w = torch.randn(3, 5, 6, generator=g) if make == "iid" else exchangeable(3, 5, 6, g)
        found = exchangeability(w, SIDES[trial % 2], permutations=19, generator=g)
        values.append(found.p)
        assert set(found.parts) == {"mean", "energy", "pairs"}
    for a in (0.05, 0.1, 0.25, 0.5):
        share = sum(p <= a + 1e-9 for p in values) / 300
        assert abs(share - a) < 3.5 * math.sqrt(a * (1 - a) / 300), (a, share)


@pytest.mark.parametrize(("kind", "part"), [(SCALE, "energy"), (SHIFT, "mean"), (PAIR, "pairs")])
def test_a_planted_violation_is_found_on_its_side_by_its_statistic(kind: str, part: str) -> None:
    w = plant(torch.randn(96, 8, 6, generator=generator()), kind, 0.7)
    found = exchangeability(w, "columns", permutations=99, generator=generator())
    assert found.p == found.parts[part] == 0.01
    if kind == PAIR:  # the columns one by one are as before
        assert min(found.parts["mean"], found.parts["energy"]) > 0.05
    rows = exchangeability(w.mT, "rows", permutations=99, generator=generator())
    assert rows == found
    assert exchangeability(w, "rows", permutations=99, generator=generator()).p > 0.05


def test_one_network_tells_nothing_without_labels_and_something_with_them() -> None:
    g = generator(4)
    w = torch.randn(1, 20, 12, generator=g) * torch.linspace(0.5, 2, 12)
    assert exchangeability(w, "columns", permutations=49, generator=g).p == 1
    assert float(labelled(w, "columns", torch.arange(12), permutations=199, generator=g)) == 1 / 200
    plain = labelled(
        torch.randn(400, 6, 7, generator=g), "rows", torch.arange(6), permutations=199, generator=g
    )
    assert plain.shape == (400,) and 0.02 < float((plain <= 0.05).double().mean()) < 0.09


def test_permuting_entries_sees_what_permuting_rows_and_columns_does_not() -> None:
    g = generator(1)
    scales = torch.randn(64, 7, 1, generator=g).exp()
    w = scales * torch.randn(64, 7, 9, generator=g)
    found = entries(w, permutations=99, generator=g)
    assert found.p == found.parts["rows"] == 0.01
    assert min(exchangeability(w, side, permutations=99, generator=g).p for side in SIDES) > 0.05
    values = [entries(torch.randn(3, 4, 5, generator=g), permutations=19, generator=g).p for _ in range(200)]
    assert abs(sum(p <= 0.1 + 1e-9 for p in values) / 200 - 0.1) < 0.075


def test_linked_layers_are_found_where_units_share_a_factor() -> None:
    g = generator(2)
    scale = torch.randn(50, 8, 1, generator=g).exp()
    before = scale * torch.randn(50, 8, 5, generator=g)
    after = scale.mT * torch.randn(50, 6, 8, generator=g)
    found = linked(before, after, permutations=99, generator=g)
    assert found.p == found.parts["energy"] == 0.01
    order = random_orders(50, 8, g)
    both = (
        before.gather(1, order[:, :, None].expand_as(before)),
        after.gather(2, order[:, None].expand_as(after)),
    )
    assert linked(*both, permutations=99, generator=g).p == 0.01  # permuted together: the same law
    alone = linked(both[0], after, permutations=99, generator=g)
    assert alone.p > 0.05
    with pytest.raises(ValueError, match=r"linked: expected .* got \[50, 8, 5\] and \[50, 8, 6\]"):
        linked(before, after.mT)


def test_the_size_of_unevenness() -> None:
    g = generator(3)
    scales = torch.tensor([1.0, 1.0, 1.0, 2.0]).sqrt()
    own = torch.randn(4000, 1, 1, generator=g).exp()  # of a network, no difference of columns
    w = own * scales * torch.randn(4000, 50, 4, generator=g)
    want = torch.tensor([1.0, 1.0, 1.0, 2.0]).std() / 1.25
    assert unevenness_of_energy(w, "columns") == pytest.approx(float(want), rel=0.03)
    assert unevenness_of_energy(w[:, :, :3], "columns") < 0.01
    shuffled = w[:, :, [2, 3, 0, 1]]
    assert unevenness_of_energy(shuffled, "columns") == pytest.approx(unevenness_of_energy(w, "columns"))
    with pytest.raises(ValueError, match="at least two"):
        unevenness_of_energy(w[:1], "rows")


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def test_every_test_wants_a_permutation_and_holm_wants_p_values() -> None:
    w = torch.randn(3, 4, 5)
    for test in (
        lambda: exchangeability(w, "rows", permutations=0),
        lambda: entries(w, permutations=0),
        lambda: linked(w, torch.randn(3, 6, 4), permutations=-1),
        lambda: labelled(w, "rows", torch.arange(4), permutations=-5),
    ):
        with pytest.raises(ValueError, match="at least one permutation, got"):
            test()
    with pytest.raises(ValueError, match=r"p-values in \[0, 1\], got \[0.1, nan\]"):
        holm([0.1, float("nan")])


def test_bad_arguments() -> None:
    w = torch.randn(3, 4, 5)
    with pytest.raises(ValueError, match=r"side out of rows, columns, got 'both'"):
        exchangeability(w, "both")
    with pytest.raises(ValueError, match=r"weights \[R, out, in\] .* got torch.float32 \[4, 5\]"):
        exchangeability(w[0], "rows")
    with pytest.raises(ValueError, match="NaN or infinity"):
        exchangeability(w.log(), "rows")
    with pytest.raises(ValueError, match=r"statistics out of mean, energy, pairs, got \('median',\)"):
        exchangeability(w, "rows", statistics=("median",))
    with pytest.raises(ValueError, match="at least one permutation, got 0"):
        exchangeability(w, "rows", permutations=0)
    with pytest.raises(ValueError, match=r"5 finite labels of the columns, got \[4\]"):
        labelled(w, "columns", torch.arange(4))
    with pytest.raises(ValueError, match="scale, shift or pair, got 'twist'"):
        plant(w, "twist", 0.1)


def test_power_grows_with_what_is_planted_and_is_the_level_without() -> None:
    w = exchangeable(64, 12, 10, generator(5))
    (row,) = power(w, (0.0,), ((8, 100),), generator(6))
    assert row["trials"] == 100 and abs(row["rejected"] / 100 - 0.05) < 0.08
    normal = torch.randn(64, 12, 10, generator=generator(5))
    rows = power(normal, (0.2, 0.8), ((64, 12),), generator(6))
    assert [(row["kind"], row["size"]) for row in rows[:2]] == [(SCALE, 0.2), (SCALE, 0.8)]
    assert all(row["rejected"] == 12 for row in rows if row["size"] == 0.8)
    mixed = planted_ensemble(normal, SCALE, 0.0, generator(7))
    assert not torch.equal(mixed, normal)
    assert torch.equal(mixed.flatten(1).sort(1).values, normal.flatten(1).sort(1).values)


# Permuting networks


SIZES = (5, 6, 4, 7, 5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.booleans())
def test_permuted_networks_compute_the_same(seed: int, bias: bool) -> None:
    net = StackedMLP.he_normal(SIZES, (seed, seed + 1, seed + 2), bias=bias, dtype=torch.float64)
    if bias:
        net.biases = [torch.randn(b.shape, generator=generator(seed)).double() for b in net.biases]
    orders = random_hidden_orders(net, generator(seed))
    x = torch.randn(9, 5, generator=generator(seed), dtype=torch.float64)
    moved = permute_hidden(net, orders)
    torch.testing.assert_close(moved(x), net(x), rtol=1e-12, atol=1e-12)
    hidden = net.layers(x)[1].gather(2, orders[1][:, None].expand(-1, 9, -1))
    torch.testing.assert_close(moved.layers(x)[1], hidden, rtol=1e-12, atol=1e-12)
    back = permute_hidden(moved, [order.argsort(1) for order in orders])
    assert all(torch.equal(a, b) for a, b in zip(back.parameters(), net.parameters(), strict=True))
    assert float(relative_distance(back, net).max()) == 0


def test_permuting_asks_for_permutations() -> None:
    net = StackedMLP.he_normal(SIZES, (0, 1))
    orders = random_hidden_orders(net, generator())
    with pytest.raises(ValueError, match=r"orders of shapes \[\[2, 6\], \[2, 4\], \[2, 7\]\], got"):
        permute_hidden(net, orders[:2])
    orders[1] = torch.zeros_like(orders[1])
    with pytest.raises(ValueError, match="each row to be a permutation"):
        permute_hidden(net, orders)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("form", ["keras", "torch"])
def test_a_step_on_whole_numbers_is_permuted_to_the_last_bit(name: str, form: str) -> None:
    """Sums of small whole numbers have no rounding, so their order does not matter, and (7) holds exactly."""
    g = generator(8)
    weights = [
        torch.randint(-3, 4, (2, out, inputs), generator=g).double()
        for inputs, out in zip((4, 6, 5, 6), (6, 5, 6, 4), strict=True)
    ]
    net, x = StackedMLP(weights), torch.randint(0, 3, (8, 4), generator=g).double()
    orders = random_hidden_orders(net, g)
    moved = permute_hidden(net, orders)
    start = [w.clone() for w in net.weights]
    for network in (net, moved):
        ((_, losses),) = trained(network, optimizer(name, form=form, lr=0.5), x, (1,), batch=0, seed=0)
        assert float(losses.min()) > 0
    assert not torch.equal(net.weights[1], start[1])
    for a, b in zip(permute_hidden(net, orders).weights, moved.weights, strict=True):
        assert torch.equal(a, b)


def test_symmetric_data_make_the_coordinates_exchangeable() -> None:
    """All one-hot inputs at once: permuting first columns and last rows together commutes with training, too."""
    order = torch.tensor([2, 0, 4, 1, 3])

    def gap(x: Tensor) -> float:
        net = StackedMLP.he_normal(SIZES, (0, 1), dtype=torch.float64)
        moved = StackedMLP([w.clone() for w in net.weights])
        moved.weights[0] = moved.weights[0][:, :, order].clone()
        moved.weights[-1] = moved.weights[-1][:, order].clone()
        for network in (net, moved):
            list(trained(network, optimizer("adam", lr=0.01), x, (50,), batch=0, seed=0))
        net.weights[0], net.weights[-1] = net.weights[0][:, :, order], net.weights[-1][:, order]
        return float(relative_distance(moved, net).max())

    assert gap(torch.eye(5)) < 1e-12
    assert gap(torch.eye(5) * torch.tensor([1.0, 1.0, 1.0, 1.0, 2.0])) > 1e-3
