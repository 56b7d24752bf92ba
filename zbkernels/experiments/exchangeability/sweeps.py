"""What the figures of Section 5 and Appendices E to G train: optimisers, their lists of epsilon and alpha, presets.

Zero-sum and non-zero-sum inputs (Procedure 1 with and without its lettered steps) are inputs to a trained network, not
to its training: one training serves a figure of each kind.

**Where the paper is silent, and what is done here.** No biases (one sweep has them, 0 at the start); ReLU after the
last layer too, as its layer's kernel is compared with the ReLU's; the loss is the mean over batch and pixels; weights
start normal with variance 2/in; every epoch has an order of its own, the same for all runs of a seed, and its last,
smaller batch is left out; layer l is shown x and y of Procedure 1 as they are (all layers are as wide as the image),
not what layer l - 1 makes of them. Figure 4 (left) lists no values: it takes those of Figure 7 at its own step size.
Figure 3 announces five rows for Adam and lists four values: those four.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from zbkernels.exchangeability.stacked_mlp import STACK_UP_TO

PLAIN, BIASED, TORCH_FORM, ASCENT = "without-bias", "with-bias", "torch-form", "ascent"
VARIANTS = (PLAIN, BIASED, TORCH_FORM, ASCENT)
LAYERS = 4
BATCH = 256
PAPER_ITERATIONS = 19_000

_DECADES = tuple(10.0**k for k in range(-10, 1))  # 1e-10 to 1
EPSILONS = (1e-32, 1e-22, 1e-18, 1e-16, *_DECADES)  # Figures 7, 9, 11


@dataclass(frozen=True)
class Sweep:
    """Networks that differ in epsilon, or for SGD in the step size alpha, alone.

    Attributes:
        key: of its folders and in the tables.
        figures: of the paper, in which it stands.
        data: image set.
        lr: step size; None: ``values`` are step sizes.
        values: of epsilon, or of alpha.
    """

    key: str
    figures: str
    data: str
    rule: str
    lr: float | None
    values: tuple[float, ...]
    form: str = "keras"
    variant: str = PLAIN
    seeds: int | None = None  # only so many

    @property
    def symbol(self) -> str:
        return "alpha" if self.lr is None else "epsilon"

    @property
    def title(self) -> str:
        rule = {"sgd": "SGD", "adam": "Adam", "rmsprop": "RMSProp", "nadam": "Nadam"}[self.rule]
        extra = {
            PLAIN: "",
            BIASED: ", with biases",
            TORCH_FORM: ", torch's form",
            ASCENT: ", ascent",
        }[self.variant]
        return rule + ("" if self.lr is None else f", step {self.lr:g}") + extra


@dataclass(frozen=True)
class Unit:
    """Networks of a sweep and seed that are trained as one stack."""

    sweep: Sweep
    seed: int
    values: tuple[float, ...]

    @property
    def folder(self) -> str:
        name = f"{self.sweep.key}-seed{self.seed}"
        return name if self.values == self.sweep.values else f"{name}-{self.values[0]:g}"

    def __str__(self) -> str:
        part = "" if self.values == self.sweep.values else f" {self.sweep.symbol} = {self.values[0]:g}"
        return f"{self.sweep.data}, {self.sweep.title},{part} seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """What a preset trains.

    Attributes:
        sides: image set -> pixels each way to which its images are averaged; None: as they are.
        train_images: the first so many; None: all.
        pairs: of inputs, for each measurement.
        looks: measurements after the first, spaced evenly in the logarithm of the iteration.
    """

    sweeps: tuple[Sweep, ...]
    sides: dict[str, int | None]
    iterations: int
    pairs: int = 16
    looks: int = 8
    train_images: int | None = None

    def units(
        self, variants: tuple[str, ...], seeds: tuple[int, ...], width: dict[str, int]
    ) -> Iterator[Unit]:
        """In the order in which they are worked on.

        Networks wider than ``STACK_UP_TO`` are trained one by one, the ends of a list first: a run that is cut off has
        those.

        Args:
            width: of each image set's networks.
        """
        for sweep in self.sweeps:
            if sweep.variant not in variants:
                continue
            stacks = [sweep.values]
            if width[sweep.data] > STACK_UP_TO:
                stacks = [(value,) for value in extremes_first(sweep.values)]
            for seed in seeds[: sweep.seeds]:
                yield from (Unit(sweep, seed, values) for values in stacks)

    def measured_after(self) -> list[int]:
        """Iterations after which the networks are looked at, from 0 to the last."""
        low = min(10, self.iterations)
        steps = max(self.looks - 1, 1)
        spaced = [round(low * (self.iterations / low) ** (k / steps)) for k in range(steps + 1)]
        return sorted({0, *spaced})


def extremes_first(values: tuple[float, ...]) -> list[float]:
    """First, last, second, last but one, ..."""
    ordered = sorted(values)
    return [ordered[i // 2] if i % 2 == 0 else ordered[-1 - i // 2] for i in range(len(ordered))]


CIFAR = (
    Sweep("cifar-adam", "3, 4, 5", "cifar-10", "adam", 0.001, EPSILONS),
    Sweep(
        "cifar-sgd",
        "3, 4, 5, 6",
        "cifar-10",
        "sgd",
        None,
        (1e-8, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 1.0, 10.0, 14.0),
    ),
    Sweep("cifar-adam-0.002", "7", "cifar-10", "adam", 0.002, EPSILONS),
    Sweep("cifar-rmsprop", "8, 9", "cifar-10", "rmsprop", 0.001, EPSILONS),
    Sweep("cifar-nadam", "10, 11", "cifar-10", "nadam", 0.002, EPSILONS),
)
_MNIST_ADAM = Sweep(
    "mnist-adam", "15, 16", "mnist", "adam", 0.001, (1e-32, 1e-16, 1e-8, 1e-6, 1e-5, 1e-4, 1e-2, 0.1, 1.0)
)
_MNIST_SGD = Sweep(
    "mnist-sgd", "13, 14", "mnist", "sgd", None, (1e-3, 1e-2, 0.1, 1.0, 10.0, 18.0, 20.0, 22.0, 24.0)
)
MNIST = (
    Sweep("mnist-adam-0.002", "12", "mnist", "adam", 0.002, (1e-32, 1e-16, 1e-8, 1e-4, 1e-2, 0.1, 1.0, 10.0)),
    _MNIST_ADAM,
    _MNIST_SGD,
)
OURS = (
    replace(_MNIST_ADAM, key="mnist-adam-bias", figures="", variant=BIASED),
    replace(_MNIST_ADAM, key="mnist-adam-torch", figures="", variant=TORCH_FORM, form="torch"),
    replace(_MNIST_SGD, key="mnist-ascent", figures="", variant=ASCENT, values=(1e-3, 1e-2)),
)


def _cut(values: dict[str, tuple[float, ...]], ours: int | None) -> tuple[Sweep, ...]:
    """The sweeps named, with these values; those that are not the paper's for so many seeds."""
    by_key = {sweep.key: sweep for sweep in (*CIFAR, *MNIST, *OURS)}
    return tuple(
        replace(by_key[key], values=chosen, seeds=None if by_key[key].variant == PLAIN else ours)
        for key, chosen in values.items()
    )


