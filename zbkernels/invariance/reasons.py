"""Why an operation breaks homogeneity, in words: a kind of a word or two, and a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from zbkernels.invariance.watching import Recorded


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What is not homogeneous whatever it is given, by torch's name for it.
_FUNCTIONS = {
    "gelu": "GELU", "silu": "SiLU", "mish": "Mish", "sigmoid": "sigmoid", "tanh": "tanh", "softplus": "softplus",
    "elu": "ELU", "log_sigmoid": "log-sigmoid", "log_sigmoid_forward": "log-sigmoid", "hardswish": "hard swish",
    "hardsigmoid": "hard sigmoid", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log1p": "log1p",
    "log2": "log2", "log10": "log10", "sin": "sin", "cos": "cos", "erf": "erf", "_softmax": "softmax", "logit": "logit",
    "_log_softmax": "log-softmax", "softmax": "softmax", "log_softmax": "log-softmax", "logsumexp": "logsumexp",
    "_safe_softmax": "softmax", "_masked_softmax": "softmax", "logaddexp": "logaddexp", "logaddexp2": "logaddexp2",
    "logcumsumexp": "logcumsumexp", "glu": "GLU", "tan": "tan", "sinh": "sinh", "cosh": "cosh", "asin": "asin",
    "acos": "acos", "atan": "atan", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "erfc": "erfc",
    "erfinv": "erfinv", "sinc": "sinc", "lgamma": "lgamma", "digamma": "digamma", "xlogy": "xlogy",
    "round": "rounding", "floor": "rounding", "ceil": "rounding", "trunc": "rounding", "frac": "rounding",
    "floor_divide": "rounding", "fmod": "remainder", "remainder": "remainder",
    "fake_quantize_per_tensor_affine_cachemask": "rounding", "fake_quantize_per_channel_affine_cachemask": "rounding",
}  # fmt: skip
_CLAMPS = _words("hardtanh clamp clip clamp_min clamp_max threshold hardshrink softshrink minimum maximum")
_NORMS = {
    "native_layer_norm": "layer norm",
    "native_group_norm": "group norm",
    "_fused_rms_norm": "RMS norm",
    "local_response_norm": "local response norm",
}
_BATCH_NORMS = _words(
    """
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training batch_norm cudnn_batch_norm
    miopen_batch_norm _batch_norm_with_update _batch_norm_no_update
    """
)
_OWN_SPREAD = "divides by its input's own spread, to which it adds an eps that does not scale with the input"
_ADDS = _words("add sub rsub addcmul addcdiv lerp add_relu")
_PRODUCTS = _words("mul bmm mm mv dot baddbmm addmm addbmm addmv convolution")
_COMPARES = _words("gt ge lt le eq ne bucketize searchsorted")
_PADS = _words("constant_pad_nd pad")
_RUNNING_PRODUCTS = _words("cumprod")
_JOINS = _words("cat stack where masked_fill index_put masked_scatter scatter slice_scatter")
_RECURRENT = _words("lstm gru rnn_tanh mkldnn_rnn_layer _thnn_fused_lstm_cell _thnn_fused_gru_cell")

# Increasing in each value (softmax: along one dimension), so that the largest of homogeneous values stays the largest.
ORDER_PRESERVING = _words(
    "_softmax _safe_softmax _log_softmax sigmoid tanh exp exp2 expm1 log_sigmoid log_sigmoid_forward"
)


UNEXPLAINED = "unexplained"  # the kind of a break by an operation that should be none
# Of an operation that has a degree at the scalars of the structure, and none at another one.
BETWEEN = ("powers of two", "has a degree at powers of four alone, such as a mantissa or a scale of 2^n has")


def why(operation: Recorded, degrees: Sequence[float | None]) -> tuple[str, str]:
    """(kind, sentence) of an operation whose result is of another degree than what went in, or of none.

    Args:
        degrees: of each of the operation's sources; None: of none, or not known.
    """
    name = operation.function
    plain = name.rstrip("_") if not name.startswith("_") else name.removesuffix("_")
    if plain in _BATCH_NORMS:
        return _batch_norm(operation)
    if plain in _NORMS:
        kind = _NORMS[plain]
        return kind, f"{kind} {_OWN_SPREAD}"
    if "scaled_dot_product" in plain or "multi_head_attention" in plain:
        return "attention", "attention: the softmax of a product of two activations"
    if plain in _RECURRENT:
        return "recurrent", "the gates of a recurrent layer are sigmoid and tanh"
    if plain in _FUNCTIONS:
        kind = _FUNCTIONS[plain]
        return kind, f"{kind} is not homogeneous"
    if operation.arguments.get("rounding_mode") is not None:
        return "rounding", f"{plain} rounds its result"
    if plain == "pow" and "self" in operation.arguments:
        return "exp", f"a power of {operation.arguments['self']:g} is not homogeneous"
    if plain in _CLAMPS:
        return "clamp", f"{plain} cuts off at a value that does not scale with the input"
    if "bias" in operation.arguments:
        name = operation.arguments["bias"]
        return "bias", f"adds the bias '{name}'" if name else "adds a bias"
    distinct = sorted({d for d in degrees if d is not None})
    if plain in _ADDS:
        return _addition(operation, degrees, distinct)
    if plain in _COMPARES:
        return "comparison", "compares activations with a value that does not scale with the input"
    if plain in _JOINS and len(distinct) > 1:
        constant = _named_constant(operation, degrees)
        different = f"results of different degree: {degree_list(distinct)}"
        return "join", f"joins {constant} to activations" if constant else f"joins {different}"
    if plain in _PADS:
        return "constant", f"pads with the constant {text(operation.arguments.get('value', 0.0))}"
    if plain in _RUNNING_PRODUCTS:
        return "product of activations", f"{plain} multiplies ever more activations: degree 1, 2, 3 and so on"
    return UNEXPLAINED, f"{plain} is not homogeneous in what it is given"


def why_degree(
    operation: Recorded, before: float, after: float, degrees: Sequence[float | None]
) -> tuple[str, str]:
    """(kind, sentence) of an operation that changes the degree from ``before`` to ``after``."""
    if operation.function.rstrip("_") in _PRODUCTS and len([d for d in degrees if d]) > 1:
        return "product of activations", f"multiplies activations with each other: degree {text(after)}"
    kind, _ = why(operation, degrees)
    kind = operation.function if kind == UNEXPLAINED else kind
    return kind, f"{kind}: from degree {text(before)} to {text(after)}"


def _batch_norm(operation: Recorded) -> tuple[str, str]:
    training = operation.arguments.get("training") or operation.arguments.get("use_input_stats")
    if "InstanceNorm" in operation.module:
        return "instance norm", f"instance norm {_OWN_SPREAD}"
    if training:
        return "batch norm", f"batch norm, by the batch's statistics, {_OWN_SPREAD}"
    return (
        "batch norm",
        "batch norm subtracts a running mean and adds a shift, which do not scale with the input",
    )


def _addition(operation: Recorded, degrees: Sequence[float | None], distinct: list[float]) -> tuple[str, str]:
    constant = _named_constant(operation, degrees)
    if constant and any(word in constant.lower() for word in ("bias", "beta", "shift")):
        return "bias", f"adds {constant}, which does not scale with the input"
    if constant:
        return "constant", f"adds {constant}, which does not scale with the input"
    if "RMSNorm" in operation.module:
        return "RMS norm", f"RMS norm {_OWN_SPREAD}"
    if len(distinct) > 1:
        return "mixed degrees", f"adds terms of degree {degree_list(distinct)}"
    other = operation.arguments.get("other")
    return "constant", f"adds the constant {other}" if other is not None else "adds a constant"


def _named_constant(operation: Recorded, degrees: Sequence[float | None]) -> str:
    """The parameter among the sources of degree 0, where another source has a degree; "" where there is none."""
    if len({d for d in degrees if d is not None}) < 2:
        return ""
    names = [s.parameter for s, d in zip(operation.sources, degrees, strict=True) if s.parameter and d == 0]
    return f"the parameter '{names[0]}'" if names else ""


def degree_list(degrees: Sequence[float]) -> str:
    return " and ".join(map(text, degrees))


def text(degree: float) -> str:
    return f"{degree:.3g}"
