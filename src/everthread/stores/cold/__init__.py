"""The cold tier: idle threads in an archive, brought back when they are used."""