_AROUND = (1e-32, 1e-16, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
_FEWER = (1e-32, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0)
PLANS = {
    "smoke": Plan(
        tuple(
            replace(sweep, data="digits")
            for sweep in _cut(
                {
                    "mnist-adam": (1e-32, 1.0),
                    "cifar-rmsprop": (1e-32, 1.0),
                    "cifar-nadam": (1e-32, 1.0),
                    "mnist-sgd": (0.1, 1e6),
                    "mnist-adam-bias": (1e-32, 1.0),
                    "mnist-adam-torch": (1e-32, 1.0),
                    "mnist-ascent": (1e-3,),
                },
                ours=1,
            )
        ),
        {"digits": None},
        iterations=40,
        pairs=4,
        looks=2,
    ),
    "quick": Plan(
        _cut(
            {
                "mnist-adam": (1e-32, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0),
                "mnist-sgd": (0.1, 1.0, 10.0),
                "mnist-ascent": (1e-3,),
            },
            ours=1,
        ),
        {"mnist": 12},
        iterations=1_500,
        train_images=20_000,
    ),
    "reduced": Plan(
        _cut(
            {
                "cifar-adam": _AROUND,
                "cifar-sgd": (1e-3, 0.1, 0.5, 10.0, 14.0),
                "cifar-rmsprop": _FEWER,
                "cifar-nadam": _FEWER,
                "mnist-adam": _AROUND,
                "mnist-sgd": (0.1, 1.0, 10.0, 18.0, 24.0),
                "mnist-adam-bias": (1e-32, 1e-8, 1e-3, 1.0),
                "mnist-adam-torch": (1e-32, 1e-8, 1e-3, 1e-2),
                "mnist-ascent": (1e-3, 1e-2),
            },
            ours=1,
        ),
        {"cifar-10": 10, "mnist": 16},
        iterations=4_000,
    ),
    "paper": Plan((*CIFAR, *MNIST, *OURS), {"cifar-10": None, "mnist": None}, iterations=PAPER_ITERATIONS),
}
