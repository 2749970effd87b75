"""Erasure, in the async colour; the blocking one is generated from it."""
