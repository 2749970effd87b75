"""The keys of persons: kept outside the stores whose values they seal."""
