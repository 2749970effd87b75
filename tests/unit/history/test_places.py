"""Which positions chunks have, and what is left beside them."""

from __future__ import annotations

import random

from everthread.history.packs import Chunk, Places


def test_places_against_counting_every_position(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        chunks, at = [], rng.randrange(4)
        for _ in range(rng.randrange(5)):
            count = rng.randrange(1, 5)
            chunks.append(Chunk(rng.choice("ab"), at, count, b"", b"x"))
            at += count + rng.choice((0, 0, 1, 3))
        rng.shuffle(chunks)
        places = Places(chunks)
        stub = Chunk("a", rng.randrange(20), rng.randrange(1, 12), b"", b"")
        taken = {p for c in chunks if c.log == "a" for p in range(c.position, c.end)}
        own = set(range(stub.position, stub.end))
        assert bool(places.within(stub)) == bool(own & taken)
        rest = list(places.beside(stub))
        assert all(piece.log == "a" and piece.pruned and piece.count > 0 for piece in rest)
        assert [p for piece in rest for p in range(piece.position, piece.end)] == sorted(own - taken)
