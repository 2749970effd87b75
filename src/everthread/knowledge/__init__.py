"""What can be asked of a store in PostgreSQL besides threads: documents in SQL, knowledge by embeddings."""
