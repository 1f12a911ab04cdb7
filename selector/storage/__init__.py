"""Durable storage of runs, pools and the event log of each run, in SQLite."""
