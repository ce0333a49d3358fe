"""Notebooks, and what keeps them in order: see README.md."""
