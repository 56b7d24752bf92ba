"""What only a card can show: streams, graphs, waiting, several cards, grids and tensors past 32 bits.

The numbers in the names of the rows' functions are those of the reports that python_tests/test_cases.py counts.
"""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import torch

import zbkernels as zb
from gpu.build import architectures, runs_on
from gpu.calls import Call, Tensors, calls
from gpu.card import Card, Rehearsal
from gpu.process import ROOT
from gpu.rows import Skip, Task, options, run_tasks
from zbkernels import _loader

Check = Callable[[Card, Call], str]
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def same(got: Tensors, want: Tensors) -> None:
    """Raises AssertionError where results that must be equal bit by bit are not."""
    for number, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.shape == b.shape, f"output {number}: shape {list(a.shape)}, expected {list(b.shape)}"
        wrong = int((a != b.to(a.device)).sum())
        assert not wrong, f"output {number}: {wrong} of {a.numel()} values differ"


# --- of each op and backend


def side_stream_16(card: Card, call: Call) -> str:
    """The op reads what the same stream has written just before, late."""
    new = call.other()
    want = call.run(new, *call.inputs[1:])
    with card.on(card.new_stream()):
        late = torch.zeros_like(new)
        card.busy(0.1)
        late.copy_(new)
        got = call.run(late, *call.inputs[1:])
    card.wait()
    same(got, want)
    return "follows the caller's stream"


def two_streams_16(card: Card, call: Call) -> str:
    """Calls in turn on two streams do not disturb each other."""
    inputs = [call.inputs, (call.other(), *call.inputs[1:])]
    want = [call.run(*each) for each in inputs]
    card.wait()
    got: list[list[Tensors]] = [[], []]
    streams = [card.new_stream(), card.new_stream()]
    for _ in range(10):
        for which in (0, 1):
            with card.on(streams[which]):
                got[which].append(call.run(*inputs[which]))
    card.wait()
    for results, expected in zip(got, want, strict=True):
        for result in results:
            same(result, expected)
    return "20 calls"


