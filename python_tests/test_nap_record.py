"""Recordings of activation patterns: right bits for every kind of model, the same bytes after a kill, and refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import zbkernels as zb
from zbkernels.models import ARCHITECTURES, Architecture, Conv, Residual, build
from zbkernels.nap import PatternReader, Recording, RecordingError, patterns, record
from zbkernels.nap.recording import _header_crc

FILES = ("recording.json", "signatures.bin", "labels.bin", "predictions.bin")


class Of(nn.Module):
    """A model whose forward pass is one function."""

    def __init__(self, function, **modules):
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def exact(model: nn.Module) -> nn.Module:
    """Weights in sixteenths: sums are then exact, whoever adds them in whatever order."""
    for parameter in model.parameters():
        parameter.data.mul_(16).round_().div_(16)
    return model


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def small(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        zb.nn.ConvReLUPool2d(1, 4, 3, padding=1),
        nn.Flatten(),
        zb.nn.LinearReLU(64, 9),
        nn.Linear(9, 3, bias=False),
    )


def loader(rows: int = 22, batch: int = 5, seed: int = 0) -> DataLoader:
    return DataLoader(
        TensorDataset(images(rows, 1, 8, 8, seed=seed), torch.arange(rows) % 3), batch_size=batch
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


# --- bits ------------------------------------------------------------------------------------------------------


RESIDUAL = Architecture(
    "residual", (Conv(4, pool=1), Conv(6), Residual(), Conv(8, 5), Residual(pool=4)), image=(3, 16, 16)
)


@pytest.mark.parametrize("units", ["relu", "output", "winner"])
@pytest.mark.parametrize(
    "row", [ARCHITECTURES["fcn-mnist"], ARCHITECTURES["cnn-fashion"], RESIDUAL], ids=lambda r: r.name
)
def test_plain_layers_give_the_bits_of_the_fused_ones(row, units):
    shape = (row.image[0], 16, 16)
    fused, plain = (exact(build(row, shape, 10, fused=f)).double() for f in (True, False))
    x = images(2, *shape)
    readers = [PatternReader(model, x, units=units) for model in (fused, plain)]
    (a, ya), (b, yb) = (reader.read(x) for reader in readers)
    assert torch.equal(a, b) and torch.equal(ya, yb)
    assert [(each.coding, each.shape, each.start) for each in readers[0].layers] == [
        (each.coding, each.shape, each.start) for each in readers[1].layers
    ]
    assert a.count_nonzero() > 0


@pytest.mark.parametrize("units", ["relu", "output", "winner"])
def test_a_fused_layer_gives_its_own_signature(units):
    model, x = small(), torch.randn(3, 1, 8, 8)
    reader = PatternReader(model, x, units=units)
    signatures, y = reader.read(x)
    first, bits = model[0].forward_nap(x, units=units)
    assert torch.equal(reader.layers[0].of(signatures), bits)
    _, second = model[2].forward_nap(first.flatten(1))
    assert torch.equal(reader.layers[1].of(signatures), second)
    torch.testing.assert_close(y, model(x))


windows = st.fixed_dictionaries(
    {
        "kernel": st.tuples(st.integers(1, 4), st.integers(1, 4)),
        "stride": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "pad": st.tuples(st.integers(0, 2), st.integers(0, 2)),
        "ceil_mode": st.booleans(),
        "seed": st.integers(0, 99),
    }
)


@settings(deadline=None, max_examples=40)
@given(windows)
def test_relu_and_max_pool_of_any_window_are_coded_as_the_fused_op(case):
    kernel, pad = (
        case["kernel"],
        tuple(min(p, k // 2) for p, k in zip(case["pad"], case["kernel"], strict=True)),
    )
    x = images(2, 3, 7, 9, seed=case["seed"])  # full of ties and of windows that are all off
    x[0, 0] = -1
    arguments = {"ceil_mode": case["ceil_mode"]}
    plain = nn.Sequential(nn.ReLU(), nn.MaxPool2d(kernel, case["stride"], pad, **arguments))
    one = torch.eye(3)[:, :, None, None]
    pool = {"pool_kernel": kernel, "pool_stride": case["stride"], "pool_padding": pad, **arguments}
    for units in ("winner", "output", "relu"):
        _, expected = zb.conv_relu_pool2d_nap(x, one, units=units, **pool)
        assert torch.equal(patterns(plain, x, units=units), expected)


def brute_winners(x, kernel, stride, pad, dilation, rectified):
    """Codes of a max pool by its definition, one window at a time: the first of equal values."""
    h, w = x.shape[2:]
    y = F.max_pool2d(x, kernel, stride, pad, dilation)
    codes = torch.zeros(y.shape, dtype=torch.int64)
    for place in np.ndindex(*y.shape):
        for k in range(kernel[0] * kernel[1]):
            row = place[2] * stride[0] - pad[0] + k // kernel[1] * dilation[0]
            column = place[3] * stride[1] - pad[1] + k % kernel[1] * dilation[1]
            if 0 <= row < h and 0 <= column < w and x[place[0], place[1], row, column] == y[place]:
                codes[place] = 0 if rectified and y[place] <= 0 else 1 + k
                break
    return codes


@settings(deadline=None, max_examples=20)
@given(windows, st.tuples(st.integers(1, 2), st.integers(1, 2)))
def test_a_max_pool_alone_has_a_winner_in_every_window(case, dilation):
    kernel = case["kernel"]
    pad = tuple(min(p, k // 2) for p, k in zip(case["pad"], kernel, strict=True))
    x = images(2, 2, 8, 9, seed=case["seed"])
    model = nn.MaxPool2d(kernel, case["stride"], pad, dilation)
    reader = PatternReader(model, x, units="winner")
    signatures, y = reader.read(x)
    assert torch.equal(y, model(x))
    expected = brute_winners(x, kernel, case["stride"], pad, dilation, rectified=False)
    assert torch.equal(reader.layers[0].decode(signatures), expected) and expected.min() >= 1


def test_ties_zeros_and_nan_of_a_max_pool():
    nan = float("nan")
    x = torch.tensor([[0.0, 0, -1, -2], [0, 0, -1, -1], [nan, 1, 2, 2], [3, 1, 1, 2]]).view(1, 1, 4, 4)
    alone = PatternReader(nn.MaxPool2d(2), x, units="winner")
    assert alone.layers[0].decode(alone.read(x)[0]).tolist() == [[[[1, 1], [0, 1]]]]
    rectified = PatternReader(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), x, units="winner")
    assert rectified.layers[0].decode(rectified.read(x)[0]).tolist() == [[[[0, 0], [0, 1]]]]


@pytest.mark.parametrize("size", [(3, 4), (1, 1), (7, 9), (2, None)])
def test_adaptive_pools(size):
    x = torch.randn(2, 3, 7, 9)
    model = nn.AdaptiveMaxPool2d(size)
    reader = PatternReader(model, x, units="winner")
    codes = reader.layers[0].decode(reader.read(x)[0])  # [2, 3, P, Q]
    y = model(x)
    rows, columns = y.shape[2:]
    width = max(-(-(q + 1) * 9 // columns) - q * 9 // columns for q in range(columns))
    for n, c, p, q in np.ndindex(*y.shape):
        i, j = divmod(int(codes[n, c, p, q]) - 1, width)
        assert x[n, c, p * 7 // rows + i, q * 9 // columns + j] == y[n, c, p, q]


def test_a_relu_that_goes_elsewhere_too_keeps_its_bits():
    model = Of(lambda m, x: F.max_pool2d(m.relu(x), 2).sum(dim=1) + m.relu(x).mean(), relu=nn.ReLU())
    both = Of(lambda m, x: (lambda a: F.max_pool2d(a, 2).sum(1) + a.mean())(m.relu(x)), relu=nn.ReLU())
    x = torch.randn(2, 3, 4, 4)
    assert [(each.name, each.coding) for each in PatternReader(model, x, units="winner").layers] == [
        ("forward", "winner"), ("relu#2", "relu"),
    ]  # fmt: skip
    assert [(each.name, each.coding) for each in PatternReader(both, x, units="winner").layers] == [
        ("relu", "relu"), ("forward", "winner"),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_the_model_decides_the_dtype(dtype):
    model = small().to(dtype)
    x = torch.randn(3, 1, 8, 8)
    signatures = patterns(model, x)
    _, bits = model[0].forward_nap(x.to(dtype))
    assert torch.equal(signatures[:, : bits.shape[1]], bits)
    _, bits = zb.nn.ConvReLUPool2d(1, 4, 3).to(dtype).forward_nap(x.to(dtype))


def test_spellings_in_place_leaky_twice_and_without_batch_dimensions():
    lin = nn.Linear(5, 5, bias=False)

    def forward(m, x):
        x = m.act(m.lin(x))
        x = m.act(m.lin(x))
        return F.leaky_relu(m.lin(x), 0.1)[:, 0].relu()  # the last has one unit an example

    x = torch.randn(7, 5)
    model = Of(forward, lin=lin, act=nn.ReLU(inplace=True))
    reader = PatternReader(model, x)
    with torch.no_grad():
        a = lin(x)
        b = lin(a.relu())
        c = lin(b.relu())
    assert [each.name for each in reader.layers] == ["act", "act#2", "forward", "forward#2"]
    expected = torch.cat([zb.nap_pack(t) for t in (a, b, c, F.leaky_relu(c, 0.1)[:, :1])], 1)
    assert torch.equal(reader.read(x)[0], expected)


def test_integer_inputs_stay_integers():
    table = nn.Embedding(9, 70).double()
    tokens = torch.tensor([1, 8, 3])
    model = nn.Sequential(table, nn.ReLU())
    assert torch.equal(patterns(model, tokens), zb.nap_pack(table(tokens).detach()))


def test_linear_layers_over_positions_are_packed_by_example():
    model = zb.nn.LinearReLU(6, 10)
    x = torch.randn(4, 3, 6)
    reader = PatternReader(model, x)
    assert reader.layers[0].shape == (3, 10) and reader.words == 1
    assert torch.equal(reader.layers[0].decode(reader.read(x)[0]), model(x) > 0)


def test_a_model_that_asks_for_signatures_itself():
    layer, head = zb.nn.ConvReLUPool2d(1, 4, 3), zb.nn.LinearReLU(36, 5)

    def forward(m, x):
        y, sig = m.layer.forward_nap(x, units="output")
        z, _ = m.head.forward_nap(y.flatten(1))
        return z.sum() + sig.sum()

    x = torch.randn(3, 1, 8, 8)
    model = Of(forward, layer=layer, head=head)
    y, bits = layer.forward_nap(x, units="winner")
    signatures, out = PatternReader(model, x, units="winner").read(x)
    assert torch.equal(signatures, torch.cat([bits, head.forward_nap(y.flatten(1))[1]], 1))
    assert torch.equal(out, model(x))


def test_choice_of_layers():
    model, x = build(ARCHITECTURES["cnn-fashion"], (1, 8, 8), 10), images(3, 1, 8, 8)
    every = PatternReader(model, x)
    assert [each.name for each in every.layers] == ["conv1", "conv2", "fc3"]
    chosen = PatternReader(model, x, layers=["fc3", "*1"])
    assert [(each.name, each.start) for each in chosen.layers] == [
        ("conv1", 0),
        ("fc3", every.layers[0].words),
    ]
    signatures = every.read(x)[0]
    expected = torch.cat([every.layers[i].of(signatures) for i in (0, 2)], 1)
    assert torch.equal(chosen.read(x)[0], expected)
    for layers, reason in (
        (["conv9"], "PatternReader: no layer 'conv9'; there are conv1, conv2, fc3"),
        ("conv1", "list of names"),
    ):
        with pytest.raises(RecordingError, match=reason):
            PatternReader(model, x, layers=layers)


class Functional(nn.Module):
    """As public scripts are written: ReLUs and pools are functions, and have no name of their own."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 2)
        self.fc1, self.fc2, self.both = nn.Linear(4, 7), nn.Linear(7, 5), nn.Linear(5, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu_(self.fc1(x.flatten(1)))
        y = self.both(F.leaky_relu(self.fc2(x), 0.1))
        return F.relu(y) + F.relu(y)


@pytest.mark.parametrize(
    ("units", "names"),
    [
        ("relu", {"conv1": "forward", "conv2": "forward#4", "fc1": "forward#5", "fc2": "forward#6"}),
        ("winner", {"conv1": "forward#2", "fc1": "forward#5", "fc2": "forward#6"}),
    ],
)
def test_functional_units_go_by_the_module_they_follow(units, names, tmp_path):
    model, x = Functional(), images(3, 1, 8, 8)
    every = patterns(model, x, units=units)
    recording = record(model, [x], units=units, out=tmp_path / "rec", progress=False)
    for alias, name in names.items():
        reader = PatternReader(model, x, units=units, layers=[alias])
        assert [layer.name for layer in reader.layers] == [name]
        (layer,) = (layer for layer in recording.layers if layer.name == name)
        assert torch.equal(reader.read(x)[0], layer.of(every))
        assert recording.choose([alias]) == (layer,) and torch.equal(recording.layer(alias), layer.of(every))
    chosen = record(model, [x], units=units, layers=["fc?"], out=tmp_path / "fc", progress=False)
    assert [layer.name for layer in chosen.layers] == ["forward#5", "forward#6"]
    assert len(record(model, [x], units=units, layers=["fc?"], out=tmp_path / "fc", progress=False)) == 3
    with pytest.raises(
        RecordingError, match="patterns: no layer 'both', and its output goes to several: forw"
    ):
        patterns(model, x, units=units, layers=["both"])
    with pytest.raises(
        RecordingError, match=r"PatternReader: no layer 'fc3'; there are .*forward#5 \(of fc1\)"
    ):
        PatternReader(model, x, units=units, layers=["fc3"])


def test_recordings_from_before_other_names_were_kept_go_on(tmp_path):
    model, x = Functional(), images(4, 1, 8, 8)
    record(model, [x], out=tmp_path, progress=False)
    header = json.loads((tmp_path / "recording.json").read_text())
    del header["made"]["aliases"]
    header["crc32"] = _header_crc(header["made"], header["done"])
    (tmp_path / "recording.json").write_text(json.dumps(header))
    assert len(record(model, [x], out=tmp_path, progress=False)) == 4
    with pytest.raises(RecordingError, match="no layer 'fc1'; there are forward, forward#4"):
        Recording.load(tmp_path).choose(["fc1"])


def test_bytes_are_refused_by_name():
    for ask, who in (
        (lambda: record(small(), [images(3, 1, 8, 8).to(torch.uint8)], progress=False), "record"),
        (lambda: patterns(Functional(), images(3, 1, 8, 8).to(torch.uint8)), "patterns"),
    ):
        with pytest.raises(
            RecordingError, match=rf"^{who}: expected .*float32.*, got torch.uint8 \['N', 1, 8, 8\]"
        ):
            ask()


def test_layers_decode_to_their_units():
    model, x = small(), torch.randn(3, 1, 8, 8)
    with torch.no_grad():
        pre = F.conv2d(x, model[0].weight, padding=1)
    reader = PatternReader(model, x)
    assert torch.equal(reader.layers[0].decode(reader.read(x)[0]), pre > 0)


# --- models that are refused --------------------------------------------------------------------------------------


def test_refused_models():
    x = torch.randn(4, 1, 8, 8)
    flat = torch.randn(4, 6)
    leaky = zb.nn.ConvReLUPool2d(1, 2, 3, negative_slope=0.1)
    cases = (
        (nn.Linear(6, 2), flat, {}, "met no ReLU"),
        (Of(lambda m, x: F.dropout(x).relu()), flat, {}, "dropout in training even in evaluation mode"),
        (
            Of(lambda m, x: F.batch_norm(x, None, None, training=True).relu()),
            x,
            {},
            "batch_norm in training",
        ),
        (
            Of(lambda m, x: x.t().relu().t()),
            flat,
            {},
            r"forward \(relu\): expected the batch in the first dimension",
        ),
        (leaky, x, {"units": "winner"}, "needs negative_slope=0, got 0.1"),
        (nn.ReLU(), flat, {"units": "sign"}, "one of relu, output, winner, got 'sign'"),
    )
    for model, inputs, options, reason in cases:
        with pytest.raises(RecordingError, match=reason):
            patterns(model, inputs, **options)
    plain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.LeakyReLU(0.1), nn.MaxPool2d(2))
    assert [each.coding for each in PatternReader(plain, x, units="winner").layers] == ["relu", "winner"]
    with pytest.raises(TypeError, match="expected x to be a tensor"):
        patterns(nn.ReLU(), [1.0])
    with pytest.raises(RecordingError, match=r"N of at least 1, got \[0, 3\]"):
        patterns(nn.ReLU(), torch.empty(0, 3))


