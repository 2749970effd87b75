"""The long runs: the same checks as in ``tests/crash`` and ``tests/properties``, for as long as one likes.

``python -m tests.torture.kill --kills 100000``, ``python -m tests.torture.power --states 1000000``, and so on
for ``corrupt``, ``hostile`` and ``io``; ``cluster`` runs the conformance suite on a Valkey cluster.
"""
