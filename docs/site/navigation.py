"""Which page stands in which part of the site. The build fails where a page of docs has no place here, and where a
place has no page.
"""

from __future__ import annotations

# Part -> pages by their place in the repository; a `*` takes what is left in that folder, by name.
NAVIGATION: dict[str, tuple[str, ...]] = {
    "Start": ("docs/installation.md", "README.md", "docs/command-line.md"),
    "Tutorials": (
        "docs/fuse.md",
        "docs/layers-by-hand.md",
        "docs/workflows.md",
        "docs/invariance.md",
        "docs/nap.md",
        "docs/from-neural-tangents.md",
        "examples/*/README.md",
    ),
    "Knowing what happens": (
        "docs/which-kernel.md",
        "docs/measuring.md",
        "docs/tuning.md",
        "docs/limits.md",
        "docs/robustness.md",
        "docs/robustness-faults.md",
    ),
    "Papers": (
        "docs/papers/scalar-invariant-networks.md",
        "docs/papers/bias-free-linear.md",
        "docs/papers/linearized-difference-networks.md",
        "docs/papers/exchangeability.md",
        "docs/papers/*.md",
    ),
    "Results": ("docs/results/README.md", "docs/composite.md", "docs/results/*/table.md"),
    "Benchmarks": ("bench/README.md", "bench/results/*.md"),
    "Kernels": ("csrc/*/README.md", "csrc/common/cuda_emulation/README.md"),
    "Project": (
        "CONTRIBUTING.md",
        "docs/decisions.md",
        "docs/packaging.md",
        "docs/wheel-matrix.md",
        "docs/releasing.md",
        "CHANGELOG.md",
    ),
}
# Pages that another one has as its own list, not the contents at the side.
BELOW = {"Results": "docs/results/README.md", "Benchmarks": "bench/README.md"}
# What the contents call a page whose title says too little beside the others.
TITLES = {"README.md": "Overview"}
