"""torch.compile over batches of all sizes, the Inductor pass, and CUDA graphs."""

from __future__ import annotations

import copy
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from workflow_models import MODELS, examples, plain

import zbkernels as zb

pytestmark = pytest.mark.usefixtures("one_thread")
BATCHES = (1, 2, 3, 7, 15, 16, 17, 64, 999, 1000)


@pytest.fixture(autouse=True)
def compiled_afresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def counted(function: Any, **options: Any) -> tuple[Any, CompileCounterWithBackend]:
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, backend=counter, fullgraph=True, **options), counter


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_two_compilations_serve_every_batch(name: str) -> None:
    """One of batch 1, which torch takes by itself, and one of all others; in training, so with the backward's graph."""
    model = MODELS[name]()
    compiled, counter = counted(model)
    for batch in BATCHES:
        x, labels = examples(batch)
        loss = F.cross_entropy(compiled(x), labels)
        loss.backward()
        if batch in (1, 64):
            weights = list(model.parameters())
            close(loss, expected := F.cross_entropy(model(x), labels))
            close([each.grad for each in weights], list(torch.autograd.grad(expected, weights)))
        model.zero_grad()
    # Torch's own convolutions on a CPU (Fixup's shortcut is one) ask whether the batch is below 16.
    assert counter.frame_count == (3 if name == "fixup" else 2)
    assert not counters["graph_break"]


W, ROWS = torch.randn(8, 3, 3, 3), torch.randn(6, 20)
DB = zb.nap_pack(torch.randn(9, 130))


def images(batch: int) -> torch.Tensor:
    return torch.randn(batch, 3, 9, 9)


def rows(batch: int) -> torch.Tensor:
    return torch.randn(batch, 20)


def words(batch: int) -> torch.Tensor:
    return zb.nap_pack(torch.randn(batch, 130))


def square(x: torch.Tensor) -> torch.Tensor:
    return zb.conv_relu_pool2d(x, W[:3], padding=1, pool="none", residual=x)


FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[int], torch.Tensor]]] = {
    "conv_relu_pool2d": (lambda x: zb.conv_relu_pool2d(x, W, padding="same"), images),
    "conv_relu_pool2d, residual": (square, images),
    "conv_relu_pool2d_nap": (lambda x: zb.conv_relu_pool2d_nap(x, W), images),
    "linear_relu": (lambda x: zb.linear_relu(x, ROWS), rows),
    "linear_relu_nap": (lambda x: zb.linear_relu_nap(x, ROWS), rows),
    "nap_pack": (zb.nap_pack, rows),
    "nap_unpack": (lambda sig: zb.nap_unpack(sig, 130), words),
    "nap_hash": (zb.nap_hash, words),
    "nap_group": (zb.nap_group, words),
    "nap_hamming": (lambda sig: zb.nap_hamming(sig, DB), words),
    "nap_topk": (lambda sig: zb.nap_topk(sig, DB, 3), words),
    "nap_frequency": (lambda sig: zb.nap_frequency(sig, 130), words),
    "dual_gram": (lambda x: zb.dual_gram(x, ROWS, kernel="ntk", depth=2), rows),
    "dual_matvec": (lambda x: zb.dual_matvec(x, ROWS, torch.ones(6, 2), kernel="ntk", depth=2), rows),
    "layer_kernel": (lambda x: zb.layer_kernel(x, x.flip(0), torch.linspace(0, 1, 4)), rows),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_compile_twice_and_export(name: str) -> None:
    function, draw = FUNCTIONS[name]
    compiled, counter = counted(function)
    for batch in (1, 2, 15, 16, 1000):
        x = draw(batch)
        close(compiled(x), function(x))
    assert counter.frame_count == 2 and not counters["graph_break"]

    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    program = torch.export.export(
        Module(), (draw(3),), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},)
    )
    for batch in (1, 40):
        x = draw(batch)
        close(program.module()(x), function(x))


def test_every_public_function_is_tried_or_is_no_op() -> None:
    from zbkernels.ops import OPS

    public = {name for name, op in OPS.items() if op.public is not None}
    assert public - {name.partition(",")[0] for name in FUNCTIONS} == {"dual_solve"}  # test_dual_solve.py


# The Inductor pass.


