"""Runs that are cut off, as by Ctrl-C."""

from __future__ import annotations

from zbkernels.experiments.progress import Progress


def cut_at(progress: Progress, batch: int) -> Progress:
    """``progress``, which raises KeyboardInterrupt in place of counting that batch, the first being 1."""
    done, plain_step = 0, progress.batch_done

    def step() -> None:
        nonlocal done
        done += 1
        if done == batch:
            raise KeyboardInterrupt
        plain_step()

    progress.batch_done = step  # type: ignore[method-assign]
    return progress
