"""Exchangeability and kernels of trained networks: pairs of inputs at an angle, layer kernels, weights, bounds.

After "Exchangeability and Kernel Invariance in Trained MLPs" (Tsuchida, Roosta, Gallagher). Import the modules:
``from zbkernels.exchangeability.pairs import procedure1``.
"""
