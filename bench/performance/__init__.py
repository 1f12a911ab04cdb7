"""How fast the service is, beside what it replaces: one module, one command, a few figures of docs/performance.md.

Everything that is compared runs in one process run, in turns, so that what else the machine does meets all alike; read
ratios, not absolute times.
"""
