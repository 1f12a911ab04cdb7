"""Which prompts to roll out next: scores, exact keys with counter-based noise, and the arms of a batch."""
