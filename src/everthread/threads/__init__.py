"""Threads: commit, fork, rewind, diff, merge, step."""
