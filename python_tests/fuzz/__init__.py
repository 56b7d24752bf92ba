"""Random problems for every op, on every backend of the machine, against float64 (``make fuzz``).

A problem is a plain dictionary, drawn from (seed, family, number) alone: shapes, memory layouts, options and kinds of
values. ``tensors.py`` draws and builds tensors; ``conv.py``, ``linear.py``, ``patterns.py`` and ``dual.py`` each draw
and check the problems of some ops; ``judge.py`` has the tolerances. ``ways.py`` says on what a problem can run: a
backend and an instruction set, in a process of its own, so that a crash is a finding as well. ``run.py`` hands problems
out, and makes those that fail smaller.
"""
