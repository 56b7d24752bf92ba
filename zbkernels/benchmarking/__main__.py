"""``python -m zbkernels.benchmarking``: see command.py."""

import sys

from zbkernels.benchmarking.command import main

sys.exit(main())
