"""Every op, driven from its own samples(): values, gradients, the dispatcher's rules, bad input.

``--device cuda`` runs the same on a GPU.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compare import DTYPES, call, float64_reference, in_float64, outputs, value_fault, whole_numbers
from torch.library import opcheck

import zbkernels as zb
from zbkernels.ops import OPS, Op, Sample
from zbkernels.ops._op import COMPILED

PUBLIC = [op for op in OPS.values() if op.public is not None]
SIGNATURES = {"conv_relu_pool2d_nap", "linear_relu_nap"}
by_name = {"ids": lambda op: op.name}


def samples(op: Op, device: str, dtype: torch.dtype) -> list[Sample]:
    return list(op.samples(device, dtype))


def defined(op: Op, values: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """In a backward, what is left where the reference is finite.

    A zero gradient times an infinite input is NaN in a dense sum, and left out of a sum over the windows that have
    a gradient: csrc/conv_relu_pool/README.md says so.
    """
    if not op.name.endswith("_backward"):
        return values
    clean = values[1].isfinite() & values[2].isfinite()
    return tuple(v[clean] for v in values)


def slack(op: Op, sample: Sample, dtype: torch.dtype) -> float:
    """What an error may be beside the reference's own, relative to the largest value.

    In float64 the kernels of networks are compared with that reference, which then has no error of its own: each adds
    up its features or units in its own order, and an angle of 0 or 180 degrees between inputs is found to the root of
    eps.
    """
    if not op.name.startswith(("dual_", "layer_kernel")) or dtype != torch.float64:
        return 0.0
    eps = torch.finfo(dtype).eps
    return eps**0.5 if "antipodes" in sample.label else 16 * eps


def whole_slack(op: Op, dtype: torch.dtype) -> float:
    """As :func:`slack` on whole numbers, among which there are antipodes."""
    if op.name == "layer_kernel":
        return 16 * torch.finfo(dtype).eps
    return torch.finfo(dtype).eps ** 0.5 if op.name.startswith("dual_") else 0.0


def report(faults: list[str]) -> None:
    assert not faults, "\n".join(faults)


each_dtype = pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, dtype) for op in OPS.values() for dtype in op.dtypes],
    ids=lambda value: getattr(value, "name", str(value).removeprefix("torch.")),
)


# --- values -----------------------------------------------------------------------------------------------------


@each_dtype
def test_values_against_float64(op: Op, dtype: torch.dtype, device: str, highest_precision: None) -> None:
    faults = []
    for sample in samples(op, device, dtype):
        got, same, exact = (
            call(op.overload, sample),
            call(op.reference, sample),
            float64_reference(op, sample),
        )
        for number, values in enumerate(zip(got, same, exact, strict=True)):
            if values[0].is_floating_point():
                fault = value_fault(*(defined(op, values)), slack=slack(op, sample, dtype))
                if fault:
                    faults.append(f"{sample.label}, output {number}: {fault}")
            elif values[0].dtype != values[1].dtype or values[0].shape != values[1].shape:
                faults.append(f"{sample.label}, output {number}: {values[0].dtype} {list(values[0].shape)}")
    report(faults)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("op", PUBLIC, **by_name)
def test_default_precision_keeps_its_bound(op: Op, dtype: torch.dtype, device: str) -> None:
    """set_conv_precision("high"): an error of at most 1e-5 of the result's norm in float32."""
    if not trainable(op):
        pytest.skip("sums no floating numbers")
    for sample in samples(op, device, dtype):
        y, exact = call(op.public, sample)[0].double(), float64_reference(op, sample)[0]
        finite = y.isfinite() & exact.isfinite()
        assert (y - exact)[finite].norm() <= 1e-5 * exact[finite].norm(), sample.label
        assert torch.equal(y.isnan(), exact.isnan()) or dtype != torch.float64, sample.label


@each_dtype
def test_exact_on_whole_numbers(op: Op, dtype: torch.dtype, device: str, highest_precision: None) -> None:
    """Where no sum rounds, values, codes and bits are equal to the reference's, ties and all."""
    faults = []
    for sample in map(whole_numbers, samples(op, device, dtype)):
        if "overflow" in sample.label or "subnormal" in sample.label:
            continue
        rounds = (
            sample.kwargs.get("pool") == "avg"
            or sample.kwargs.get("negative_slope", 0) not in (0, 1, 0.5)
            or op.name.startswith(("dual_", "layer_kernel"))  # angles are no whole numbers
        )
        same, exact = call(op.reference, sample), float64_reference(op, sample)
        if (
            "NaN" in sample.label
        ):  # torch's bfloat16 convolution smears an inf; cast down, float64's result is right
            same = tuple(e.to(s.dtype) for s, e in zip(same, exact, strict=True))
        for number, values in enumerate(zip(call(op.overload, sample), same, exact, strict=True)):
            got, want, in_full = defined(op, values) if values[0].is_floating_point() else values
            if rounds and got.is_floating_point():
                fault = value_fault(got, want, in_full, slack=whole_slack(op, dtype))
            elif got.is_floating_point():
                fault = None if torch.equal(got.nan_to_num(0.5), want.nan_to_num(0.5)) else "differs"
            else:
                fault = None if torch.equal(got, want) else "differs"
            if fault:
                faults.append(f"{sample.label}, output {number}: {fault}")
    report(faults)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", [op for op in PUBLIC if op.name in SIGNATURES], **by_name)
def test_signature_is_of_the_values_returned(op: Op, dtype: torch.dtype, device: str) -> None:
    for sample in samples(op, device, dtype):
        y, sig = call(op.public, sample)
        if sample.kwargs.get("units", "output") == "output":
            rows = y if op.name == "linear_relu_nap" else (y[None] if y.dim() == 3 else y).flatten(1)
            if rows.dim() == 2 and rows.shape[0]:
                assert torch.equal(zb.nap_pack(rows), sig.view(rows.shape[0], -1)), sample.label


@pytest.mark.parametrize("op", OPS.values(), **by_name)
def test_same_result_each_time_and_for_any_thread_count(op: Op, device: str) -> None:
    dtype = op.dtypes[0]
    threads = torch.get_num_threads()
    try:
        for sample in samples(op, device, dtype):
            first = call(op.overload, sample)
            torch.set_num_threads(1)
            alone = call(op.overload, sample)
            torch.set_num_threads(threads)
            for a, b, c in zip(first, call(op.overload, sample), alone, strict=True):
                assert torch.equal(_bits(a), _bits(b)), sample.label
                # Products by the BLAS, and convolution gradients by torch, may be split by the number of threads.
                blas = op.name.startswith("linear") or sample.kwargs.get("activation") == "sigmoid"
                if not blas and not op.name.endswith("_backward"):
                    assert torch.equal(_bits(a), _bits(c)), sample.label
    finally:
        torch.set_num_threads(threads)