class Skipping(nn.Module):
    """Leaves a part out for inputs that are negative on average."""

    def __init__(self, shared: bool = False):
        super().__init__()
        self.first = nn.ReLU()
        self.inner = self.first if shared else nn.ReLU()
        self.last = nn.ReLU()

    def forward(self, x):
        if x.sum() > 0:
            x = self.inner(x)
        return self.last(self.first(x - 0.1) - 0.1)


def test_a_skipped_module_is_refused_unless_it_is_left_out():
    on, off = torch.ones(2, 3), -torch.ones(2, 3)
    reader = PatternReader(Skipping(), on)
    assert [each.name for each in reader.layers] == ["inner", "first", "last"]
    with pytest.raises(
        RecordingError, match=r"expected inner \(relu, \[3\]\), got first \(relu, \[3\]\).*layers="
    ):
        reader.read(off)
    reader = PatternReader(Skipping(), on, layers=["first", "last"])
    assert torch.equal(reader.read(off)[0], torch.zeros(2, 2, dtype=torch.int64))
    # Skipping the first of two calls of one module would make the second call its first.
    reader = PatternReader(Skipping(shared=True), on, layers=["first"])
    with pytest.raises(RecordingError, match="another path"):
        reader.read(off)


def test_a_relu_that_stops_going_to_its_pool_alone_is_refused():
    def forward(m, x):
        a = F.relu(x)
        y = F.max_pool2d(a, 2).sum()
        return y + a.sum() if x.sum() > 0 else y

    on, off = torch.ones(2, 1, 2, 2), -torch.ones(2, 1, 2, 2)
    with pytest.raises(RecordingError, match="forward went to its max pool alone"):
        PatternReader(Of(forward), off, units="winner").read(on)

    def changing(m, x):
        return F.max_pool2d(x if x.sum() > 0 else m.relu(x), 2)

    with pytest.raises(RecordingError, match="its input is a ReLU's output for some inputs"):
        PatternReader(Of(changing, relu=nn.ReLU()), on, units="winner", layers=["forward"]).read(off)


