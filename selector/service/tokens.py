"""The tokens that are valid at the moment: those the server was started with, and those of the token file.

The file is looked at whenever a token is: what was removed from it stops working with the next call. A file that turns
unusable changes nothing but the log, for half of an edit must neither lock everybody out nor let anybody in.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from selector.grants import ANYBODY, Grant, digest_of
from selector.service.token_file import TokenFileError, parse
from selector.service.watched_files import WatchedFiles

_log = logging.getLogger("selector.service")


class Tokens:
    """Valid tokens; used on one thread."""

    def __init__(self, fixed: Sequence[Grant], path: Path | None, now: Callable[[], float]) -> None:
        """``now`` gives Unix seconds."""
        self._fixed = tuple(fixed)
        self._path = path
        self._files = WatchedFiles([path] if path else [], now)
        self._listed: tuple[Grant, ...] = ()
        self.required = bool(fixed) or path is not None

    def load(self) -> None:
        """Read the file for the first time.

        Raises:
            ValueError: it cannot be used.
        """
        if self._path is None:
            return
        try:
            self._read(force=True)
        except (OSError, TokenFileError) as error:
            raise ValueError(f"token file {self._path}: {error}") from None

    def refresh(self, *, force: bool = False) -> None:
        """Read the file if it has changed; what cannot be used is logged and left alone."""
        if self._path is None:
            return
        try:
            self._read(force=force)
        except (OSError, TokenFileError) as error:
            _log.error("TOKEN FILE NOT USABLE, the former tokens stay valid: %s: %s", self._path, error)

    def grant(self, token: str) -> Grant | None:
        """What a token lets its holder do; None = it is not valid."""
        if not self.required:
            return ANYBODY
        self.refresh()
        presented = digest_of(token)
        found: Grant | None = None
        # Every token is compared, in constant time, so that timing tells nothing about any of them.
        for grant in (*self._fixed, *self._listed):
            if hmac.compare_digest(presented, grant.digest):
                found = grant
        return found

    def _read(self, *, force: bool) -> None:
        contents = self._files.changed(force=force)
        if contents is None:
            return
        self._listed = parse(contents[0])
        names = ", ".join(grant.name or "unnamed" for grant in self._listed[:20])
        _log.info("token file %s: %d tokens (%s)", self._path, len(self._listed), names)
