"""The device code. Importing a module of this package imports ``triton``; the op modules do so on first use."""
