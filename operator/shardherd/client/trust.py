"""The authorities that the coordinator's certificate is verified with: a PEM file that is read again when it changes.

Called by the client before each request. The operator replaces the file's content while the pod runs, long before the
coordinator serves with a certificate of another authority. Decides nothing else.
"""

from __future__ import annotations

import ssl
from pathlib import Path


class TrustUnreadableError(Exception):
    """The file is not there or holds no certificate. The message names it and the remedy."""


class Trust:
    """The authorities in `file`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._version: tuple[int, int, int] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """What to call with now: the same object until the file changes, so that connections are kept.

        A file that was good once and cannot be read now leaves what it said. Raises TrustUnreadableError.
        """
        try:
            found = self.file.stat()
            version = (found.st_mtime_ns, found.st_size, found.st_ino)
            if self._context is None or version != self._version:
                self._context, self._version = _context(self.file.read_text()), version
        except (OSError, ValueError) as error:
            if self._context is None:
                raise TrustUnreadableError(
                    f"cannot read the authorities that the coordinator is believed by: {error}; {self.file} must hold PEM"
                    " certificates, as the ConfigMap shardherd-ca in the group's namespace does"
                ) from error
        return self._context


def _context(pem: str) -> ssl.SSLContext:
    if not pem.strip():
        # The ssl module would take nothing for "the system's authorities".
        raise ValueError("the file is empty")
    return ssl.create_default_context(cadata=pem)
