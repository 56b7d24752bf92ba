"""The problems: shapes, dtypes and passes, with the operations and the least bytes of each."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch

from zbkernels.benchmarking import trained_kernel_cases
from zbkernels.benchmarking.trained_kernel_cases import AngleCase, IterationCase
from zbkernels.models import ARCHITECTURES, build

CLASSES = 10  # of the models' images
ITEM_SIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}  # bytes of one element


@dataclasses.dataclass(frozen=True)
class ConvCase:
    """One ``conv -> ReLU -> pool`` block: x [n, c, h, w], weight [k, c/groups, kernel, kernel].

    ``mode``: ``forward``, ``train`` (forward and backward) or ``nap`` (forward with the packed ReLU signs).
    ``needs_x``: whether the training step also wants the gradient of x (a first layer's input has none). ``residual``:
    a tensor of the un-pooled map's shape is added before the ReLU, and has a gradient.
    """

    name: str
    n: int
    c: int
    k: int
    h: int
    w: int
    kernel: int
    stride: int = 1
    padding: int = 0
    pool: str = "max"
    pool_kernel: int = 2
    pool_stride: int = 2
    pool_padding: int = 0
    groups: int = 1
    dtype: str = "float32"
    mode: str = "forward"
    needs_x: bool = True
    residual: bool = False

    suite = "conv"

    @property
    def op(self) -> str:
        """The public op that runs it."""
        return "conv_relu_pool2d_nap" if self.mode == "nap" else "conv_relu_pool2d"

    @property
    def map_size(self) -> tuple[int, int]:
        """Height and width of the un-pooled map."""
        return _extent(self.h, self), _extent(self.w, self)

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of y."""
        if self.pool == "none":
            return self.map_size
        h1, w1 = self.map_size
        reach = 2 * self.pool_padding - self.pool_kernel
        return (h1 + reach) // self.pool_stride + 1, (w1 + reach) // self.pool_stride + 1

    @property
    def flops(self) -> int:
        """Operations of the direct convolution, a multiply and an add counted as two.

        A kernel that needs fewer (Winograd) can therefore exceed the machine's measured FMA ceiling.
        """
        h1, w1 = self.map_size
        forward = 2 * self.n * self.k * h1 * w1 * (self.c // self.groups) * self.kernel**2
        if self.mode != "train":
            return forward
        return forward * (3 if self.needs_x else 2)

    @property
    def min_bytes(self) -> int:
        """Least traffic: each input read once, each output written once (backward included in ``train``)."""
        p, q = self.out_size
        x = self.n * self.c * self.h * self.w
        weight = self.k * (self.c // self.groups) * self.kernel**2
        y = self.n * self.k * p * q
        residual = self.n * self.k * math.prod(self.map_size) if self.residual else 0
        elements = x + weight + y + residual
        if self.mode == "train":  # reads x, weight and the gradient of y; writes the gradients wanted
            elements += x + weight + y + weight + (x if self.needs_x else 0) + residual
        bits = self.n * self.k * math.prod(self.map_size) // 8 if self.mode == "nap" else 0
        return elements * ITEM_SIZE[self.dtype] + bits

    @property
    def shape(self) -> str:
        """The row's description, e.g. ``128x64x32x32 -> 128, 3x3 pad 1, max 2``."""
        text = f"{self.n}x{self.c}x{self.h}x{self.w} -> {self.k}, {self.kernel}x{self.kernel}"
        text += f" stride {self.stride}" if self.stride != 1 else ""
        text += f" pad {self.padding}" if self.padding else ""
        text += f" groups {self.groups}" if self.groups != 1 else ""
        text += ", plus a residual" if self.residual else ""
        if self.pool == "none":
            return text + ", no pool"
        text += f", {self.pool} {self.pool_kernel}"
        text += f" stride {self.pool_stride}" if self.pool_stride != self.pool_kernel else ""
        return text + (f" pad {self.pool_padding}" if self.pool_padding else "")


@dataclasses.dataclass(frozen=True)
class LinearCase:
    """``relu(x @ weight.T)``: x [n, fan_in], weight [fan_out, fan_in]; modes as in :class:`ConvCase`."""

    name: str
    n: int
    fan_in: int
    fan_out: int
    dtype: str = "float32"
    mode: str = "forward"
    needs_x: bool = True

    suite = "linear"

    @property
    def op(self) -> str:
        """The public op that runs it."""
        return "linear_relu_nap" if self.mode == "nap" else "linear_relu"

    @property
    def flops(self) -> int:
        """Operations, a multiply and an add counted as two."""
        forward = 2 * self.n * self.fan_in * self.fan_out
        if self.mode != "train":
            return forward
        return forward * (3 if self.needs_x else 2)

    @property
    def min_bytes(self) -> int:
        """Least traffic: each input read once, each output written once (backward included in ``train``)."""
        x, weight, y = self.n * self.fan_in, self.fan_out * self.fan_in, self.n * self.fan_out
        elements = x + weight + y
        if self.mode == "train":
            elements += x + weight + y + weight + (x if self.needs_x else 0)
        return elements * ITEM_SIZE[self.dtype] + (y // 8 if self.mode == "nap" else 0)

    @property
    def shape(self) -> str:
        """The row's description, e.g. ``512x784 -> 256``."""
        return f"{self.n}x{self.fan_in} -> {self.fan_out}"


@dataclasses.dataclass(frozen=True)
class NapCase:
    """Packing [n, f] values into bits (``mode="pack"``) or bits into bool (``mode="unpack"``)."""

    name: str
    n: int
    f: int
    dtype: str = "float32"
    mode: str = "pack"

    suite = "nap"

    @property
    def op(self) -> str:
        """The public op that runs it."""
        return f"nap_{self.mode}"

    @property
    def flops(self) -> int:
        """Zero: packing only moves bytes."""
        return 0

    @property
    def min_bytes(self) -> int:
        """Least traffic: values (or bools) once, words once."""
        words = self.n * ((self.f + 63) // 64) * 8
        return words + self.n * self.f * (ITEM_SIZE[self.dtype] if self.mode == "pack" else 1)

    @property
    def shape(self) -> str:
        """The row's description, e.g. ``4096x16384``."""
        return f"{self.n}x{self.f}"


@dataclasses.dataclass(frozen=True)
class PatternCase:
    """What is done with packed patterns of f units: ``hamming`` (n x m distances), ``topk`` (the k nearest of m
    rows for n queries), ``frequency`` (how often each unit is on in n rows), ``hash`` (of n rows) or ``group`` (n
    rows of m kinds)."""

    name: str
    n: int
    m: int
    f: int
    mode: str
    k: int = 0
    dtype: str = "int64"

    suite = "nap"

    @property
    def op(self) -> str:
        """The public op that runs it."""
        return f"nap_{self.mode}"

    @property
    def words(self) -> int:
        """Of a signature."""
        return (self.f + 63) // 64

    @property
    def flops(self) -> int:
        """Zero: bits are compared and counted, no numbers multiplied."""
        return 0

    @property
    def counted_words(self) -> int:
        """Words whose bits must be counted; what bounds distances."""
        return self.n * self.m * self.words if self.mode in ("hamming", "topk") else 0

    @property
    def min_bytes(self) -> int:
        """Least traffic: each word once, each result once."""
        words = 8 * self.words
        if self.mode in ("hamming", "topk"):
            result = 4 * self.n * self.m if self.mode == "hamming" else 12 * self.n * self.k
            return (self.n + self.m) * words + result
        results = {"frequency": 8 * self.f, "hash": 16 * self.n, "group": 8 * self.n + 16 * self.m}
        return self.n * words + results[self.mode]

    @property
    def shape(self) -> str:
        """The row's description, e.g. ``1000 of 200000x1024, k 5``."""
        if self.mode == "group":
            return f"{self.n}x{self.f} of {self.m} kinds"
        if self.mode in ("frequency", "hash"):
            return f"{self.n}x{self.f}"
        return f"{self.n} of {self.m}x{self.f}" + (f", k {self.k}" if self.mode == "topk" else "")


@dataclasses.dataclass(frozen=True)
class ModelCase:
    """A whole network without biases on n images: logits (``forward``), or one training step (``train``: forward,
    cross-entropy, backward, SGD).

    ``model`` names a row of ``zbkernels.models.ARCHITECTURES``; images are of its own shape, in CLASSES classes.
    """

    name: str
    model: str
    n: int
    mode: str = "forward"
    dtype: str = "float32"

    suite = "models"
    op = "model"  # of the table alone: a network is no op

    @property
    def image(self) -> tuple[int, int, int]:
        """Shape [c, h, w] of one image."""
        return ARCHITECTURES[self.model].image

    @property
    def flops(self) -> int:
        """Operations of its convolutions and matrix products, computed directly; see :class:`ConvCase`.

        Backward needs as many for the weights' gradients and, but for the first layer, for the inputs'.
        """
        forward = [2 * products for products, _ in _layers(self.model)]
        if self.mode != "train":
            return self.n * sum(forward)
        return self.n * (3 * sum(forward) - forward[0])

    @property
    def min_bytes(self) -> int:
        """Least traffic: images and weights read once, logits written once, in a training step the weights as well.

        What lies between two layers is not counted: it may stay in the caches.
        """
        weights = sum(weights for _, weights in _layers(self.model))
        elements = self.n * (math.prod(self.image) + CLASSES) + weights
        return (elements + (weights if self.mode == "train" else 0)) * ITEM_SIZE[self.dtype]

    @property
    def shape(self) -> str:
        """The row's description, e.g. ``32x3x32x32 -> 10, 9 layers, 6.57 M weights``."""
        layers = _layers(self.model)
        c, h, w = self.image
        weights = sum(weights for _, weights in layers) / 1e6
        return f"{self.n}x{c}x{h}x{w} -> {CLASSES}, {len(layers)} layers, {weights:.3g} M weights"


@functools.cache
def _layers(model: str) -> tuple[tuple[int, int], ...]:
    """(multiply-adds of one image, weights) of each convolution and linear layer of the model, in order."""
    architecture = ARCHITECTURES[model]
    plain = build(architecture, architecture.image, CLASSES, fused=False).to("meta")
    found = []

    def note(layer: torch.nn.Module, _: object, y: torch.Tensor) -> None:
        weight = layer.get_parameter("weight")
        found.append((y.numel() * weight[0].numel(), weight.numel()))

    for layer in plain.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            layer.register_forward_hook(note)
    plain(torch.empty(1, *architecture.image, device="meta"))
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class DualCase:
    """The kernel of an infinitely wide network between n inputs and m others of d features: the matrix (``gram``), or
    its product with p vectors (``matvec``).

    ``same``: the others are the inputs themselves (m is n), so that the matrix is symmetric.
    """

    name: str
    n: int
    m: int
    d: int
    mode: str
    p: int = 0
    same: bool = False
    activation: str = "relu"
    kernel: str = "ntk"
    depth: int = 3
    dtype: str = "float32"

    suite = "infinite"

    @property
    def op(self) -> str:
        """The public op that runs it."""
        return f"dual_{self.mode}"

    @property
    def options(self) -> dict[str, Any]:
        """The op's own."""
        return {"kernel": self.kernel, "activation": self.activation, "depth": self.depth}

    @property
    def flops(self) -> int:
        """Operations of the inner products, and of the product with the vectors; each product is counted in full, also
        where the matrix is symmetric (and half of them suffice). What the layers cost comes on top."""
        return 2 * self.n * self.m * (self.d + self.p)

    @property
    def min_bytes(self) -> int:
        """Least traffic: inputs and vectors read once, the result written once."""
        inputs = self.n if self.same else self.n + self.m
        result = self.n * self.m if self.mode == "gram" else (self.n + self.m) * self.p
        return (inputs * self.d + result) * ITEM_SIZE[self.dtype]

    @property
    def shape(self) -> str:
        """The row's description, e.g. ``8192x8192x784, relu ntk of depth 3``."""
        text = f"{self.n}x{self.m}x{self.d}, {self.activation} {self.kernel} of depth {self.depth}"
        text += f", {self.p} vector{'s' if self.p > 1 else ''}" if self.p else ""
        return text + (", with itself" if self.same else "")


Case = ConvCase | LinearCase | NapCase | PatternCase | ModelCase | DualCase | AngleCase | IterationCase
AnyCase = TypeVar("AnyCase", ConvCase, LinearCase, NapCase)


def _extent(size: int, case: ConvCase) -> int:
    return (size + 2 * case.padding - case.kernel) // case.stride + 1


def _in_half(cases: Sequence[AnyCase]) -> list[AnyCase]:
    """Each case in bfloat16 and in float16."""
    return [
        dataclasses.replace(case, name=f"{case.name}-{short}", dtype=dtype)
        for case in cases
        for short, dtype in (("bf16", "bfloat16"), ("f16", "float16"))
    ]


def _conv_cases() -> list[ConvCase]:
    core = [
        ConvCase("mnist1", 256, 1, 32, 28, 28, 5, padding=2, needs_x=False),
        ConvCase("fashion2", 256, 32, 64, 14, 14, 5, padding=2),
        ConvCase("cifar1", 128, 3, 64, 32, 32, 3, padding=1, needs_x=False),
        ConvCase("cifar2", 128, 64, 128, 32, 32, 3, padding=1),
        ConvCase("res9", 128, 128, 256, 16, 16, 3, padding=1),
        ConvCase("vgg5", 32, 256, 512, 28, 28, 3, padding=1),
        ConvCase("stem", 8, 3, 64, 224, 224, 7, 2, 3, pool_kernel=3, pool_padding=1, needs_x=False),
    ]
    more = [
        ConvCase("cifar1-b1", 1, 3, 64, 32, 32, 3, padding=1, needs_x=False),
        ConvCase("res9-b1", 1, 128, 256, 16, 16, 3, padding=1),
        ConvCase("odd3", 48, 19, 45, 27, 23, 3, padding=1),
        ConvCase("odd5", 48, 13, 37, 25, 31, 5, padding=1),
        ConvCase("avg", 128, 64, 128, 32, 32, 3, padding=1, pool="avg"),
        ConvCase("nopool", 32, 64, 128, 32, 32, 3, padding=1, pool="none"),
        ConvCase("depthwise", 32, 128, 128, 32, 32, 3, padding=1, groups=128),
        ConvCase("pointwise", 16, 64, 256, 56, 56, 1, pool="none"),
        ConvCase("strided", 16, 64, 128, 56, 56, 3, 2, 1, pool="none"),
    ]
    half = _in_half([case for case in core + more if case.name in ("cifar1", "res9", "pointwise", "strided")])
    train = [dataclasses.replace(case, mode="train") for case in core]
    nap = [dataclasses.replace(case, mode="nap") for case in (core[0], core[1], core[3], half[2])]
    return core + more + half + train + nap + _residual_cases()


def _residual_cases() -> list[ConvCase]:
    """The last convolution of a block: those of a ResNet18 on CIFAR's images, and of a ResNet50's first and third
    stage."""
    sizes = ((64, 32), (128, 16), (256, 8), (512, 4))
    blocks = [
        ConvCase(f"res18-{k}", 32, k, k, size, size, 3, padding=1, pool="none", residual=True)
        for k, size in sizes
    ]
    blocks += [
        ConvCase("res50-256", 8, 64, 256, 56, 56, 1, pool="none", residual=True),
        ConvCase("res50-1024", 8, 256, 1024, 14, 14, 1, pool="none", residual=True),
    ]
    return blocks + [dataclasses.replace(case, mode="train") for case in blocks]


def _linear_cases() -> list[LinearCase]:
    core = [
        LinearCase("fcn1", 512, 784, 256, needs_x=False),
        LinearCase("fcn2", 512, 256, 256),
        LinearCase("cnn-fc", 128, 3136, 128),
        LinearCase("wide", 4096, 1024, 1024),
    ]
    more = [
        LinearCase("fcn1-b1", 1, 784, 256),
        LinearCase("odd", 333, 517, 211),
        LinearCase("wide-bf16", 4096, 1024, 1024, "bfloat16"),
        LinearCase("fcn1-f16", 512, 784, 256, "float16"),
    ]
    train = [dataclasses.replace(case, mode="train") for case in core]
    nap = [dataclasses.replace(case, mode="nap") for case in core]
    return core + more + train + nap


def _nap_cases() -> list[NapCase | PatternCase]:
    return [
        NapCase("pack", 4096, 16384),
        NapCase("pack-small", 512, 256),
        NapCase("pack-odd", 1000, 3001),
        NapCase("pack-bf16", 4096, 16384, "bfloat16"),
        NapCase("unpack", 4096, 16384, mode="unpack"),
        NapCase("unpack-odd", 1000, 3001, mode="unpack"),
        PatternCase("hamming", 512, 2000, 1024, "hamming"),
        PatternCase("topk", 100, 20_000, 1024, "topk", 5),
        PatternCase("topk-one", 1, 20_000, 1024, "topk", 5),
        PatternCase("topk-large", 1000, 200_000, 1024, "topk", 5),
        PatternCase("frequency", 50_000, 0, 1024, "frequency"),
        PatternCase("hash", 1_000_000, 0, 512, "hash"),
        PatternCase("group", 1_000_000, 50_000, 512, "group"),
        PatternCase("group-distinct", 1_000_000, 1_000_000, 512, "group"),
    ]


def _infinite_cases() -> list[DualCase]:
    gram = [DualCase("gram-2k", 2048, 2048, 784, "gram"), DualCase("gram-8k", 8192, 8192, 784, "gram")]
    gram.append(dataclasses.replace(gram[0], name="gram-2k-erf", activation="erf"))
    matvec = [
        DualCase(f"matvec-{n // 1000}k-{d}", n, n, d, "matvec", p)
        for n in (2000, 30_000)
        for d in (784, 20)
        for p in (1, 10)
    ]
    matvec.append(DualCase("matvec-1k-20", 1000, 1000, 20, "matvec", 1))  # small enough for KeOps
    matvec = [dataclasses.replace(case, name=f"{case.name}-p{case.p}") for case in matvec]
    return [
        dataclasses.replace(case, name=case.name + ("-self" if same else ""), same=same)
        for case in (*gram, *matvec)
        for same in (False, True)
    ]


def _model_cases(batches: dict[tuple[str, str], tuple[int, ...]]) -> list[ModelCase]:
    """A case for each batch of (model, mode)."""
    return [
        ModelCase(f"{model}-b{n}", model, n, mode) for (model, mode), sizes in batches.items() for n in sizes
    ]


SUITES: dict[str, list[Case]] = {
    "conv": [*_conv_cases()],
    "linear": [*_linear_cases()],
    "nap": [*_nap_cases()],
    "infinite": [*_infinite_cases()],
    "trained-kernels": [*trained_kernel_cases.cases()],
    "models": [
        # Two cores take seconds for each sample of a large network at 512 images; a card has those rows.
        *_model_cases(
            {
                ("fcn-mnist", "forward"): (1, 32, 512),
                ("cnn-fashion", "forward"): (1, 32, 512),
                ("resnet9", "forward"): (1, 32, 64),
                ("vgg11", "forward"): (1, 32, 128),
                ("fcn-mnist", "train"): (32, 512),
                ("cnn-fashion", "train"): (32, 512),
                ("resnet9", "train"): (32,),
                ("vgg11", "train"): (32,),
                ("resnet18", "forward"): (1, 32),
                ("resnet50-fixup", "forward"): (1, 4),
                ("resnet18", "train"): (32,),
                ("resnet18-fixup", "train"): (32,),
                ("resnet18-nf", "train"): (32,),
                ("resnet18-w16-fixup", "train"): (128,),
                ("resnet50-fixup", "train"): (4,),
                ("resnet50-nf", "train"): (4,),
            }
        )
    ],
}


def _cuda_cases() -> dict[str, list[Case]]:
    """Rows of a card only: batches large enough to fill it, and the dtypes of its tensor cores."""
    forward = {case.name: case for case in _conv_cases() if case.mode == "forward"}
    filling = [
        dataclasses.replace(forward[name], name=f"{name}-b512", n=512) for name in ("cifar2", "res9", "vgg5")
    ]
    core = [forward[name] for name in ("mnist1", "fashion2", "cifar2", "vgg5", "stem")]
    half = _in_half([*core, *filling])
    train = [dataclasses.replace(case, mode="train") for case in (*filling[:2], *_in_half(filling[:2]))]
    nap = [dataclasses.replace(case, mode="nap") for case in _in_half([forward["cifar2"]])]
    wide = LinearCase("wide", 4096, 1024, 1024)
    return {
        "conv": [*filling, *half, *train, *nap],
        "linear": [
            dataclasses.replace(wide, name="wide-f16", dtype="float16"),
            *(dataclasses.replace(case, mode="train") for case in _in_half([wide])),
        ],
        "nap": [
            NapCase("pack-f16", 4096, 16384, "float16"),
            PatternCase("hamming-large", 8192, 16_384, 1024, "hamming"),
            PatternCase("topk-one-large", 1, 1_000_000, 1024, "topk", 5),
            PatternCase("frequency-large", 1_000_000, 0, 1024, "frequency"),
        ],
        "trained-kernels": [*trained_kernel_cases.cuda_cases()],
        "models": [
            *_model_cases(
                {(model, mode): (512,) for model in ("resnet9", "vgg11") for mode in ("forward", "train")}
            )
        ],
    }


# One shape of each kind: what a first look, or a machine lent for minutes, can afford.
QUICK = {
    ("conv", "mnist1", "forward"),
    ("conv", "cifar1", "forward"),
    ("conv", "fashion2", "forward"),
    ("conv", "mnist1", "train"),
    ("conv", "mnist1", "nap"),
    ("linear", "fcn1", "forward"),
    ("nap", "pack", "pack"),
    ("nap", "unpack", "unpack"),
    ("infinite", "gram-2k", "gram"),
    ("infinite", "matvec-2k-784-p1", "matvec"),
    ("trained-kernels", "kernel-784", "kernel"),
    ("models", "cnn-fashion-b32", "forward"),
}


def suite_of(suite: str, device: str) -> list[Case]:
    """All cases of a suite on a device."""
    return SUITES[suite] + (_cuda_cases().get(suite, []) if device.startswith("cuda") else [])


def select(
    suites: Iterable[str] = ("conv", "linear", "nap"),
    *,
    shapes: Sequence[str] = (),
    modes: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    quick: bool = False,
    device: str = "cpu",
) -> list[Case]:
    """The cases asked for (of the ops' suites, unless told otherwise), in the suites' own order; a card has rows of
    its own besides.

    ``shapes``, ``modes`` and ``dtypes`` keep the rows whose name, mode or dtype they hold; empty keeps all.

    Raises:
        ValueError: an unknown suite, or a shape, mode or dtype that no chosen suite has (a misspelt name must
            not silently give an empty table).
    """
    suites = list(suites)
    unknown = [suite for suite in suites if suite not in SUITES]
    if unknown:
        raise ValueError(f"bench: unknown suite {', '.join(unknown)}; there are {', '.join(SUITES)}")
    cases = [case for suite in suites for case in suite_of(suite, device)]
    for what, wanted, key in (("shape", shapes, "name"), ("mode", modes, "mode"), ("dtype", dtypes, "dtype")):
        known = list(dict.fromkeys(getattr(case, key) for case in cases))
        missing = [value for value in wanted if value not in known]
        if missing:
            raise ValueError(f"bench: unknown {what} {', '.join(missing)}; there are {', '.join(known)}")
        if wanted:
            cases = [case for case in cases if getattr(case, key) in wanted]
    if quick and not shapes:
        cases = [case for case in cases if (case.suite, case.name, case.mode) in QUICK]
    return cases
