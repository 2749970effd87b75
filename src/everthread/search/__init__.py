"""Finding text in what agents keep: ranked, with an excerpt of each place."""
