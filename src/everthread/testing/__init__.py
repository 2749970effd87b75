"""For people who test with Everthread or write stores for it: a conformance suite, a model, failing disks.

PYTEST_DONT_REWRITE: the plugin in here is loaded before anybody can ask for its assertions to be rewritten,
which pytest would warn about. It concerns this file alone.
"""
