"""Whether an operator answers and leads, asked from outside until it does: what `helm test` runs.

Called by `shardherd ping`. It needs neither a token nor a group, and so nothing of the typed client.
"""

from __future__ import annotations

import ssl
import sys
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path

from shardherd.clock import boot_time

INTERVAL, TIMEOUT = 1.0, 5.0
"""Seconds between two attempts, and for each."""


def ping(url: str, within: float, ca_file: Path | None = None) -> bool:
    """Wait until what answers at `url` leads and has loaded its groups; False if it does not within so many seconds.

    What came of it is printed. `ca_file`: PEM file of the authorities to believe it by, by default the system's.
    """
    until = boot_time() + within
    while True:
        said = _answer(url, ca_file)
        if said == "ok":
            print(f"{url} answers and leads")
            return True
        if boot_time() >= until:
            print(f"shardherd: no operator that leads answers at {url} within {within:g} s: {said}", file=sys.stderr)
            return False
        time.sleep(INTERVAL)


def _answer(url: str, ca_file: Path | None) -> str:
    """What `url` says of itself, or why it does not."""
    try:
        # Read at each attempt: the operator may have just made it.
        context = None if ca_file is None else ssl.create_default_context(cafile=str(ca_file))
    except OSError as error:
        return f"{ca_file} has no authorities that can be read: {error.strerror}"
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/readyz", timeout=TIMEOUT, context=context) as response:
            said: bytes = response.read()
            return said.decode(errors="replace").strip()
    except (OSError, HTTPException) as error:
        return str(error)
