"""The package's version, stated once: setuptools, the build and ``zbkernels.__version__`` read it from here."""

__version__ = "0.1.0"
