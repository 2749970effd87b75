"""Moving what a store holds to another one: through an archive, or directly."""
