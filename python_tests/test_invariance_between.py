"""``check_scalar_invariance`` where powers of four, or the outputs, tell too little: scales of 2^n, NaN, overflow."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import zbkernels as zb
from zbkernels.invariance import InvarianceReport
from zbkernels.invariance.finite import not_finite

pytestmark = pytest.mark.usefixtures("one_thread")
X = torch.rand(6, 16, generator=torch.Generator().manual_seed(0))


class Middle(nn.Module):
    """Two linear layers with something between them."""

    def __init__(self, function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(16, 16, bias=False), nn.Linear(16, 5, bias=False)
        self.function = function

    def forward(self, x):
        return self.b(torch.relu(self.function(self.a(x))))


def quantised(t):
    step = 2.0 ** torch.floor(torch.log2(t.abs().max() / 8))
    return (t / step).round() * step


def check(model: nn.Module, scalars=(1.0, 0.15, 0.1, 2.0, 10.0), x=X) -> InvarianceReport:
    return zb.check_scalar_invariance(model, x, scalars)


# --- between powers of two ---------------------------------------------------------------------------------------

PEAK = float(Middle(quantised).a(X).detach().max())
BETWEEN = {
    "a scale of 2^n": (quantised, "log2"),
    "a mantissa": (lambda t: torch.frexp(t).mantissa, "powers of two"),
    "an exponent": (lambda t: torch.ldexp(t.sign(), torch.frexp(t).exponent), ""),
    "a clamp between": (lambda t: t.clamp(max=6 * PEAK), "clamp"),
}


@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize("last", [nn.Identity(), nn.Softmax(1)])
def test_what_only_holds_at_powers_of_four(name, last):
    function, kind = BETWEEN[name]
    report = check(nn.Sequential(Middle(function), last))
    assert not report.invariant and not report.homogeneous, str(report)
    assert report.first_break.path == "0" and kind in report.first_break.kind, str(report)
    if name != "a clamp between":  # which 16 = 4^2 shows already
        assert "at powers of four alone" in "".join(report.notes)


def test_scalars_that_are_all_powers_of_two():
    report = check(Middle(quantised), (0.5, 2.0, 4.0))
    assert not report.invariant and report.worst_deviation == 0 and "at scalar 0.7" in report.notes[0]


def test_half_precision_and_images_with_ties():
    images = (X * 16).round() / 16  # of few values, like the digits: half way between two steps
    for x in (images, images.half(), images.bfloat16()):
        model = Middle(quantised).to(x.dtype)
        assert not check(model, x=x).invariant
    first = nn.Sequential(nn.Identity(), Middle(lambda t: t))
    first[0].register_forward_hook(lambda m, args, y: quantised(y))
    assert not check(first, x=images).invariant


HONEST = {
    "cancellation": lambda t: (t + 1e6 * t) - 1e6 * t,
    "rounding alone": lambda t: (t / 3 + 2 * t / 3) - t,
    "ties": lambda t: t * ((t / 3 + 2 * t / 3) > t),
    "a sorted tie": lambda t: torch.cat([t / 3 + 2 * t / 3, t], 1).topk(16, 1).values,
}


@pytest.mark.parametrize("name", HONEST)
@pytest.mark.parametrize("last", [nn.Identity(), nn.Softmax(1)])
def test_rounding_is_no_break_however_much_is_made_of_it(name, last):
    report = check(nn.Sequential(Middle(HONEST[name]), last))
    assert report.invariant, str(report)
    if name in ("rounding alone", "ties") and isinstance(last, nn.Identity):
        assert report.worst_deviation > 0.1 and "rounding, of which" in report.notes[0]


def test_equal_inputs_that_are_told_apart():
    x = torch.ones(4, 16)  # all values tie
    assert check(Middle(lambda t: t * (t.argsort(1) > 3)), x=x).invariant
    assert check(nn.Sequential(Middle(lambda t: t), nn.Softmax(1)), x=x).invariant


# --- NaN, infinities, overflow -----------------------------------------------------------------------------------


def spoilt(name: str) -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))
    with torch.no_grad():
        if name == "one NaN":
            model[0].weight[0, 0] = torch.nan
        elif name == "all NaN":
            model[2].weight.fill_(torch.nan)
        elif name == "inf bias":
            model[0].bias[3] = torch.inf
        elif name == "argmax":
            model[2].weight.fill_(torch.nan)
            model.register_forward_hook(lambda m, args, y: y.argmax(1))
        elif name == "overflow":
            model.double()[2].weight.fill_(1e308)
    return model


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("one NaN", "first from addmm in '0' (Linear); NaN or infinities are in '0.weight'"),
        ("all NaN", "first from addmm in '2' (Linear); NaN or infinities are in '2.weight'"),
        ("inf bias", "first from addmm in '0' (Linear); NaN or infinities are in '0.bias'"),
        ("argmax", "first from addmm in '2' (Linear)"),
        ("overflow", "in float64, first from addmm in '2' (Linear): whether"),
    ],
)
def test_what_is_not_finite_is_refused(name, said):
    with pytest.raises(ValueError, match="cannot be told") as caught:
        check(spoilt(name))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_that_overflows_in_its_own_precision_says_so():
    model = nn.Sequential(nn.Linear(16, 5, bias=False)).half()
    nn.init.constant_(model[0].weight, 6e4)
    report = check(model, x=X.half() + 1)
    assert report.homogeneous and "in float16 its outputs are NaN or infinite" in str(report)


def test_masks_are_finite_enough():
    mask = torch.zeros(5)
    mask[2] = -torch.inf
    masked = Middle(lambda t: t)
    masked.register_forward_hook(lambda m, args, y: y.masked_fill(mask.isinf(), -torch.inf))
    assert check(masked).homogeneous
    causal = torch.full((16, 16), -torch.inf).triu(1)  # holds 0 and -inf
    scores = Middle(lambda t: (t[:, :, None] * torch.ones(16).to(t) + causal.to(t)).amax(2))
    assert check(scores).homogeneous
    assert not not_finite(torch.tensor([1.0, -torch.inf])) and not not_finite(torch.tensor([1, 2]))
    assert not not_finite(torch.tensor([100.0, -torch.inf]).half())
    for bad in ([1.0, torch.inf], [1.0, torch.nan], [-torch.inf], [1e38, -torch.inf]):
        assert not_finite(torch.tensor(bad))
