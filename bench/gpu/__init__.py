"""What gpu_check.sh runs: the parts, the programs that they start, and what they write.

``check.py`` holds the options and the order, ``parts.py`` the list of parts. What runs in the checking process
imports no torch, so that a hung driver cannot stop it: ``probe``, ``process``, ``build``, ``sanitizer``,
``profiler``, ``report``. The programs do the work in processes of their own and print a line for each row:
``load``, ``samples``, ``robust``, ``speed``, ``models``, ``touch``; ``rows.py`` is how they do it, ``card.py``
what they ask of a device, and ``rehearse.py`` goes through all of them without a card.
"""