# --- recordings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", ["relu", "winner"])
def test_record_and_load(tmp_path, units):
    model, data = small().train(), loader()
    model[1].eval()
    x, labels = data.dataset.tensors
    recording = record(model, data, units=units, out=tmp_path / "a")
    assert recording.complete and len(recording) == 22 and recording.units == units
    assert torch.equal(recording.signatures, patterns(model, x, units=units))
    assert torch.equal(recording.labels, labels.int()) and recording.labels.dtype == torch.int32
    assert torch.equal(recording.predictions, model(x).argmax(1).int())
    assert model[0].training and not model[1].training  # each module's own mode
    again = Recording.load(tmp_path / "a", verify=True)
    assert torch.equal(again.signatures, recording.signatures) and again.layers == recording.layers
    assert torch.equal(again.layer("2"), again.layers[1].of(again.signatures))
    assert again.layer("2").shape == (22, 1) and "22 signatures" in repr(again)
    with pytest.raises(RecordingError, match="no layer 'x'; there are 0, 2"):
        again.layer("x")
    assert sorted(os.listdir(tmp_path / "a")) == sorted(FILES)


def test_without_a_folder_nothing_stays():
    recording = record(small(), loader())
    folder = recording.path
    assert folder.exists() and len(recording) == 22
    signatures = recording.signatures.clone()
    recording.signatures[0] = -1  # a private mapping
    assert torch.equal(Recording.load(folder, verify=True).signatures, signatures)
    del recording
    assert not folder.exists()


