"""``python -m gpu``: see check.py."""

import sys

from gpu.check import main

sys.exit(main())
