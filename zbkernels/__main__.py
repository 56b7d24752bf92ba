"""``python -m zbkernels`` is ``zb``: torchrun starts a module by its name."""

from zbkernels.cli import main

if __name__ == "__main__":  # workers that read images import this file under another name
    main()
