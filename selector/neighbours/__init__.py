"""Nearest neighbours among embeddings, and the near-duplicates of a pool that they show."""