def test_forms_of_batches(tmp_path):
    model = small()
    x, y = loader().dataset.tensors
    expected = patterns(model, x)
    forms = {
        "inputs alone": [x[:20], x[20:]],
        "tuples of one": [(x[:20],), [x[20:]]],
        "labels as lists": [(x, y.tolist())],
        "labels as arrays": [(x, y.numpy())],
        "unknown length": ((part, None)[:1] for part in x.split(7)),
        "empty batches": [x[:0], x[:9], x[9:9], x[9:]],
    }
    for name, batches in forms.items():
        recording = record(model, batches, out=tmp_path / name)
        assert torch.equal(recording.signatures, expected), name
        assert (recording.labels is None) == ("labels" not in name)
        assert recording.labels is None or torch.equal(recording.labels, y.int())
    assert record(model, loader(), predictions=False).predictions is None
    assert record(nn.Sequential(model, nn.Linear(3, 1)), loader()).predictions is None


def test_forms_of_batches_that_are_refused():
    x, y = torch.randn(4, 6), torch.arange(4)
    cases = (
        (x, "expected loader to give batches, got Tensor"),
        (3, "expected loader to give batches, got int"),
        ([], "the loader gave no inputs"),
        ([x[:0]], "the loader gave no inputs"),
        ([{"image": x, "label": y}], r"batch 0: expected .*, got a dict of 'image', 'label'; give \(\(b"),
        ([(x, y, y)], r"got tuple \(tensor \[4, 6\], tensor \[4\], tensor \[4\]\)"),
        (["text"], r"got str \(str\)"),
        ([(x, y.float())], r"labels to be integers \[4\], got torch.float32 \[4\]"),
        ([(x, y[:3])], r"labels to be integers \[4\], got torch.int64 \[3\]"),
        ([(x, ["a", "b", "c", "d"])], r"labels to be integers \[4\], got list"),
        ([(x, y + 2**40)], "labels that fit 32 bits"),
        ([(x, y), (x,)], "batch 1 has no labels, unlike"),
        ([(x,), (x, y)], "batch 1 has labels, unlike"),
    )
    for batches, reason in cases:
        with pytest.raises(RecordingError, match=reason):
            record(nn.ReLU(), batches)