def _bits(t: torch.Tensor) -> torch.Tensor:
    return (
        t.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])
        if t.is_floating_point()
        else t
    )


@pytest.mark.parametrize("op", OPS.values(), **by_name)
def test_inputs_are_left_alone(op: Op, device: str) -> None:
    for sample in samples(op, device, op.dtypes[0]):
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in sample.args]
        call(op.overload, sample)
        for a, b in zip(sample.args, before, strict=True):
            if isinstance(a, torch.Tensor):
                assert (
                    torch.equal(a.nan_to_num(0.5), b.nan_to_num(0.5)) if a.is_floating_point() else a.equal(b)
                )


def test_channels_last_changes_neither_values_nor_bits(device: str, highest_precision: None) -> None:
    for dtype in DTYPES:
        for s in samples(OPS["conv_relu_pool2d_nap"], device, dtype):
            x, w = s.args
            if x.dim() != 4:
                continue
            y, sig = zb.conv_relu_pool2d_nap(x.contiguous(), w, **s.kwargs)
            other, bits = zb.conv_relu_pool2d_nap(
                x.contiguous(memory_format=torch.channels_last), w, **s.kwargs
            )
            assert torch.equal(y.nan_to_num(0.5), other.nan_to_num(0.5)), (s.label, dtype)
            assert torch.equal(sig, bits), (s.label, dtype)


# --- gradients --------------------------------------------------------------------------------------------------


def differentiable(op: Op, sample: Sample) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """The op as a function of its floating inputs alone, those given by name too, and those inputs."""
    given = {**dict(enumerate(sample.args)), **sample.kwargs}
    places = [i for i, a in given.items() if isinstance(a, torch.Tensor) and a.is_floating_point()]

    def function(*values: torch.Tensor) -> Any:
        changed = {**given, **dict(zip(places, values, strict=True))}
        args = [changed.pop(i) for i in range(len(sample.args))]
        found = outputs((op.public or op.overload)(*args, **changed))
        return tuple(t for t in found if t.is_floating_point() and t.requires_grad)

    return function, tuple(given[i].detach().clone().requires_grad_() for i in places)


def trainable(op: Op) -> bool:
    return not op.name.startswith("nap_")


@pytest.mark.parametrize("op", [op for op in OPS.values() if trainable(op)], **by_name)
def test_gradcheck_in_float64(op: Op, device: str, highest_precision: None) -> None:
    for sample in samples(op, device, torch.float64):
        if sample.smooth and all(a.numel() for a in sample.args if isinstance(a, torch.Tensor)):
            if op.name == "conv_relu_pool2d_nap" and "units='output'" not in sample.label:
                continue  # the gradient is of y, whatever the units
            function, inputs = differentiable(op, sample)
            quick = {"fast_mode": True, "check_undefined_grad": False}
            assert torch.autograd.gradcheck(function, inputs, **quick), sample.label
            assert torch.autograd.gradgradcheck(function, inputs, **quick), sample.label


@pytest.mark.parametrize("name", ["conv_relu_pool2d", "linear_relu"])
def test_full_gradcheck_of_a_small_call(name: str, device: str, highest_precision: None) -> None:
    op = OPS[name]
    sample = next(iter(op.samples(device, torch.float64)))
    function, inputs = differentiable(op, sample)
    assert torch.autograd.gradcheck(function, inputs, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["conv_relu_pool2d", "linear_relu"])
def test_gradients_against_torch(name: str, dtype: torch.dtype, device: str, highest_precision: None) -> None:
    """Against the three steps one at a time, in the same dtype and in float64, kinks included."""
    op = OPS[name]
    faults = []
    for sample in samples(op, device, dtype):
        x, w = sample.args[:2]
        r = None
        results = []
        for function, cast in ((op.public, False), (op.reference, False), (op.reference, True)):
            a, b = (t.detach().clone() for t in (x, w))
            if cast:
                a, b = a.double(), b.double()
            a.requires_grad_()
            b.requires_grad_()
            kwargs = {name: in_float64(v) if cast else v for name, v in sample.kwargs.items()}
            y = function(a, b, *sample.args[2:], **kwargs)
            if r is None:
                r = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(device, dtype)
            results.append(torch.autograd.grad(y, (a, b), r.to(y.dtype)))
        finite = bool(x.isfinite().all()) and "overflow" not in sample.label
        if dtype == torch.bfloat16 and (not finite or "subnormals" in sample.label):
            # Other windows win in torch's bfloat16 convolution: it smears an inf over its neighbours, and where
            # the processor has AVX512-BF16 it takes subnormal numbers for zero.
            continue
        for what, got, same, exact in zip(("x", "weight"), *results, strict=True):
            if (
                not finite
            ):  # a zero gradient times inf: dense torch makes NaN of it, a sparse sum leaves it out
                clean = same.isfinite()
                got, same, exact = got[clean], same[clean], exact[clean]
            if dtype in (torch.float16, torch.bfloat16):
                exact = same.double()  # rounded pre-activations pick other winners than exact ones do
            fault = value_fault(got, same, exact)
            if fault and dtype in (torch.float16, torch.bfloat16):
                close = torch.allclose(got.double(), exact, rtol=0.02, atol=0.02 * exact.abs().max().item())
                fault = None if close else fault
            if fault:
                faults.append(f"{sample.label}, grad of {what}: {fault}")
    report(faults)


