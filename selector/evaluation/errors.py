"""What can be wrong with the data of an evaluation."""

from __future__ import annotations


class DataError(ValueError):
    """The data cannot be evaluated; the message is for the user and names file, column and row."""


class OptionError(ValueError):
    """An option does not fit the data.

    Attributes:
        option: as on the command line, such as ``--model``.
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option