class Standardised(nn.Conv2d):
    """A layer that computes its weight: fuse refuses it, a compiled graph does not hold it any more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._conv_forward(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), None)


def of_another_hand() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        Standardised(1, 8, 3, bias=False),
        nn.LeakyReLU(0.1),
        nn.MaxPool2d(2),
        nn.Sequential(nn.Conv2d(8, 4, 3, bias=False)),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


@pytest.mark.parametrize(("make", "chains"), [(plain, 3), (of_another_hand, 2)])
@pytest.mark.parametrize("training", [False, True])
def test_the_inductor_pass_fuses(make: Callable[[], nn.Module], chains: int, training: bool) -> None:
    """All that Inductor does to graphs, and none of its code generation, which takes a compiler half a minute."""
    from torch._inductor.compile_fx import compile_fx

    graphs: list[list[str]] = []

    def keep(graph: torch.fx.GraphModule, _: Any, **__: Any) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if "zb." in str(node.target)])

        def run(arguments: list[Any]) -> Any:
            return graph(*arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    model, written = make().train(training), make().train(training)
    zb.enable_inductor_pass(when="always")
    try:
        compiled = torch.compile(
            model, backend=functools.partial(compile_fx, inner_compile=keep), fullgraph=True
        )
        for batch in (4, 7):
            x, labels = examples(batch)
            outputs = []
            for each, network in ((compiled, model), (written, written)):
                with torch.set_grad_enabled(training):
                    inputs = x.clone().requires_grad_(training)
                    loss = F.cross_entropy(each(inputs), labels)
                leaves = [inputs, *network.parameters()]
                outputs.append([loss, *(torch.autograd.grad(loss, leaves) if training else ())])
            close(*outputs)
    finally:
        zb.enable_inductor_pass(False)
    forward = graphs[0]
    assert len(forward) == chains
    if training:  # the ops' own backward runs, too
        convolutions = sum("_conv_relu_pool2d_forward" in each for each in forward)
        assert graphs[1].count("zb._conv_relu_pool2d_backward.default") == convolutions == 2
    else:
        assert forward.count("zb.conv_relu_pool2d.default") == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inductor_compiles_a_training_step_with_the_pass() -> None:
    model, (x, labels) = plain(), examples(6)
    expected = torch.autograd.grad(F.cross_entropy(model(x), labels), list(model.parameters()))
    from torch._inductor import config

    zb.enable_inductor_pass(when="always")
    fusing = config.pre_grad_custom_pass
    try:
        compiled = torch.compile(copy.deepcopy(model), fullgraph=True)
        with config.patch(
            force_disable_caches=True
        ):  # or an earlier run's graph would be taken, the pass not run
            F.cross_entropy(compiled(x), labels).backward()
    finally:
        zb.enable_inductor_pass(False)
    assert fusing.fused == 3
    close([each.grad for each in compiled.parameters()], list(expected))


ON_A_BUILD_SERVER = """
import {first}
import torch, zbkernels as zb
from torch._inductor import lowering

for op in (torch.ops.zb.conv_relu_pool2d.default, torch.ops.zb.linear_relu.default):
    assert op in lowering.lowerings, op
x = torch.randn(2, 3, 8, 8)
layers = torch.nn.Sequential(
    zb.nn.ConvReLUPool2d(3, 4, 3), torch.nn.Flatten(), zb.nn.LinearReLU(36, 5)
)
with torch.no_grad():
    torch.testing.assert_close(torch.compile(layers)(x), layers(x))
"""


@pytest.mark.parametrize("first", ["zbkernels", "torch._inductor.lowering"])
def test_inductor_compiles_on_build_servers(first: str) -> None:
    """They set CI, and inductor then refuses an op that has a decomposition and no lowering of its own."""
    env = {**os.environ, "CI": "true"}
    program = [sys.executable, "-c", ON_A_BUILD_SERVER.format(first=first)]
    ran = subprocess.run(program, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", MODELS)
def test_cuda_graphs(name: str) -> None:
    """A captured forward, a captured training step (torch.cuda.make_graphed_callables), and mode='reduce-overhead'."""
    model = MODELS[name]().cuda()
    x, other = (examples(5, seed)[0].cuda() for seed in (0, 1))
    expected = model(other)
    wanted = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
    graphed = torch.cuda.make_graphed_callables(copy.deepcopy(model), (x,))
    y = graphed(other)
    close(y, expected)
    y.square().sum().backward()
    close([each.grad for each in graphed.parameters()], list(wanted))
    with torch.no_grad():
        compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
        for each in (x, other, x, other):
            y = compiled(each).clone()
        close(y, expected)