def test_gradient_layouts(device: str) -> None:
    """Incoming gradients of any layout, expanded ones too (a backward must not read them as contiguous)."""
    g = torch.Generator().manual_seed(0)
    x1, x2 = (torch.randn(2, 3, 8, 8, generator=g).to(device) for _ in range(2))
    w = torch.randn(4, 3, 3, 3, generator=g).to(device)
    r = torch.randn(2, 8, 3, 3, generator=g).to(device)

    def losses(f: Any) -> list[torch.Tensor]:
        a, b = f(x1, w), f(x2, w)
        last = r[:, :4].contiguous(memory_format=torch.channels_last)
        return [
            (torch.cat([a, b], 1) * r).sum(),
            a.sum(),
            (a.permute(0, 2, 3, 1) * r[:, :4].permute(0, 2, 3, 1)).sum(),
            (a.contiguous(memory_format=torch.channels_last) * last).sum(),
            a[:, ::2].sum(),
        ]

    w.requires_grad_()
    x1.requires_grad_()
    ours = losses(zb.conv_relu_pool2d)
    torchs = losses(lambda x, w: F.max_pool2d(F.relu(F.conv2d(x, w)), 2))
    for a, b in zip(ours, torchs, strict=True):
        results = (torch.autograd.grad(loss, (x1, w), retain_graph=True) for loss in (a, b))
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    y = zb.conv_relu_pool2d(x1, w)
    one = torch.autograd.grad(y.sum(), (x1, w), retain_graph=True)
    dense = torch.autograd.grad(y, (x1, w), torch.ones_like(y))
    assert all(torch.equal(a, b) for a, b in zip(one, dense, strict=True))


@pytest.mark.parametrize("wanted", ["x", "weight"])
@pytest.mark.parametrize("name", ["conv_relu_pool2d", "linear_relu"])
def test_only_one_gradient_wanted(name: str, wanted: str, device: str) -> None:
    sample = next(iter(OPS[name].samples(device, torch.float64)))
    x, w = (t.clone() for t in sample.args[:2])
    both = torch.autograd.grad(OPS[name].public(x.requires_grad_(), w.requires_grad_()).pow(2).sum(), (x, w))
    x, w = x.detach().requires_grad_(wanted == "x"), w.detach().requires_grad_(wanted == "weight")
    OPS[name].public(x, w).pow(2).sum().backward()
    got, other = (x.grad, w.grad) if wanted == "x" else (w.grad, x.grad)
    torch.testing.assert_close(got, both[0 if wanted == "x" else 1])
    assert other is None


@pytest.mark.parametrize("pool", ["max", "avg", "none"])
def test_an_infinite_gradient_behind_a_dead_unit_is_zero(pool: str, device: str) -> None:
    for slope in (0.0, 0.5):
        for backend in ("auto", "reference"):
            x = torch.full((1, 1, 2, 2), -1.0, device=device, requires_grad=True)
            w = torch.ones(1, 1, 1, 1, device=device)
            with zb.use_backend(backend):
                y = zb.conv_relu_pool2d(x, w, pool=pool, negative_slope=slope)
            y.backward(torch.full_like(y, math.inf))
            seen = set(x.grad.flatten().tolist())
            assert seen == ({0.0} if slope == 0 else {0.0, math.inf} if pool == "max" else {math.inf}), (
                backend
            )


def test_a_signature_has_no_gradient_and_y_has(device: str) -> None:
    x = torch.randn(2, 3, 8, 8, device=device, requires_grad=True)
    w = torch.randn(4, 3, 3, 3, device=device, requires_grad=True)
    y, sig = zb.conv_relu_pool2d_nap(x, w)
    assert y.requires_grad and not sig.requires_grad
    plain = torch.autograd.grad(zb.conv_relu_pool2d(x, w).sum(), (x, w))
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(y.sum(), (x, w)), plain, strict=True))
    with torch.no_grad():
        assert torch.equal(sig, zb.conv_relu_pool2d_nap(x, w)[1])


def test_training_keeps_one_byte_a_pooled_output(device: str) -> None:
    x = torch.randn(4, 3, 16, 16, device=device)
    w = torch.randn(8, 3, 3, 3, device=device, requires_grad=True)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = zb.conv_relu_pool2d(x, w, padding=1)
    others = [t for t in kept if t.data_ptr() not in (x.data_ptr(), w.data_ptr())]
    assert sum(t.numel() * t.element_size() for t in others) == y.numel()


# --- the dispatcher's rules -------------------------------------------------------------------------------------

TORCH = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])
FULL_CHECK = (
    "plain",
    "channels_last",
    "unbatched",
    "no images",
    "sliced",
    "average",
    "no pool",
    "slope",
    "groups",
)


@pytest.mark.parametrize("op", OPS.values(), **by_name)
def test_opcheck(op: Op, device: str) -> None:
    for number, sample in enumerate(samples(op, device, op.dtypes[0])):
        args = [
            a.detach().clone(memory_format=torch.preserve_format).requires_grad_(trainable(op))
            if isinstance(a, torch.Tensor) and a.is_floating_point() and 0 not in a.stride()
            else a
            for a in sample.args
        ]
        tests = ["test_schema", "test_faketensor"]
        label = sample.label.removesuffix(", units='relu'").removesuffix(", units=''")
        if label in FULL_CHECK or number < 2:
            tests += ["test_autograd_registration"]
            # The gradient of torch's own convolution_backward can't be traced with symbolic sizes before 2.13.
            if op.name != "_conv_relu_pool2d_backward" or TORCH >= (2, 13):
                tests += ["test_aot_dispatch_dynamic"]
        with_nan = any(
            isinstance(a, torch.Tensor) and a.is_floating_point() and a.isnan().any() for a in args
        )
        if not with_nan:  # opcheck compares without equal_nan
            opcheck(op.overload, tuple(args), sample.kwargs, test_utils=tests)


