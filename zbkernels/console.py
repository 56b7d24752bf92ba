"""The console that all output of ``zb`` with columns, colours or a bar goes through."""

from __future__ import annotations

import rich.console


class Console(rich.console.Console):
    """Rich's, but that its reader has gone is raised to the caller, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        raise  # rich calls this where it has caught the BrokenPipeError