class Stop(Exception):
    pass


def cut(data, after):
    """The loader's batches, until something goes wrong."""

    class Cut:
        def __len__(self):
            return len(data)

        def __iter__(self):
            for index, batch in enumerate(data):
                if index == after:
                    raise Stop
                yield batch

    return Cut()


@pytest.mark.parametrize("after", [1, 3, 4])
def test_a_run_cut_off_goes_on_and_gives_the_same_bytes(tmp_path, after):
    whole, part = tmp_path / "whole", tmp_path / "part"
    record(small(), loader(), out=whole)
    with pytest.raises(Stop):
        record(small(), cut(loader(), after), out=part)
    partial = Recording.load(part, verify=True)
    assert not partial.complete and len(partial) == 5 * after
    with (part / "signatures.bin").open("ab") as file:
        file.write(b"what a kill left behind")
    seen = []
    model = small()
    model.register_forward_pre_hook(lambda m, args: seen.append(args[0].shape[0]))
    record(model, loader(), out=part)
    assert contents(part) == contents(whole)
    assert seen == [1] + [5] * (4 - after) + [2]  # one to find the units, then what was missing


def test_a_complete_recording_is_not_repeated(tmp_path):
    record(small(), loader(), out=tmp_path)
    times = {name: (tmp_path / name).stat().st_mtime_ns for name in FILES}
    recording = record(small(), loader(), out=tmp_path)
    assert recording.complete and times == {name: (tmp_path / name).stat().st_mtime_ns for name in FILES}


