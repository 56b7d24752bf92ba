"""Experiments on "When Are Bias-Free ReLU Networks Effectively Linear Networks?" (Zhang, Saxe and Latham)."""
