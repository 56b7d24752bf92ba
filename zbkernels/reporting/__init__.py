"""One HTML page out of the folders that runs left: ``zb report DIR...``.

:mod:`runs` finds and reads them, :mod:`markdown` makes HTML of their tables, :mod:`pictures` embeds their figures, and
:mod:`page` puts the page together. Nothing that a folder holds is trusted: text is escaped, pictures are bounded, and
what cannot be read is said on the page.
"""

from zbkernels.reporting.page import write_page
from zbkernels.reporting.runs import Run, find, read

__all__ = ["Run", "find", "read", "write_page"]