def test_overwriting_leaves_older_mappings_alone(tmp_path):
    old = record(small(), loader(), out=tmp_path)
    before = old.signatures.clone()
    new = record(small(1), loader(5), out=tmp_path, units="winner", predictions=False, overwrite=True)
    assert len(new) == 5 and torch.equal(old.signatures, before)
    assert not (tmp_path / "predictions.bin").exists()
    assert torch.equal(new.signatures, patterns(small(1), loader(5).dataset.tensors[0], units="winner"))


def retrained():
    model = small()
    model[2].weight.data[0, 0] += 1
    return model


def deeper():
    model = small()
    model.add_module("extra", nn.ReLU())
    return model


@pytest.mark.parametrize("complete", [False, True])
def test_what_has_changed_is_named(tmp_path, complete):
    def begin():
        if complete:
            record(small(), loader(), out=tmp_path, overwrite=True)
            return
        with pytest.raises(Stop):
            record(small(), cut(loader(), 3), out=tmp_path, overwrite=True)

    begin()
    before = contents(tmp_path)
    x, y = loader().dataset.tensors
    tail = x.clone()
    tail[12] = 9
    cases = {
        "another model: 2.weight has other values": {"model": retrained()},
        "another model: 0.weight was float32 .* and is float64": {"model": small().double()},
        "another model: its modules are others": {"model": deeper()},
        "another choice of units: relu then, winner now": {"units": "winner"},
        r"another choice of layers: None then, \['2'\] now": {"layers": ["2"]},
        "another choice of predictions: True then, False now": {"predictions": False},
        "another loader: batch was 5 then, is 6 now": {"loader": loader(batch=6)},
        "another loader: batches was 5 then, is 6 now": {"loader": loader(27)},
        "another loader: batches was 5 then, is None now": {"loader": (b for b in loader())},
        "another loader: labels was True then, is False now": {"loader": DataLoader(x, batch_size=5)},
        r"loader: the first batch has other values \(does it shuffle": {"loader": loader(seed=1)},
        "3 batches are other values|5 batches are other values": {
            "loader": DataLoader(TensorDataset(tail, y), 5)
        },
        "3 batches are other|5 batches are other": {
            "loader": DataLoader(TensorDataset(x, (y + (y == 2)) % 4), 5)
        },
    }
    for reason, change in cases.items():
        arguments = {"model": small(), "loader": loader(), "out": tmp_path} | change
        if "are other" in reason and "loader" in change:  # the first batch is as it was
            first = loader().dataset.tensors
            data = [t.clone() for t in change["loader"].dataset.tensors]
            data[0][:5], data[1][:5] = first[0][:5], first[1][:5]
            arguments["loader"] = DataLoader(TensorDataset(*data), 5)
        with pytest.raises(RecordingError, match=reason):
            record(**arguments)
        assert contents(tmp_path) == before, reason
    for backend, reason in (("reference", "backend was auto then, is reference now"),):
        with zb.use_backend(backend), pytest.raises(RecordingError, match=reason):
            record(small(), loader(), out=tmp_path)
    record(small(), loader(), out=tmp_path)


