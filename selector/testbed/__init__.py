"""A tiny but real RL fine-tuning job: string tasks, a small transformer, GRPO, and a demo that compares ways of
selecting prompts through the service. Nothing of the service depends on it.
"""
