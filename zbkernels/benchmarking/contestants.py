"""The contestants of one problem, and how each engine is set up: its best settings out of the box."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ONNX_OPSET = 17  # every operator used here is older; runtimes of many years load it
ONNX_IR = 8


class Absent(Exception):
    """A contestant that cannot take part; the message says why and stands in the table."""


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One way to compute a problem's result.

    ``build()`` prepares everything that a user pays once (compilation, weight packing by an engine, memory
    format of a constant input) and returns the call to be timed; it raises :class:`Absent` where that cannot
    be had. ``outputs(result)`` turns the call's result into tensors that the check reads; it is never timed.
    """

    name: str
    build: Callable[[], Callable[[], Any]]
    ours: bool = False
    outputs: Callable[[Any], Sequence[torch.Tensor]] = lambda result: (
        result if isinstance(result, tuple | list) else (result,)
    )


COMPILER = "inductor"  # a rehearsal without a card sets "eager": traced and checked, nothing compiled


def compiled(function: Callable, device: str) -> Callable:
    """``torch.compile`` of ``function``: default Inductor on a CPU, ``max-autotune`` on CUDA."""
    import torch

    torch._dynamo.reset()  # no recompile limit, no dynamic shapes learnt from the problem before
    mode = "max-autotune" if device.startswith("cuda") and COMPILER == "inductor" else None
    return torch.compile(function, dynamic=False, fullgraph=True, mode=mode, backend=COMPILER)


def per_call(function: Callable, device: str) -> Callable:
    """``function``, told on CUDA that a new step begins (compiled CUDA graphs reuse their output buffers)."""
    if not device.startswith("cuda"):
        return function
    import torch

    def call(*args: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return function(*args)

    return call


def onnx_runtime(
    model: Callable[[], bytes], feed: dict[str, torch.Tensor], threads: int
) -> Callable[[], Any]:
    """A call of ONNX Runtime's CPU provider on an ONNX model, inputs and outputs bound (no copy per call).

    Raises:
        Absent: not installed, no such kernel, or the run is held to an instruction set that ONNX Runtime
            cannot be held to (it has no switch for it, so comparing would be unfair to everyone else).
    """
    if os.environ.get("ZBKERNELS_CPU_CAPABILITY"):
        raise Absent("no switch for the instruction set")
    try:
        import onnxruntime
    except ImportError:
        raise Absent("not installed") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model(), options, providers=["CPUExecutionProvider"])
    except Absent:
        raise
    except Exception as error:
        raise Absent(f"refused: {_first_line(error)}") from error
    binding = session.io_binding()
    for name, tensor in feed.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy()))
    for output in session.get_outputs():
        binding.bind_output(output.name, "cpu")

    def call() -> Any:
        session.run_with_iobinding(binding)
        return binding

    return call


def onnx_outputs(binding: Any) -> list[torch.Tensor]:
    """The outputs of :func:`onnx_runtime`'s call as tensors."""
    import torch

    return [torch.from_numpy(value.copy()) for value in binding.copy_outputs_to_cpu()]


def onnx_model(
    nodes: Sequence[tuple], inputs: dict[str, torch.Tensor], constants: dict[str, torch.Tensor]
) -> bytes:
    """A serialised ONNX model of nodes in the order of their computation.

    Args:
        nodes: (operator, names of inputs, name of output, attributes); the last output is the model's.
        inputs, constants: name -> tensor (float32, float16 or float64).

    Raises:
        Absent: the ``onnx`` package is not installed, or it has no NumPy type for the dtype.
    """
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        raise Absent("onnx not installed") from None
    types = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "float64": TensorProto.DOUBLE}
    dtype = types[str(next(iter(inputs.values())).dtype).removeprefix("torch.")]
    graph = helper.make_graph(
        [
            helper.make_node(op, list(sources), [target], **attributes)
            for op, sources, target, attributes in nodes
        ],
        "block",
        [helper.make_tensor_value_info(name, dtype, list(t.shape)) for name, t in inputs.items()],
        [helper.make_tensor_value_info(nodes[-1][2], dtype, None)],
        [numpy_helper.from_array(t.contiguous().numpy(), name) for name, t in constants.items()],
    )
    opset = [helper.make_opsetid("", ONNX_OPSET)]
    return helper.make_model(graph, opset_imports=opset, ir_version=ONNX_IR).SerializeToString()


def openvino_call(
    build: Callable[[Any, Any], Any], feed: dict[str, torch.Tensor], threads: int
) -> Callable[[], Any]:
    """A call of OpenVINO's CPU plugin, held to the input's own precision, inputs shared.

    Args:
        build: ``build(ops, parameters) -> output node`` over OpenVINO's opset module; ``parameters`` in the
            order of ``feed``.

    Raises:
        Absent: not installed, or the plugin refuses the model.
    """

    def model(openvino: Any) -> Any:
        import openvino.opset13 as ops

        parameters = [ops.parameter(list(t.shape), t.numpy().dtype) for t in feed.values()]
        return openvino.Model([build(ops, parameters)], parameters, "block")

    return _openvino_request(model, feed, threads)


def openvino_of_onnx(
    model: Callable[[], bytes], feed: dict[str, torch.Tensor], threads: int
) -> Callable[[], Any]:
    """As :func:`openvino_call`, of an ONNX model.

    Raises:
        Absent: not installed, or the plugin refuses the model.
    """
    return _openvino_request(lambda openvino: openvino.Core().read_model(model(), b""), feed, threads)


def _openvino_request(
    make_model: Callable[[Any], Any], feed: dict[str, torch.Tensor], threads: int
) -> Callable[[], Any]:
    """The call of what ``make_model(openvino)`` gives."""
    try:
        import openvino
    except ImportError:
        raise Absent("not installed") from None
    arrays = [tensor.numpy() for tensor in feed.values()]
    config = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        # Without this a machine with bf16 units computes float32 models in bf16.
        "INFERENCE_PRECISION_HINT": "f16" if arrays[0].dtype.itemsize == 2 else "f32",
    }
    try:
        request = openvino.Core().compile_model(make_model(openvino), "CPU", config).create_infer_request()
        for index, array in enumerate(arrays):
            request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))
        request.infer()
    except Absent:
        raise
    except Exception as error:
        raise Absent(f"refused: {_first_line(error)}") from error

    def call() -> Any:
        request.infer()
        return request

    return call


def openvino_outputs(request: Any) -> list[torch.Tensor]:
    """The outputs of :func:`openvino_call`'s call as tensors."""
    import torch

    return [torch.from_numpy(request.get_output_tensor(0).data.copy())]


def numpy_dtype(dtype: str) -> None:
    """Raise :class:`Absent` for a dtype that NumPy, hence ONNX Runtime's and OpenVINO's Python, lacks."""
    if dtype == "bfloat16":
        raise Absent("no bfloat16 here")


def installed_versions() -> dict[str, str]:
    """Versions of everything that takes part; ``not installed`` where it is missing."""
    from importlib import metadata

    versions = {}
    for name in ("zbkernels", "torch", "numpy", "onnxruntime", "openvino", "pykeops", "triton"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


@contextlib.contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Run the block with torch's intra-op pool at ``threads``; 0 leaves it as it is."""
    import torch

    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:120]