@pytest.mark.parametrize("op", OPS.values(), **by_name)
def test_fake_promises_the_strides_that_come(op: Op, device: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    for sample in samples(op, device, op.dtypes[0]):
        with FakeTensorMode(shape_env=ShapeEnv()) as mode:
            args, kwargs = torch.utils._pytree.tree_map_only(
                torch.Tensor, lambda t: mode.from_tensor(t, static_shapes=True), (sample.args, sample.kwargs)
            )
            promised = outputs(op.overload(*args, **kwargs))
        for fake, real in zip(promised, call(op.overload, sample), strict=True):
            assert fake.dtype == real.dtype and fake.dim() == real.dim(), sample.label
            for promise, size in zip(fake.shape, real.shape, strict=True):
                # a symbol where the size depends on the data
                assert isinstance(promise, torch.SymInt) or promise == size, sample.label
            assert fake.stride() == real.stride(), sample.label


@pytest.mark.parametrize("op", OPS.values(), **by_name)
def test_vmap_equals_a_loop(op: Op, device: str) -> None:
    for sample in samples(op, device, op.dtypes[0]):
        tensors = [i for i, a in enumerate(sample.args) if isinstance(a, torch.Tensor)]
        for batched in ([tensors[0]], tensors):
            stacked = [torch.stack([a, a.flip(-1)]) if i in batched else a for i, a in enumerate(sample.args)]
            dims = tuple(0 if i in batched else None for i in range(len(stacked)))
            got = outputs(torch.func.vmap(lambda *a: op.overload(*a, **sample.kwargs), dims)(*stacked))  # noqa: B023
            for i in (0, 1):
                args = [a[i] if n in batched else a for n, a in enumerate(stacked)]
                for g, want in zip(got, outputs(op.overload(*args, **sample.kwargs)), strict=True):
                    assert torch.allclose(g[i].double(), want.double(), atol=1e-4, equal_nan=True), (
                        sample.label
                    )


@pytest.mark.parametrize("op", OPS.values(), **by_name)
def test_vmap_over_an_empty_batch(op: Op, device: str) -> None:
    sample = next(s for s in samples(op, device, op.dtypes[0]) if s.args[0].numel())
    tensors = [i for i, a in enumerate(sample.args) if isinstance(a, torch.Tensor)]
    want = call(op.overload, sample)
    for batched in ([tensors[0]], tensors):
        args = [torch.stack([a])[:0] if i in batched else a for i, a in enumerate(sample.args)]
        dims = tuple(0 if i in batched else None for i in range(len(args)))
        got = outputs(torch.func.vmap(lambda *a: op.overload(*a, **sample.kwargs), dims)(*args))
        assert [(g.shape, g.dtype) for g in got] == [((0, *w.shape), w.dtype) for w in want]


@pytest.mark.parametrize("direct", [False, True], ids=["zb", "torch.ops.zb"])
def test_torch_func_transforms(direct: bool, device: str, highest_precision: None) -> None:
    g = torch.Generator().manual_seed(0)
    w = torch.randn(4, 3, 3, 3, generator=g, dtype=torch.float64).to(device)
    x = torch.randn(5, 2, 3, 8, 8, generator=g, dtype=torch.float64).to(device)
    fused = torch.ops.zb.conv_relu_pool2d if direct else zb.conv_relu_pool2d

    def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.relu(F.conv2d(x, w)), 2)

    def loss(f: Any) -> Any:
        return lambda w, x: f(x, w).pow(2).sum()

    func = torch.func
    for transform in (
        lambda f: func.vmap(func.grad(loss(f)), (None, 0))(w, x),
        lambda f: func.grad(lambda w: func.vmap(lambda x: f(x, w))(x).pow(2).sum())(w),
        lambda f: func.jacrev(lambda w: f(x[0, :1], w))(w),
        lambda f: func.jacfwd(lambda w: f(x[0, :1, :, :4, :4], w))(w),
        lambda f: func.jvp(lambda w: f(x[0], w), (w,), (w + 1,))[1],
        lambda f: func.grad(lambda w: func.grad(loss(f))(w, x[0]).pow(2).sum())(w),
    ):
        torch.testing.assert_close(transform(fused), transform(plain))


def test_forward_mode_gives_no_silent_zero(device: str) -> None:
    import torch.autograd.forward_ad as forward

    x = torch.randn(2, 3, 8, 8, dtype=torch.float64, device=device)
    w = torch.randn(4, 3, 3, 3, dtype=torch.float64, device=device)
    with forward.dual_level():
        for f in (zb.conv_relu_pool2d, torch.ops.zb.conv_relu_pool2d):
            tangent = forward.unpack_dual(f(forward.make_dual(x, x), w)).tangent
            torch.testing.assert_close(tangent, zb.conv_relu_pool2d(x, w))  # homogeneous: f'(x) x = f(x)
        rows, weight = x.flatten(1), torch.randn(5, 192, dtype=torch.float64, device=device)
        tangent = forward.unpack_dual(zb.linear_relu(forward.make_dual(rows, rows), weight)).tangent
        torch.testing.assert_close(tangent, zb.linear_relu(rows, weight))


def test_vmap_outside_keeps_the_gradient_inside(device: str) -> None:
    w = torch.randn(4, 3, 3, 3, device=device, requires_grad=True)
    x = torch.randn(5, 2, 3, 8, 8, device=device)
    y = torch.func.vmap(lambda x: zb.conv_relu_pool2d(x, w))(x)
    assert y.grad_fn is not None
    got = torch.autograd.grad(y.sum(), w)[0]
    want = torch.autograd.grad(sum(zb.conv_relu_pool2d(one, w).sum() for one in x), w)[0]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype: torch.dtype, device: str) -> None:
    kind = torch.device(device).type
    x = torch.randn(2, 3, 8, 8, device=device, requires_grad=True)
    w = torch.randn(4, 3, 3, 3, device=device, requires_grad=True)
    weight = torch.randn(9, 36, device=device, requires_grad=True)
    with torch.autocast(kind, dtype):
        for conv, linear in (
            (zb.conv_relu_pool2d, zb.linear_relu),
            (torch.ops.zb.conv_relu_pool2d, torch.ops.zb.linear_relu),
        ):
            y = conv(x.to(dtype), w)
            z = linear(conv(x, w).flatten(1), weight)
            assert y.dtype == z.dtype == dtype
        assert zb.conv_relu_pool2d_nap(x, w)[0].dtype == dtype
        assert zb.conv_relu_pool2d(x.double(), w.double()).dtype == torch.float64
    z.float().sum().backward()
    assert x.grad.dtype == w.grad.dtype == weight.grad.dtype == torch.float32
    assert w.grad.abs().sum() > 0
    with torch.autocast(kind, dtype), zb.use_backend("reference"):
        assert zb.conv_relu_pool2d(x, w).dtype == dtype


LAYOUTS = {
    "contiguous": lambda: torch.randn(2, 3, 10, 8),
    "channels_last": lambda: torch.randn(2, 3, 10, 8).to(memory_format=torch.channels_last),
    "sliced": lambda: torch.randn(2, 3, 20, 8)[:, :, ::2],
    "transposed": lambda: torch.randn(2, 3, 8, 10).transpose(2, 3),
    "one image": lambda: torch.randn(1, 3, 10, 8).to(memory_format=torch.channels_last),
    "no images": lambda: torch.randn(0, 3, 10, 8),
}


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compile_without_graph_break(layout: str, train: bool, device: str) -> None:
    torch._dynamo.reset()
    x, w = LAYOUTS[layout]().to(device), torch.randn(4, 3, 3, 3, device=device, requires_grad=train)
    x.requires_grad_(train)

    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (zb.conv_relu_pool2d(x, w, padding=1) * 2).permute(0, 2, 3, 1)

    eager = block(x, w)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")(x, w)
    assert compiled.stride() == eager.stride()
    torch.testing.assert_close(compiled, eager)
    if train:
        for a, b in zip(
            torch.autograd.grad(compiled.sum(), (x, w)), torch.autograd.grad(eager.sum(), (x, w)), strict=True
        ):
            torch.testing.assert_close(a, b)