def threads_16(card: Card, call: Call) -> str:
    """Calls from several threads, each on a stream of its own."""
    inputs = [call.inputs, (call.other(), *call.inputs[1:])]
    want = [call.run(*each) for each in inputs]
    card.wait()
    got: list[tuple[int, Tensors]] = []

    def work(which: int) -> None:
        with card.on(card.new_stream()):
            results = [call.run(*inputs[which]) for _ in range(5)]
        got.extend((which, result) for result in results)

    workers = [threading.Thread(target=work, args=(number % 2,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    card.wait()
    assert len(got) == 20, f"{len(got)} of 20 calls came back"
    for which, result in got:
        same(result, want[which])
    return "4 threads"


def graph_16(card: Card, call: Call) -> str:
    """A captured call works on what its input holds when the graph is replayed; one that waits is refused in words."""
    if call.waits:
        return refused_in_a_graph(card, call)
    new = call.other()
    want = [call.run(*call.inputs), call.run(new, *call.inputs[1:])]
    static = call.inputs[0].clone()
    replay, results = card.capture(lambda: call.run(static, *call.inputs[1:]))
    for values, expected in ((new, want[1]), (call.inputs[0], want[0]), (new, want[1])):
        static.copy_(values)
        replay()
        card.wait()
        same(results, expected)
    return "3 replays"


def refused_in_a_graph(card: Card, call: Call) -> str:
    """Capture raises, and the card works on."""
    if not card.device.startswith("cuda"):
        raise Skip("only a card captures graphs")
    try:
        card.capture(lambda: call.run(*call.inputs))
    except RuntimeError as refusal:
        assert "outside of CUDA graph capture" in str(refusal), str(refusal)
        same(call.run(*call.inputs), call.run(*call.inputs))
        return str(refusal)[:80]
    raise AssertionError("was not refused")


def no_waiting(card: Card, call: Call) -> str:
    """The call comes back while the stream is still busy with what was there before."""
    if call.waits:
        raise Skip("the host waits for the size of the result")
    for _ in range(3):  # the first calls load code and take memory, which may wait
        want = call.run(*call.inputs)
    card.wait()
    card.busy(0.3)
    with card.no_waiting():
        got = call.run(*call.inputs)
    assert card.is_busy(), "the call waited for the device"
    card.wait()
    same(got, want)
    return "the host does not wait"


def other_card(card: Card, call: Call) -> str:
    """The op runs where its tensors are, and leaves the current card as it was."""
    devices = card.devices()
    if len(devices) < 2:
        raise Skip("there is one card only")
    want, before = call.run(*call.inputs), card.current()
    got = call.run(*(t.to(devices[1]) for t in call.inputs))
    assert all(str(t.device) == devices[1] for t in got), [str(t.device) for t in got]
    assert card.current() == before, f"the current card became {card.current()}"
    card.wait()
    same(got, want)
    return devices[1]


def mixed_devices(card: Card, call: Call) -> str:
    """Operands on two devices are refused in words."""
    if len(call.inputs) < 2:
        raise Skip("one operand only")
    try:
        call.run(call.inputs[0], call.inputs[1].to(card.elsewhere), *call.inputs[2:])
    except ValueError as refusal:
        assert "on one device" in str(refusal), str(refusal)
        return str(refusal)
    raise AssertionError("was not refused")


# --- grids past 65535 blocks, shared memory, dilation


def many_channels_05(card: Card) -> str:
    """channels_last gives the bits that contiguous gives, however many channels."""
    images = card.sized(200, 2)
    for channels in (255, 256, 257, 512, 2048):
        x = torch.randn(images, channels, 28, 28, device=card.device, dtype=torch.float16)
        w = torch.ones(channels, 1, 1, 1, device=card.device, dtype=torch.float16)
        y = zb.conv_relu_pool2d(x, w, groups=channels)
        last = zb.conv_relu_pool2d(x.contiguous(memory_format=torch.channels_last), w, groups=channels)
        same((last, y), (y, torch.nn.functional.max_pool2d(x.relu(), 2)))
        card.wait()
    return "255 to 2048 channels"


def many_images_05(card: Card) -> str:
    """More images than a grid has blocks in y and z, forward and backward."""
    images = card.sized(200_003, 70_001)
    x = torch.ones(images, 1, 2, 2, device=card.device, requires_grad=True)
    w = torch.ones(1, 1, 1, 1, device=card.device, requires_grad=True)
    y = zb.conv_relu_pool2d(x, w)
    assert float(y.detach().sum()) == images
    grad_x, grad_w = torch.autograd.grad(y.sum(), (x, w))
    assert float(grad_x.sum()) == float(grad_w) == images
    _, sig = zb.conv_relu_pool2d_nap(x.detach(), w.detach())
    assert bool((sig == 15).all())  # all four units of each image
    return f"{images} images"


def tall_image_05(card: Card) -> str:
    """An image of more rows than a grid has blocks."""
    height = card.sized(16_777_217, 70_001)
    x = torch.ones(1, 1, height, 2, device=card.device)
    y = zb.conv_relu_pool2d(x, torch.ones(1, 1, 1, 1, device=card.device), pool_kernel=1)
    assert int((y == 1).sum()) == 2 * height
    return f"{height} rows"


def many_filters_05(card: Card) -> str:
    """More output channels than a grid has blocks in y and z."""
    filters = card.sized(140_001, 70_001)
    x = torch.ones(2, 1, 4, 4, device=card.device)
    w = torch.ones(filters, 1, 3, 3, device=card.device)
    w[-1] = 2
    y = zb.conv_relu_pool2d(x, w)
    assert y.shape == (2, filters, 1, 1) and bool((y[:, :-1] == 9).all()) and bool((y[:, -1] == 18).all())
    return f"{filters} filters"


def many_rows_05(card: Card) -> str:
    """More rows than a grid has blocks, in the linear and the packing ops."""
    rows = card.sized(200_003, 70_001)
    x = torch.ones(rows, 65, device=card.device)
    y, sig = zb.linear_relu_nap(x, torch.ones(3, 65, device=card.device))
    assert bool((y == 65).all()) and bool((sig == 7).all())
    words = zb.nap_pack(x)
    assert words[:, 0].eq(-1).all() and words[:, 1].eq(1).all()
    assert bool(zb.nap_unpack(words, 65).all())
    return f"{rows} rows"


def huge_dilation_11(card: Card) -> str:
    """A kernel of one position ignores its dilation; a larger one is refused before any launch."""
    x = torch.randn(5, 10, 24, 24, device=card.device)
    w = torch.randn(3, 10, 1, 1, device=card.device)
    plain = zb.conv_relu_pool2d(x, w, ceil_mode=True)
    same((zb.conv_relu_pool2d(x, w, dilation=2**31 - 1, ceil_mode=True),), (plain,))
    pool = zb.conv_relu_pool2d(x, w, dilation=2**31 - 1, pool_kernel=1, ceil_mode=True)
    same((pool,), (zb.conv_relu_pool2d(x, w, pool="none"),))
    try:
        zb.conv_relu_pool2d(x, torch.randn(3, 10, 2, 2, device=card.device), dilation=2**31 - 1)
    except ValueError as refusal:
        return str(refusal)[:80]
    raise AssertionError("a kernel that does not fit was not refused")


# --- more than 2**31 elements


def large_input_04(card: Card, layout: str) -> str:
    """2,202,009,600 inputs: values, signature and gradient at the first and the last of them."""
    card.need(16)
    n, c, h, w = card.sized((70, 64, 512, 960), (3, 4, 8, 10))
    x = torch.empty(n, c, h, w, dtype=torch.float16, device=card.device, memory_format=FORMATS[layout])
    x.zero_()
    x[-1, -1, -1, -1], x[0, 0, 0, 0] = 7, 3
    filters = torch.ones(c, 1, 1, 1, dtype=torch.float16, device=card.device)
    y, sig = zb.conv_relu_pool2d_nap(x, filters, groups=c)
    assert float(y[-1, -1, -1, -1]) == 7 and float(y[0, 0, 0, 0]) == 3 and int((y != 0).sum()) == 2
    assert int(sig[0, 0]) == 1 and int((sig != 0).sum()) == 2
    assert int(sig[-1, -1]) == _top_bit(c * h * w)
    del y, sig
    x.requires_grad_()
    y = zb.conv_relu_pool2d(x, filters, groups=c)
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert float(grad[-1, -1, -1, -1]) == float(grad[0, 0, 0, 0]) == 1 and int((grad != 0).sum()) == 2
    card.wait()
    return f"{n * c * h * w} elements, forward, signature and backward"


def large_output_04(card: Card) -> str:
    """2,850,124,800 outputs."""
    card.need(22)
    n, c, h, w = card.sized((74, 32, 30090, 81), (3, 4, 5, 7))
    x = torch.zeros(n, c, h, w, dtype=torch.bfloat16, device=card.device)
    x[-1, -1, -1, -2], x[0, 0, 0, 0] = 7, 3
    filters = torch.ones(c, 1, 1, 1, dtype=torch.bfloat16, device=card.device)
    y = zb.conv_relu_pool2d(x, filters, groups=c, pool_kernel=(1, 2))
    assert float(y[-1, -1, -1, -1]) == 7 and float(y[0, 0, 0, 0]) == 3 and int((y != 0).sum()) == 2
    card.wait()
    return f"{y.numel()} outputs"


def large_linear_04(card: Card) -> str:
    """More than 2**31 outputs of a linear layer."""
    card.need(10)
    n, fan_in, fan_out = card.sized((70_000, 64, 33_000), (70, 64, 33))
    x = torch.zeros(n, fan_in, dtype=torch.float16, device=card.device)
    w = torch.zeros(fan_out, fan_in, dtype=torch.float16, device=card.device)
    x[-1], w[-1], x[0], w[0, 0] = 1, 1, 2, 1
    y, sig = zb.linear_relu_nap(x, w)
    corners = (y[-1, -1], y[0, 0], y[0, -1], y[-1, 0])
    assert [float(v) for v in corners] == [64, 2, 128, 1] and int((y != 0).sum()) == 4
    assert int((sig != 0).sum()) == (4 if fan_out > 64 else 2)
    card.wait()
    return f"{y.numel()} outputs"


def large_pack_04(card: Card) -> str:
    """More than 2**31 units packed and unpacked."""
    card.need(8)
    n, f = card.sized((70_000, 32_768), (70, 128))
    x = torch.zeros(n, f, dtype=torch.bool, device=card.device)
    x[-1, -1] = x[0, 0] = True
    words = zb.nap_pack(x)
    assert int(words[-1, -1]) == -(2**63) and int(words[0, 0]) == 1 and int((words != 0).sum()) == 2
    assert torch.equal(zb.nap_unpack(words, f), x)
    card.wait()
    return f"{n * f} units"


def large_hamming_04(card: Card) -> str:
    """More than 2**31 distances."""
    card.need(10)
    n = card.sized(50_000, 90)
    sig = torch.arange(n, device=card.device)[:, None]
    found = zb.nap_hamming(sig, sig)
    assert int(found[-1, 0]) == int(found[0, -1]) == (n - 1).bit_count() and int(found[-1, -1]) == 0
    assert int(found[-1, -2]) == ((n - 1) ^ (n - 2)).bit_count()
    return f"{found.numel()} distances"


def large_topk_04(card: Card) -> str:
    """The nearest of more than 2**31 rows is the last, then come the first."""
    card.need(20)
    rows = card.sized(2**31 + 100, 300)
    db = torch.zeros(rows, 1, dtype=torch.int64, device=card.device)
    db[-1] = -1
    distances, ids = zb.nap_topk(torch.full((1, 1), -2, device=card.device), db, 4)
    assert distances.tolist() == [[1, 63, 63, 63]] and ids.tolist() == [[rows - 1, 0, 1, 2]]
    units = zb.nap_frequency(db, 64)
    assert bool((units == 1).all())
    return f"{rows} rows"


def large_hash_04(card: Card) -> str:
    """More than 2**31 rows: equal ones share a hash, the last one, which differs, does not."""
    card.need(56)
    rows = card.sized(2**31 + 100, 300)
    sig = torch.zeros(rows, 1, dtype=torch.int64, device=card.device)
    sig[-1] = -1
    found = zb.nap_hash(sig)
    assert bool((found[:-1] == found[0]).all()) and bool((found[-1] != found[0]).all())
    return f"{rows} rows"


def _top_bit(units: int) -> int:
    """The last word of a signature in which only the last unit is on."""
    bit = (units - 1) % 64
    return -(2**63) if bit == 63 else 1 << bit


# --- the library and the machine


def code_for_the_card_20(card: Card) -> str:
    """The library holds this card's code, or says for which card it was built and which is here."""
    state = _loader.libraries()["_C_cuda"]
    if not state.loaded:
        raise Skip(f"_C_cuda is not loaded: {state.reason}")
    held = architectures(pathlib.Path(str(state.path)))
    major, minor = torch.cuda.get_device_capability()
    if any(runs_on(name, f"{major}.{minor}") for name in held):
        return f"code for {', '.join(held)} on {major}.{minor}"
    try:
        zb.nap_pack(torch.ones(1, 1, device=card.device))
    except RuntimeError as error:
        assert f"{major}.{minor}" in str(error) or f"{major}{minor}" in str(error), str(error)
        return f"refused in words: {error}"
    raise AssertionError(f"runs on {major}.{minor}, which code for {', '.join(held)} should not")


def no_card_visible_20(card: Card) -> str:
    """Where no card is visible the package imports, before torch and twice, and its CPU ops work."""
    code = (
        "import importlib, zbkernels as zb, torch; zb = importlib.import_module('zbkernels'); "
        "assert not torch.cuda.is_available(); "
        "print(float(zb.conv_relu_pool2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 1, 1)).sum()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.strip() == "4.0", (done.stdout + done.stderr)[-300:]
    return "imports, and CPU ops work"


PER_OP: dict[str, Check] = {
    "side stream": side_stream_16,
    "two streams": two_streams_16,
    "graph": graph_16,
    "no hidden wait": no_waiting,
    "threads": threads_16,
    "another card": other_card,
    "two devices": mixed_devices,
}
ONCE: dict[str, Callable[[Card], str]] = {
    "many channels, channels_last": many_channels_05,
    "many images": many_images_05,
    "tall image": tall_image_05,
    "many filters": many_filters_05,
    "many rows": many_rows_05,
    "huge dilation": huge_dilation_11,
    "2^31 inputs, contiguous": lambda card: large_input_04(card, "contiguous"),
    "2^31 inputs, channels_last": lambda card: large_input_04(card, "channels_last"),
    "2^31 outputs": large_output_04,
    "2^31 outputs of a linear layer": large_linear_04,
    "2^31 units": large_pack_04,
    "2^31 distances": large_hamming_04,
    "2^31 signatures": large_topk_04,
    "2^31 hashes": large_hash_04,
    "code for this card": code_for_the_card_20,
    "no card visible": no_card_visible_20,
}


def per_op(card: Card, check: Check, number: int, backend: str) -> str:
    """One check of one op on one backend.

    Raises:
        Skip: the backend cannot run this call here.
    """
    torch.manual_seed(0)
    call = calls(card.device)[number]
    try:
        with zb.use_backend(backend):
            call.run(*call.inputs)  # compiles, loads; and says where it cannot run
    except RuntimeError as reason:
        if "can't run this call" in str(reason) or "has no kernel" in str(reason):
            raise Skip(str(reason)) from None
        raise
    with zb.use_backend(backend):
        return check(card, call)


def once(card: Card, check: Callable[[Card], str]) -> str:
    """One check of the ops as they are chosen."""
    torch.manual_seed(0)
    note = check(card)
    card.wait()
    return note


def tasks(card: Card, backends: Sequence[str]) -> list[Task]:
    """All rows; a backend's checks of every op, then the next one's, so that a run cut off has seen one whole."""
    names = [call.name for call in calls("cpu")]
    first, *others = [
        [
            Task(
                f"{title}: {name} ({backend})",
                functools.partial(per_op, card, check, number, backend),
                30.0,
            )
            for title, check in PER_OP.items()
            for number, name in enumerate(names)
        ]
        for backend in backends
    ]
    single = [Task(title, functools.partial(once, card, check), 40.0) for title, check in ONCE.items()]
    return [*first, *single, *(task for rows in others for task in rows)]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = options(__doc__.splitlines()[0])
    made.add_argument("--backends", nargs="+", default=["cuda", "triton"])
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    chosen = parser().parse_args(arguments)
    return run_tasks(tasks(Card(), chosen.backends), chosen)


def rehearse() -> str:
    """Every check on the CPU, small: what it expects is what the CPU's kernels give."""
    not_here = {"code for this card", "no card visible"}
    rows = [task for task in tasks(Rehearsal(), ["auto"]) if task.name not in not_here]
    done = 0
    for task in rows:
        try:
            task.do()
            done += 1
        except Skip:
            continue
        except Exception as error:
            raise AssertionError(f"{task.name}: {type(error).__name__}: {error}") from error
    return f"{done} checks, small"


if __name__ == "__main__":
    sys.exit(main())
