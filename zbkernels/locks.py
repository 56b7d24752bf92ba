"""One writer for a folder: a lock that names its holder and that no death leaves behind.

The lock is the kernel's (``flock``) on a file that says who holds it, so it ends with its process however that ends,
and what a dead one wrote there is overwritten. Over NFS Linux turns it into a lock of the server (NFS 4, or 3 with its
lock service), so that machines exclude each other there too. A file system without locks is refused, not trusted.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Busy(Exception):
    """Another process holds the lock; ``holder`` says which: "process 123 on host", or "another process"."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


@contextmanager
def locked(path: Path, *, keep: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold the lock ``path`` while the block runs. Its folder is made where it is not there.

    Args:
        keep: leave the file when done (a killed process always does).
        wait: for the process that holds it. Such a lock is held for moments only and names nobody, so that it can be
            had on a full disk, too.

    Raises:
        Busy: another process holds it, and it was not to be waited for.
        OSError: the file cannot be written, or the file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _acquired(path, wait)
    try:
        if not wait:
            _sign(path, handle)
        yield
    finally:
        try:
            if not keep:
                path.unlink(missing_ok=True)  # while it is held: who waits for it looks again
        finally:
            os.close(handle)


def _sign(path: Path, handle: int) -> None:
    try:
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {platform.node()}\n".encode())
    except OSError as error:  # a full disk tells no name
        error.filename = str(path)
        raise


def _acquired(path: Path, wait: bool) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = os.stat(path)
        except BlockingIOError:
            holder = re.fullmatch(
                r"process \d+ on [\w.-]+", os.read(handle, 200).decode("ascii", "replace").strip()
            )
            os.close(handle)
            raise Busy(holder[0] if holder else "another process") from None
        except FileNotFoundError:  # its holder was done with it between our two steps
            os.close(handle)
            continue
        except OSError as error:
            os.close(handle)
            error.filename = str(path)
            raise
        mine = os.fstat(handle)
        if (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
            return handle
        os.close(handle)