def test_a_loader_that_ends_early_or_late(tmp_path):
    data = list(loader())

    class Sized(list):
        def __len__(self):
            return 5

    with pytest.raises(Stop):
        record(small(), cut(loader(), 3), out=tmp_path)
    with pytest.raises(RecordingError, match="holds 3 batches, and the loader gives 2"):
        record(small(), Sized(data[:2]), out=tmp_path)
    record(small(), loader(), out=tmp_path)
    with pytest.raises(RecordingError, match="is complete with 22 rows, and the loader gives more"):
        record(small(), Sized([*data, *data]), out=tmp_path)


def test_two_writers_in_one_folder(tmp_path):
    def other(x):
        with pytest.raises(RecordingError, match="another process is recording there"):
            record(small(), loader(), out=tmp_path, overwrite=True)

    def batches():
        for index, batch in enumerate(loader()):
            if index == 2:
                other(batch)
            yield batch

    assert len(record(small(), batches(), out=tmp_path)) == 22


def test_broken_recordings_are_refused_by_name(tmp_path):
    folder = tmp_path / "r"
    with pytest.raises(RecordingError, match="no recording is there"):
        Recording.load(folder)
    record(small(), loader(), out=folder)
    whole = contents(folder)

    def broken(name, content, reason, verify=False):
        (folder / name).write_bytes(content)
        with pytest.raises(RecordingError, match=reason):
            Recording.load(folder, verify=verify)
        with pytest.raises(RecordingError, match=reason):
            record(small(), loader(), out=folder)
        (folder / name).write_bytes(whole[name])

    broken(
        "signatures.bin", whole["signatures.bin"][:-1], r"signatures.bin: is truncated to \d+ of \d+ bytes"
    )
    flipped = bytes([whole["labels.bin"][0] ^ 1]) + whole["labels.bin"][1:]
    broken("labels.bin", flipped, "labels.bin: expected CRC-32 .* the file has changed", verify=True)
    broken("recording.json", whole["recording.json"][:100], "cannot be read as a recording's header")
    header = json.loads(whole["recording.json"])
    broken(
        "recording.json", json.dumps(header | {"version": 2}).encode(), "of version 1, got .* of version 2"
    )
    broken("recording.json", json.dumps({"a": 1}).encode(), "cannot be read as a recording's header")
    header["done"]["rows"] += 1  # would map memory that no file has
    broken("recording.json", json.dumps(header).encode(), "its CRC-32 is another")
    header["crc32"] = _header_crc(header["made"], header["done"])
    broken("recording.json", json.dumps(header).encode(), "signatures.bin has 880 bytes for 23 rows")
    del header["made"]
    broken("recording.json", json.dumps(header).encode(), "cannot be read as a recording's header")
    (folder / "predictions.bin").unlink()
    with pytest.raises(RecordingError, match=r"predictions\.bin: is missing"):
        Recording.load(folder)
    with pytest.raises(RecordingError, match="expected a folder, got a file"):
        Recording.load(folder / "labels.bin")
    assert record(small(), loader(), out=folder, overwrite=True).complete and contents(folder) == whole


