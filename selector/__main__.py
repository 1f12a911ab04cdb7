"""``python -m selector`` is the ``selector`` command."""

from selector.cli import main

if __name__ == "__main__":
    main()
