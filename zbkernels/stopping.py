"""Being asked to stop: SIGTERM ends a command as Ctrl-C does, with one line and what was done kept."""

from __future__ import annotations

import signal
import threading
from types import FrameType

# What the command answers, as shells count: 128 + the number of the signal.
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


class Terminated(KeyboardInterrupt):
    """SIGTERM came. A KeyboardInterrupt, so that nothing takes it for an error."""


def exit_code(stop: KeyboardInterrupt) -> int:
    """What a command ends with that has been stopped, and has said so."""
    # Python ends a process by SIGINT itself once a KeyboardInterrupt has come through exec() of text, as where a
    # dataclass is made, though it was caught above. The next text that is run takes the mark away.
    exec("")
    return TERMINATED if isinstance(stop, Terminated) else INTERRUPTED


def heed_sigterm() -> None:
    """Raise :class:`Terminated` at SIGTERM, unless it is ignored or someone else's already."""
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends it at once
    raise Terminated
