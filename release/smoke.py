"""What a wheel must do wherever it is installed; prints what runs, as JSON, and fails where something does not.

Run by release/matrix.py in a fresh environment, outside of the source tree.
"""

from __future__ import annotations

import json
import pickle
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F

import zbkernels as zb
from zbkernels import _loader


def libraries() -> dict[str, bool]:
    """Which are loaded. All must be, but the CUDA library beside a torch without CUDA, and where the wheel has none."""
    states = _loader.libraries()
    for name, state in states.items():
        optional = name == "_C_cuda" and (state.path is None or torch.version.cuda is None)
        assert state.loaded or optional, f"{name}: {state.reason}"
    return {name: state.loaded for name, state in states.items()}


def ops() -> None:
    """Values and gradients of the fused ops against torch's own operations, and a signature against its units."""
    torch.manual_seed(0)
    x, w = torch.randn(4, 3, 12, 12), torch.randn(8, 3, 3, 3, requires_grad=True)
    want = F.max_pool2d(F.conv2d(x, w, padding=1).relu(), 2)
    got = zb.conv_relu_pool2d(x, w, padding="same")
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    grads = [torch.autograd.grad(y.square().sum(), w)[0] for y in (got, want)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-3)
    v, u = torch.randn(5, 70), torch.randn(90, 70)
    torch.testing.assert_close(zb.linear_relu(v, u), F.linear(v, u).relu(), rtol=1e-4, atol=1e-4)
    signature = zb.nap_pack(v)
    assert torch.equal(zb.nap_unpack(signature, 70).bool(), v > 0)
    distances = ((v > 0)[:, None] != (v > 0)).sum(2)
    assert torch.equal(zb.nap_hamming(signature, signature), distances.to(torch.int32))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = zb.nn.ConvReLUPool2d(1, 8, 3, padding=1)
        self.linear = zb.nn.LinearReLU(8 * 16, 10, negative_slope=1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.conv(x).flatten(1))


def workflows() -> None:
    """Compiled, exported, saved and pickled."""
    net, x = Net().eval(), torch.randn(3, 1, 8, 8)
    with torch.no_grad():
        want = net(x)
        torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="aot_eager")(x), want)
        program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("N")},))
        torch.testing.assert_close(program.module()(x[:2]), want[:2])
        torch.testing.assert_close(pickle.loads(pickle.dumps(net))(x), want)
        with tempfile.TemporaryDirectory() as folder:
            torch.save(net.state_dict(), Path(folder) / "net.pt")
            other = Net().eval()
            other.load_state_dict(torch.load(Path(folder) / "net.pt", weights_only=True))
            torch.testing.assert_close(other(x), want)


def main() -> None:
    loaded = libraries()
    ops()
    workflows()
    doctor = subprocess.run([sys.executable, "-m", "zbkernels", "doctor"], capture_output=True, text=True)
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    facts = {
        "zbkernels": zb.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "folder": str(Path(zb.__file__).parent),
        "libraries": loaded,
        "path": str(zb.library_path()),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