KILLED = """
import sys, time, torch
sys.path[:0] = {paths!r}
from test_nap_record import small, loader
import zbkernels.nap.recording as recording
recording._COMMIT_SECONDS = 0.0
torch.set_num_threads(1)
data = loader(600, 5)
class Slow:
    def __len__(self): return len(data)
    def __iter__(self):
        for batch in data:
            time.sleep(0.002)
            yield batch
print("ready", flush=True)
recording_of = __import__("zbkernels.nap", fromlist=["record"]).record
recording_of(small(), Slow(), out={out!r}, progress=False)
"""


def test_a_killed_process_goes_on_and_gives_the_same_bytes(tmp_path):
    whole, part = tmp_path / "whole", tmp_path / "part"
    record(small(), loader(600, 5), out=whole)
    here = Path(__file__).resolve().parent
    program = KILLED.format(paths=[str(here), str(here.parent)], out=str(part))
    rows, kills = 0, 0
    for wait in (0.1, 0.4):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        if (part / "recording.json").exists():
            partial = Recording.load(part, verify=True)
            assert len(partial) >= rows
            rows = len(partial)
    assert kills >= 1 and rows > 0
    record(small(), loader(600, 5), out=part)
    assert contents(part) == contents(whole)


def test_a_write_that_fails_leaves_the_last_state(tmp_path, monkeypatch):
    from zbkernels.nap import recording as module

    monkeypatch.setattr(module, "_COMMIT_SECONDS", 0.0)
    real = module.write_json
    calls = []

    def failing(path, value):
        calls.append(path)
        if len(calls) >= 4:
            raise OSError(28, "No space left on device")
        real(path, value)

    monkeypatch.setattr(module, "write_json", failing)
    with pytest.raises(OSError, match="No space left"):
        record(small(), loader(), out=tmp_path)
    assert len(Recording.load(tmp_path, verify=True)) == 10
    monkeypatch.setattr(module, "write_json", real)
    assert torch.equal(
        record(small(), loader(), out=tmp_path).signatures, record(small(), loader()).signatures
    )
