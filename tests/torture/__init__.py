"""The long runs: the same checks as in ``tests/crash``, for as long as one likes.

``python -m tests.torture.kill --kills 100000`` and ``python -m tests.torture.power --states 1000000``.
"""
