"""For people who test with Everthread or write stores for it: a conformance suite, a model, failing disks."""
