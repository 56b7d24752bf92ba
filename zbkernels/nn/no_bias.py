"""What the layers say to those who ask them for a bias."""

from __future__ import annotations


def check_no_bias(name: str, bias: object) -> None:
    """``nn.Conv2d`` and ``nn.Linear`` have the argument, so a replaced line may bring it.

    Raises:
        ValueError: a bias is asked for.
    """
    if bias is not False and bias is not None:
        mend = "zbkernels.nn.remove_bias takes biases out of a model"
        raise ValueError(f"{name}: expected bias=False, got {bias!r}: the layer has none; {mend}")
