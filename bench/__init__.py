"""Measurements; each module prints its figures and writes them with --json."""
