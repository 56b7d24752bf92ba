"""The experiments of "Exchangeability and Kernel Invariance in Trained MLPs"."""
