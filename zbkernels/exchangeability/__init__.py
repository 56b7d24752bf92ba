"""Exchangeability and kernels of trained MLPs: pairs of inputs, layer kernels, optimisers, stacked networks, bounds.

Tools for "Exchangeability and Kernel Invariance in Trained MLPs" (Tsuchida, Roosta and Gallagher), of use outside its
experiments too. Import from the modules: :mod:`.optimizers`, :mod:`.stacked_mlp`, :mod:`.row_means`, ...
"""
