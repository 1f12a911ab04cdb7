"""Largest numbers of the protocol that are checked in more places than the service."""

from __future__ import annotations

LARGEST_STEP = 2**53 - 1
MOST_PRIOR_TRIALS = 2**31 - 1
