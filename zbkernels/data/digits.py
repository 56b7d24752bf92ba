"""The 1,797 digits of 8x8 pixels that come with scikit-learn: always at hand, no download."""

from __future__ import annotations

from pathlib import Path

import torch

from zbkernels.data.dataset import DataError, Dataset, Split

TEST_EVERY = 5  # every fifth image is a test image: 1,437 for training, 360 for testing


def load_digits(root: str | Path | None = None) -> Dataset:
    """Scikit-learn's digits, ``[N, 1, 8, 8]``, split by position so that every run sees the same two parts.

    ``root`` is accepted for uniformity and not used: the data are part of scikit-learn.

    Raises:
        DataError: scikit-learn is not installed.
    """
    del root
    try:
        from sklearn.datasets import load_digits as sklearn_digits
    except ImportError as error:
        raise DataError("the digits come with scikit-learn: pip install 'zbkernels[experiments]'") from error
    bunch = sklearn_digits()
    images = torch.from_numpy(bunch.images).float().div_(16).unsqueeze(1)  # [1797, 1, 8, 8]; were 0 to 16
    labels = torch.from_numpy(bunch.target).long()
    is_test = torch.arange(len(labels)) % TEST_EVERY == 0
    return Dataset(
        name="digits",
        title="scikit-learn digits (8×8)",
        train=Split(images[~is_test].contiguous(), labels[~is_test]),
        test=Split(images[is_test].contiguous(), labels[is_test]),
        classes=tuple("0123456789"),
        official=True,
        note="a stand-in of 1,797 digits of 8×8 pixels, not one of the paper's image sets",
    )
