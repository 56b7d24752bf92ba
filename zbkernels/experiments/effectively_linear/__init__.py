"""Experiments on "When Are Bias-Free ReLU Networks Effectively Linear Networks?" (Zhang, Saxe and Latham).

What is stated there is derived, and each statement has its numbers, in docs/papers/bias-free-linear.md.
"""
