"""Which calls of torch functions are affine in what depends on the network's input.

A list of what is known to be affine, not of what is known not to be: a function that nobody thought of is then
reported, and a certificate refuses, where it could be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Rearranges, copies, sums, or takes a mean: affine in all that it is given. (A leaky ReLU that gets here has slope 1.)
_ANY = _words(
    """
    view view_as reshape reshape_as flatten unflatten ravel permute transpose swapaxes swapdims t adjoint movedim
    moveaxis contiguous clone detach detach_ to type type_as float double half bfloat16 cpu cuda requires_grad_ alias
    squeeze squeeze_ unsqueeze unsqueeze_ expand expand_as repeat tile repeat_interleave broadcast_to broadcast_tensors
    cat concat concatenate stack hstack vstack dstack row_stack column_stack split split_with_sizes chunk tensor_split
    unbind narrow select diagonal tril triu flip fliplr flipud roll rot90 pad constant_pad_nd _pad pixel_shuffle
    pixel_unshuffle channel_shuffle native_channel_shuffle fold unfold im2col col2im as_strided zeros_like ones_like
    empty_like full_like new_zeros new_ones new_full new_empty rand_like randn_like
    sum mean nanmean cumsum diff trace add add_ sub sub_ subtract rsub neg neg_ negative positive __add__ __radd__
    __iadd__ __sub__ __rsub__ __isub__ __neg__ __pos__ copy_ fill_ zero_ lift lift_fresh lift_fresh_copy _to_copy
    avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d
    interpolate upsample upsample_nearest upsample_bilinear identity to_dense resolve_conj resolve_neg leaky_relu
    """
) | {".T", ".mT", ".data"}

# Affine in one operand while the other does not depend on the input.
_PRODUCTS = _words(
    """
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution linear bilinear matmul mm bmm mv
    dot inner outer ger kron addmm addmv addbmm baddbmm einsum tensordot chain_matmul mul mul_ multiply __mul__ __rmul__
    __imul__ __matmul__ __rmatmul__ zb::conv_relu_pool2d zb::linear_relu zb::conv_relu_pool2d_nap zb::linear_relu_nap
    """
)

# Affine in the first operand alone.
_FIRST = _words(
    """
    div div_ divide true_divide __truediv__ __itruediv__ __getitem__ getitem index_select gather take
    """
)
_ADDED_FIRST = frozenset({"addmm", "addmv", "addbmm", "baddbmm"})  # bias + product
_SWITCHED = {
    "dropout": 2, "dropout1d": 2, "dropout2d": 2, "dropout3d": 2, "alpha_dropout": 2, "feature_alpha_dropout": 2,
    "feature_dropout": 2, "batch_norm": 5,
}  # fmt: skip
_TRAINING_DEFAULT = {
    "batch_norm": False,
    "dropout": True,
    "dropout1d": True,
    "dropout2d": True,
    "dropout3d": True,
}

# A Python number out of a tensor: what the network does next may depend on it.
_BRANCHES = _words(
    "item tolist numpy __bool__ __float__ __int__ __index__ __contains__ __array__ equal allclose is_nonzero"
)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each)


def has_values(t: torch.Tensor) -> bool:
    """Whether it holds numbers that can change by little: no integers, no booleans."""
    return t.is_floating_point() or t.is_complex()


def why_not_affine(
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    depends: Callable[[Any], bool],
    gives_values: bool,
) -> str | None:
    """None where the call is affine in the arguments that depend on the input, else a name to report.

    Args:
        depends: whether an argument (a tensor, or a list or dict that holds some) depends on the network's input.
        gives_values: the call returned a floating-point tensor.
    """
    if name in _BRANCHES:
        return f"{name} (a value the network may branch on)"
    if not gives_values and name != "__setitem__":
        return None  # shapes, comparisons, indices: what is then done with a tensor of these is looked at
    reason = _reason(name, args, kwargs, depends)
    if reason is None and any(not has_values(t) and depends(t) for t in tensors_in((args, kwargs))):
        return f"{name} of integers or booleans"  # of a comparison or a rounding: a step function
    return reason


def _reason(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], depends: Callable[[Any], bool]
) -> str | None:
    if kwargs.get("rounding_mode") or (name == "view" and any(isinstance(a, torch.dtype) for a in args)):
        return f"{name} that rounds or reads bits"
    if name in _ANY:
        return None
    if name in _SWITCHED:
        where = _SWITCHED[name]
        default = _TRAINING_DEFAULT.get(name, False)
        training = args[where] if len(args) > where else kwargs.get("training", kwargs.get("train", default))
        if training:
            return f"{name} in training"
        return name if any(depends(a) for a in args[1:]) else None
    given = [*args, *kwargs.values()]
    if name in _ADDED_FIRST:
        given = given[1:]
    if name in _PRODUCTS:
        several = name == "einsum" and len(args) > 1 and isinstance(args[1], (list, tuple))
        operands = list(args[1]) if several else given
        return f"{name} of two activations" if sum(map(depends, operands)) > 1 else None
    if name in _FIRST:
        return f"{name} by an activation" if any(map(depends, given[1:])) else None
    if name in ("where", "masked_fill", "masked_fill_"):
        chooser = args[0] if name == "where" else args[1]
        return f"{name} by an activation" if depends(chooser) else None
    if name == "__setitem__":
        return "__setitem__ by an activation" if depends(args[1]) else None
    return name