def test_inductor_compiles_a_training_step(device: str) -> None:
    torch._dynamo.reset()
    x = torch.randn(3, 1, 12, 12, device=device)
    w = torch.randn(4, 1, 3, 3, device=device, requires_grad=True)
    v = torch.randn(10, 100, device=device, requires_grad=True)

    def net(x: torch.Tensor) -> torch.Tensor:
        h, sig = zb.conv_relu_pool2d_nap(x * 2, w, units="output")
        return zb.linear_relu(h.flatten(1), v, 1.0).logsumexp(1).mean() + sig.sum() * 0

    compiled = torch.compile(net, fullgraph=True)
    want = torch.autograd.grad(net(x), (w, v))
    for got, expected in zip(torch.autograd.grad(compiled(x), (w, v)), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_export(device: str) -> None:
    layer = zb.nn.ConvReLUPool2d(3, 4, 3, padding=1).to(device)
    x = torch.randn(2, 3, 8, 8, device=device)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("N")},))
    assert any("zb.conv_relu_pool2d" in str(node.target) for node in program.graph.nodes)
    wide = torch.randn(5, 3, 8, 8, device=device)
    torch.testing.assert_close(program.module()(wide), layer(wide))


def test_aot_inductor_package(tmp_path: Path) -> None:
    """A packaged model gives what the model gives, at every batch size, gradients of no concern."""
    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = zb.nn.ConvReLUPool2d(3, 4, 3, padding=1)
            self.linear = zb.nn.LinearReLU(4 * 4 * 4, 70)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.linear(self.conv(x).flatten(1))
            return y, zb.nap_pack(y)

    net = Net().eval()
    with torch.no_grad():
        batch = torch.export.Dim("N", min=1, max=1000)
        program = torch.export.export(net, (torch.randn(2, 3, 8, 8),), dynamic_shapes=({0: batch},))
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "net.pt2"))
        loaded = torch._inductor.aoti_load_package(package)
        for n in (1, 5):
            x = torch.randn(n, 3, 8, 8)
            for got, want in zip(loaded(x), net(x), strict=True):
                assert torch.equal(got, want)


class PatternSearch(torch.nn.Module):
    """All that is done with signatures, in one graph; without ``k``, half of the database is looked for."""

    def __init__(self, k: int | None = None) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: torch.Tensor, db: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sig = zb.nap_pack(x)
        distances, rows = zb.nap_topk(sig, db, self.k or db.shape[0] // 2)
        often = zb.nap_frequency(db, x.shape[1])
        return distances + 1, rows, zb.nap_hamming(sig, db) * 2, often, zb.nap_hash(db) + 1, *zb.nap_group(db)


def pattern_search_inputs(N: int, M: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(N)
    return tuple(
        t.to(device) for t in (torch.randn(N, 70, generator=g), zb.nap_pack(torch.randn(M, 70, generator=g)))
    )


def test_signature_ops_compile_with_dynamic_shapes(device: str) -> None:
    torch._dynamo.reset()
    search = PatternSearch()
    compiled = torch.compile(search, fullgraph=True, backend="aot_eager", dynamic=True)
    for N, M in ((5, 9), (7, 12), (1, 6)):
        inputs = pattern_search_inputs(N, M, device)
        for got, want in zip(compiled(*inputs), search(*inputs), strict=True):
            assert torch.equal(got, want)


def test_signature_ops_export(device: str) -> None:
    sizes = ({0: torch.export.Dim("N")}, {0: torch.export.Dim("M", min=3)})
    search = PatternSearch(3)
    program = torch.export.export(search, pattern_search_inputs(5, 9, device), dynamic_shapes=sizes)
    called = {str(node.target) for node in program.graph.nodes}
    for name in ("nap_pack", "nap_topk", "nap_hamming", "nap_frequency", "nap_hash", "nap_group"):
        assert any(f"zb.{name}" in target for target in called), called
    inputs = pattern_search_inputs(3, 20, device)
    for got, want in zip(program.module()(*inputs), search(*inputs), strict=True):
        assert torch.equal(got, want)


def test_meta_tensors() -> None:
    y, sig = zb.conv_relu_pool2d_nap(
        torch.empty(2, 3, 8, 8, device="meta"), torch.empty(4, 3, 3, 3, device="meta")
    )
    assert y.shape == (2, 4, 3, 3) and sig.shape == (2, math.ceil(4 * 36 / 64))
    distances, rows = zb.nap_topk(sig, sig.expand(7, 2, 3)[:, 0], 4)
    assert (
        distances.shape == rows.shape == (2, 4)
        and distances.dtype == torch.int32
        and rows.dtype == torch.int64
    )
    assert zb.nap_hamming(sig, rows[:1, :3]).shape == (2, 1)
    assert zb.nap_frequency(sig, 144).shape == (144,)


@pytest.mark.parametrize("name", ["nap_hamming", "nap_topk", "nap_frequency", "nap_hash"])
def test_the_reference_is_the_same_by_small_pieces(
    name: str, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    whole = [call(OPS[name].reference, sample) for sample in samples(OPS[name], device, torch.int64)]
    for module, constant, value in (
        ("nap_hamming", "_ROWS", 2),
        ("nap_hamming", "_tile", lambda device: 6),
        ("nap_topk", "_KEYS", {"cpu": 8, "cuda": 8}),
        ("nap_frequency", "_PIECE", 1),
        ("nap_frequency", "_WORDS", 2),
        ("nap_hash", "_PIECE", 5),
    ):
        monkeypatch.setattr(importlib.import_module(f"zbkernels.ops.{module}"), constant, value)
    for sample, wanted in zip(samples(OPS[name], device, torch.int64), whole, strict=True):
        for got, want in zip(call(OPS[name].reference, sample), wanted, strict=True):
            assert torch.equal(got, want), sample.label


def test_no_table_of_all_distances(device: str) -> None:
    """What nap_topk and nap_frequency allocate stays far below the table of distances, or the unpacked bits."""
    sig = torch.arange(2**16, device=device)[:, None]

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for t in torch.utils._pytree.tree_leaves(result):
                if isinstance(t, torch.Tensor):
                    self.size = max(self.size, t.untyped_storage().nbytes())
            return result

    for name, args in (("nap_topk", (sig[:64], sig, 5)), ("nap_frequency", (sig, 64))):
        with Largest() as mode:
            OPS[name].reference(*args)  # the mode sees its torch ops; of the public op only the op
        assert 0 < mode.size < 64 * 2**16  # less than a byte a distance, or a unit


# --- backends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", PUBLIC, **by_name)
def test_reference_backend_and_explain(op: Op, device: str) -> None:
    sample = next(iter(op.samples(device, op.dtypes[0])))
    auto = zb.explain(op.name, *sample.args, **sample.kwargs)
    assert list(auto.verdicts) == ["cpu", "cuda", "triton", "reference"]
    assert list(auto.verdicts.values()).count("chosen") == 1
    op.public(*sample.args, **sample.kwargs)
    assert zb.last_kernel().split(":")[0] == auto.chosen
    with zb.use_backend("reference"):
        assert zb.explain(op.public, *sample.args, **sample.kwargs).chosen == "reference"
        forced = outputs(op.public(*sample.args, **sample.kwargs))
        assert zb.last_kernel() == "reference"
    for a, b in zip(forced, call(op.reference, sample), strict=True):
        assert torch.equal(a, b)
    assert zb.explain(op.name, *sample.args, **sample.kwargs).verdicts == auto.verdicts


@pytest.mark.parametrize("op", PUBLIC, **by_name)
def test_explain_checks_what_the_op_checks(op: Op, device: str) -> None:
    """Bad arguments, missing and unknown ones raise as the call does, by the op's name; all can be given by name."""
    sample = next(iter(op.samples(device, op.dtypes[0])))
    wrong = (sample.args[0].to(torch.int16), *sample.args[1:])
    for call_it in (op.public, lambda *args: zb.explain(op.name, *args)):
        with pytest.raises(TypeError, match=f"{op.name}: expected .* of dtype"):
            call_it(*wrong)
    with pytest.raises(TypeError, match=f"explain: {op.name}: missing a required argument"):
        zb.explain(op.name)
    with pytest.raises(TypeError, match=f"explain: {op.name}: got an unexpected keyword argument 'offset'"):
        zb.explain(op.name, *sample.args, offset=None, **sample.kwargs)
    by_keyword = dict(zip(inspect.signature(op.public).parameters, sample.args, strict=False))
    want = zb.explain(op.name, *sample.args, **sample.kwargs)
    assert zb.explain(op.name, **by_keyword, **sample.kwargs) == want


def test_tensors_that_torch_only_marks_as_negative(device: str) -> None:
    for op in PUBLIC:
        sample = next(iter(op.samples(device, op.dtypes[0])))
        tensors = [a for a in sample.args if isinstance(a, torch.Tensor)]
        rest = sample.args[len(tensors) :]
        marked, negative = [torch._neg_view(t) for t in tensors], [-t for t in tensors]
        assert all(t.is_neg() for t in marked)
        got = outputs(op.public(*marked, *rest, **sample.kwargs))
        for a, b in zip(got, outputs(op.public(*negative, *rest, **sample.kwargs)), strict=True):
            assert torch.equal(a, b), op.name


def test_reference_backend_trains(device: str) -> None:
    x, w = torch.randn(2, 3, 8, 8, device=device), torch.randn(4, 3, 3, 3, device=device, requires_grad=True)
    auto = torch.autograd.grad(zb.conv_relu_pool2d(x, w).sum(), w)[0]
    with zb.use_backend("reference"):
        forced = torch.autograd.grad(zb.conv_relu_pool2d(x, w).sum(), w)[0]
    torch.testing.assert_close(forced, auto, rtol=1e-4, atol=1e-4)


def test_forced_backend_that_cannot_run_says_why() -> None:
    x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    with (
        zb.use_backend("cuda"),
        pytest.raises(RuntimeError, match="conv_relu_pool2d: backend 'cuda' can't run"),
    ):
        zb.conv_relu_pool2d(x, w)
    with pytest.raises(ValueError, match="use_backend: expected one of auto, reference, cpu"):
        zb.use_backend("tpu")
    with pytest.raises(ValueError, match=r"explain: expected one of .*nap_pack"):
        zb.explain("conv2d", x, w)


def test_use_backend_as_a_switch_and_nested() -> None:
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    zb.use_backend("reference")
    with zb.use_backend("auto"):
        assert zb.explain("linear_relu", x, w).chosen != ""
    assert zb.explain("linear_relu", x, w).chosen == "reference"
    zb.use_backend("auto")


def test_conv_precision_switch() -> None:
    assert zb.get_conv_precision() == "high"
    with pytest.raises(ValueError, match="set_conv_precision: expected 'high' or 'highest', got 'medium'"):
        zb.set_conv_precision("medium")


# --- bad input --------------------------------------------------------------------------------------------------

X, W = torch.zeros(2, 4, 8, 8), torch.zeros(6, 4, 3, 3)
ROWS, V = torch.zeros(5, 7), torch.zeros(9, 7)
SIG, DB = torch.zeros(3, 2, dtype=torch.int64), torch.ones(5, 2, dtype=torch.int64)
C = "conv_relu_pool2d"
BAD: list[tuple[str, tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    (
        C,
        (X, W[0]),
        {},
        ValueError,
        r"conv_relu_pool2d: expected weight of shape \[K, C/groups, R, S\], got \[4, 3, 3\]",
    ),
    (C, (X[0, 0], W), {}, ValueError, r"expected x of shape \[N, C, H, W\] or \[C, H, W\], got \[8, 8\]"),
    (C, (X, W[:, :3]), {}, ValueError, r"with C = 4 of x .* got \[6, 3, 3, 3\]"),
    (C, (X, W), {"groups": 4}, ValueError, "K divisible by groups = 4"),
    (C, (X, W), {"groups": 0}, ValueError, "expected groups to be a positive int, got 0"),
    (
        C,
        (X, W.double()),
        {},
        TypeError,
        "expected x and weight of one dtype, got torch.float32 and torch.float64",
    ),
    (C, (X.int(), W), {}, TypeError, "expected x of dtype float32, .* got torch.int32"),
    (C, (X.to("meta"), W), {}, ValueError, "expected x and weight on one device, got meta and cpu"),
    (C, (X.numpy(), W), {}, TypeError, "expected x to be a tensor, got ndarray"),
    (C, (X.to_sparse(), W), {}, TypeError, "expected x to be a dense"),
    (C, (X, W), {"stride": 0}, ValueError, "expected stride of at least 1, got 0"),
    (
        C,
        (X, W),
        {"stride": (1, 2, 3)},
        ValueError,
        r"expected stride to be an int or two ints, got \(1, 2, 3\)",
    ),
    (C, (X, W), {"stride": 1.5}, ValueError, "expected stride to be an int or two ints, got 1.5"),
    (C, (X, W), {"padding": -1}, ValueError, "expected padding of at least 0, got -1"),
    (C, (X, W), {"padding": "full"}, ValueError, "'same' or 'valid', got 'full'"),
    (C, (X, W), {"padding": "same", "stride": 2}, ValueError, "padding='same' needs stride 1, got 2"),
    (C, (X, W), {"dilation": 0}, ValueError, "expected dilation of at least 1, got 0"),
    (C, (X, W), {"dilation": 2**31 - 1}, ValueError, "expected a padded input that holds the kernel"),
    (C, (X[..., :2], W), {}, ValueError, "expected a padded input that holds the kernel"),
    (C, (X[:, :, :0], W), {}, ValueError, "only the batch may be empty"),
    (C, (X, W), {"pool": "min"}, ValueError, "expected pool to be one of max, avg, none, got 'min'"),
    (C, (X, W), {"pool_kernel": 0}, ValueError, "expected pool_kernel of at least 1, got 0"),
    (C, (X, W), {"pool_stride": 0}, ValueError, "expected pool_stride of at least 1, got 0"),
    (C, (X, W), {"pool_padding": 2}, ValueError, "expected pool_padding of at most half of pool_kernel"),
    (C, (X, W), {"pool_kernel": 7}, ValueError, "expected a map of at least the pool's size"),
    (C, (X, W), {"negative_slope": -0.1}, ValueError, "expected 0 <= negative_slope <= 1, got -0.1"),
    (C, (X, W), {"negative_slope": float("nan")}, ValueError, "expected 0 <= negative_slope <= 1, got nan"),
    (
        C + "_nap",
        (X, W),
        {"units": "all"},
        ValueError,
        "expected units to be one of relu, output, winner, got 'all'",
    ),
    (C + "_nap", (X, W), {"units": "winner", "pool": "avg"}, ValueError, "units='winner' needs pool='max'"),
    (C + "_nap", (X, W), {"units": "winner", "negative_slope": 0.1}, ValueError, "needs .* negative_slope=0"),
    (
        "linear_relu",
        (ROWS, V[:, :6]),
        {},
        ValueError,
        r"linear_relu: expected x of shape \[\.\.\., in\] with in = 6",
    ),
    ("linear_relu", (ROWS, V[0]), {}, ValueError, r"expected weight of shape \[out, in\], got \[7\]"),
    ("linear_relu", (ROWS, V.half()), {}, TypeError, "of one dtype, got torch.float32 and torch.float16"),
    ("linear_relu", (ROWS, V, 2.0), {}, ValueError, "expected 0 <= negative_slope <= 1, got 2.0"),
    (
        "linear_relu_nap",
        (ROWS.long(), V.long()),
        {},
        TypeError,
        "linear_relu_nap: expected x of dtype float32",
    ),
    ("nap_pack", (ROWS[0],), {}, ValueError, r"nap_pack: expected x of shape \[N, units\] .* got \[7\]"),
    ("nap_pack", (ROWS.int(),), {}, TypeError, "expected x of dtype .* or bool, got torch.int32"),
    (
        "nap_unpack",
        (torch.zeros(3, 2, dtype=torch.int64), 64),
        {},
        ValueError,
        r"of ceil\(F/64\) = 1 words for F = 64",
    ),
    ("nap_unpack", (torch.zeros(3, 2, dtype=torch.int64), -1), {}, ValueError, "got"),
    ("nap_unpack", (torch.zeros(3, 2), 128), {}, TypeError, "expected sig of dtype int64"),
    (
        "nap_unpack",
        (torch.zeros(2, dtype=torch.int64), 128),
        {},
        ValueError,
        r"of shape \[N, words\], got \[2\]",
    ),
    (
        "nap_hamming",
        (SIG.float(), DB),
        {},
        TypeError,
        r"expected a of dtype int64 \(dense\), got torch.float32",
    ),
    ("nap_hamming", (SIG, DB.int()), {}, TypeError, "expected b of dtype int64 .* got torch.int32"),
    (
        "nap_hamming",
        (SIG, DB.to_sparse()),
        {},
        TypeError,
        r"of dtype .* got torch.int64 \(torch.sparse_coo\)",
    ),
    ("nap_hamming", (SIG.numpy(), DB), {}, TypeError, "expected a to be a tensor, got ndarray"),
    ("nap_hamming", (SIG[0], DB), {}, ValueError, r"expected a of shape \[N, words\], got \[2\]"),
    ("nap_hamming", (SIG, DB[:, :1]), {}, ValueError, r"a and b of one width, got \[3, 2\] and \[5, 1\]"),
    ("nap_hamming", (SIG, DB.to("meta")), {}, ValueError, "a and b on one device, got cpu and meta"),
    (
        "nap_hamming",
        (SIG[:, :1].expand(3, 2**25), DB[:, :1].expand(5, 2**25)),
        {},
        ValueError,
        r"rows of less than 2\*\*31 bits .* got 33554432 words",
    ),
    ("nap_topk", (SIG, DB.bool(), 1), {}, TypeError, "expected db of dtype int64 .* got torch.bool"),
    ("nap_topk", (SIG, DB[0], 1), {}, ValueError, r"expected db of shape \[N, words\], got \[2\]"),
    ("nap_topk", (SIG[:, :1], DB, 1), {}, ValueError, r"q and db of one width, got \[3, 1\] and \[5, 2\]"),
    ("nap_topk", (SIG.to("meta"), DB, 1), {}, ValueError, "q and db on one device, got meta and cpu"),
    ("nap_topk", (SIG, DB, 6), {}, ValueError, "expected 0 <= k <= M = 5 rows of db, got 6"),
    ("nap_topk", (SIG, DB[:0], 1), {}, ValueError, "expected 0 <= k <= M = 0 rows of db, got 1"),
    ("nap_topk", (SIG, DB, -1), {}, ValueError, "expected 0 <= k <= M = 5 rows of db, got -1"),
    ("nap_topk", (SIG, DB, 1.5), {}, TypeError, "expected k to be an int, got 1.5"),
    (
        "nap_topk",
        (SIG[:, :1].expand(3, 2**20), DB[:1, :1].expand(2**40, 2**20), 1),
        {},
        ValueError,
        r"expected distance and row to fit in 63 bits, got db of \[1099511627776, 1048576\]",
    ),
    ("nap_frequency", (SIG.double(), 2), {}, TypeError, "expected sig of dtype int64 .* got torch.float64"),
    ("nap_frequency", (SIG[0], 2), {}, ValueError, r"expected sig of shape \[N, words\], got \[2\]"),
    (
        "nap_frequency",
        (SIG, 129),
        {},
        ValueError,
        r"expected 0 <= F <= 128, the bits of sig \[3, 2\], got 129",
    ),
    ("nap_frequency", (SIG, -1), {}, ValueError, r"expected 0 <= F <= 128, the bits of sig \[3, 2\], got -1"),
    ("nap_frequency", (SIG, "2"), {}, TypeError, "expected F to be an int, got '2'"),
    ("layer_kernel", (ROWS[0], V[0], V[0]), {}, ValueError, r"expected u of shape \[P, n\], got \[7\]"),
    ("layer_kernel", (ROWS, V, V[0]), {}, ValueError, r"expected v of u's shape \[5, 7\], got \[9, 7\]"),
    (
        "layer_kernel",
        (ROWS, ROWS, V),
        {},
        ValueError,
        r"angles of shape \[A\] or \[P, A\] with P = 5, got \[9, 7\]",
    ),
    ("layer_kernel", (ROWS, ROWS, V[0, 0]), {}, ValueError, r"angles of shape .* got \[\]"),
    ("layer_kernel", (ROWS, ROWS, V[0].int()), {}, TypeError, "expected angles of dtype .* got torch.int32"),
    (
        "layer_kernel",
        (ROWS, ROWS.half(), V[0]),
        {},
        TypeError,
        "of one dtype, got torch.float32 and torch.float16",
    ),
    (
        "layer_kernel",
        (ROWS, ROWS, V[0], V[0, :6]),
        {},
        ValueError,
        r"bias of shape \[n\] with n = 7, got \[6\]",
    ),
    ("layer_kernel", (ROWS, ROWS, V[0], V[0].double()), {}, TypeError, "u and bias of one dtype"),
    (
        "layer_kernel",
        (ROWS, ROWS, V[0].to("meta")),
        {},
        ValueError,
        "u and angles on one device, got cpu and meta",
    ),
    ("layer_kernel", (ROWS.numpy(), ROWS, V[0]), {}, TypeError, "expected u to be a tensor, got ndarray"),
    ("nap_hash", (SIG.double(),), {}, TypeError, "expected sig of dtype int64 .* got torch.float64"),
    ("nap_hash", (SIG[0],), {}, ValueError, r"expected sig of shape \[N, words\], got \[2\]"),
    ("nap_group", (SIG.int(),), {}, TypeError, "expected sig of dtype int64 .* got torch.int32"),
    ("nap_group", (SIG[None],), {}, ValueError, r"expected sig of shape \[N, words\], got \[1, 3, 2\]"),
]


@pytest.mark.parametrize(("name", "args", "kwargs", "error", "text"), BAD)
def test_bad_input_is_named(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text) as caught:
        OPS[name].public(*args, **kwargs)
    assert str(caught.value).startswith(f"{name}: ")


@pytest.mark.parametrize(("name", "args", "kwargs", "error", "text"), BAD)
def test_bad_input_stops_below_python_too(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], error: type[Exception], text: str
) -> None:
    """torch.ops.zb in inference mode goes straight to the kernels, which must not read past a tensor."""
    if isinstance(kwargs.get("padding"), str) or not isinstance(args[0], torch.Tensor):
        pytest.skip("refused by the schema")
    with torch.inference_mode(), pytest.raises((RuntimeError, ValueError, TypeError, NotImplementedError)):
        OPS[name].overload(*args, **kwargs)


def test_samples_are_named_apart() -> None:
    for op in OPS.values():
        labels = [s.label for s in op.samples("cpu", op.dtypes[0])]
        assert len(labels) == len(set(labels)), op.name
        assert all(dataclasses.is_dataclass(s) for s in op.samples("cpu", op.dtypes[0]))


@pytest.mark.large
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_more_than_two_to_the_31_elements(layout: torch.memory_format, device: str) -> None:
    x = torch.zeros(70, 64, 512, 960, dtype=torch.float16, device=device).to(memory_format=layout)
    x[69, 63, 511, 959], x[0, 0, 0, 0] = 7, 3
    w = torch.ones(64, 1, 1, 1, dtype=torch.float16, device=device)
    y = zb.conv_relu_pool2d(x, w, groups=64)
    assert y[69, 63, 255, 479] == 7 and y[0, 0, 0, 0] == 3 and y.double().sum() == 10


@pytest.mark.parametrize("name", ["conv_relu_pool2d", "conv_relu_pool2d_nap"])
def test_explain_names_the_kernel_that_runs(name: str, device: str) -> None:
    op = OPS[name]
    if device != "cpu" or (name, "cpu") not in COMPILED:
        pytest.skip("kernels are named ahead on the CPU only")
    for sample in op.samples():
        with torch.no_grad():
            op.public(*sample.args, **sample.kwargs)
        if sample.args[0].numel():
            assert zb.explain(name, *sample.args, **sample.kwargs).kernel == zb.last_kernel(), sample.name


def test_what_equals_an_earlier_argument_is_still_checked() -> None:
    """True == 1 and 1.0 == 1, but neither is a stride."""
    x, w = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)
    for good in (1, (1, 1)):
        zb.conv_relu_pool2d(x, w, good, groups=1)
    for bad in (True, 1.0, (True, 1), (1, 1.0), "1"):
        for _ in range(2):
            with pytest.raises(ValueError, match="stride"):
                zb.conv_relu_pool2d(x, w, bad, groups=1)
    with pytest.raises(ValueError, match="groups"):
        zb.conv_relu_pool2d(x, w, 1, groups=True)
