"""Identity on one machine: tokens signed with a secret of the state folder, and leadership by a lock on a file in it.

`SignedTokens` serves the coordinator as `TokenReviewer`, `FileLeadership` as `Leadership`. A token says which pod it was made
for, and is good for as long as that pod is there. Whoever may read the state folder may do anything with it.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import sqlite3
from pathlib import Path
from typing import Any

from shardherd.adapters.local.objects import POD, STATEFUL_SET, Json, Objects
from shardherd.ports import Caller, ReviewUnavailableError

log = logging.getLogger(__name__)

USER = "local:user"
"""The caller that the command line is: it may look at every group, and force checkpoints."""

SECRET_BYTES = 32

LOOK = 0.2
"""Seconds between looks at the lock."""


def secret_of(folder: Path) -> bytes:
    """The folder's secret, which is made the first time, and in the place of one that is not whole: anybody could know it."""
    path = folder / "token.key"
    if (found := _secret(path)) is not None:
        return found
    made = folder / "token.key.new"
    made.unlink(missing_ok=True)
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(SECRET_BYTES))
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)
    return bytes.fromhex(path.read_text())


def _secret(path: Path) -> bytes | None:
    """What the file has; None if it is not there, or was not written to its end, say on a full disk."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    return bytes.fromhex(text) if re.fullmatch(f"[0-9a-f]{{{2 * SECRET_BYTES}}}", text) else None


class SignedTokens:
    """TokenReviewer for tokens that `of_pod` and `of_user` have made with the same secret."""

    def __init__(self, secret: bytes, objects: Objects) -> None:
        self._secret = secret
        self._objects = objects

    def of_pod(self, pod: Json) -> str:
        """A token for this very pod."""
        metadata = pod["metadata"]
        owner = _controller(pod)
        claims = {
            "namespace": metadata["namespace"],
            "account": pod["spec"].get("serviceAccountName", "default"),
            "pod": metadata["name"],
            "uid": metadata["uid"],
            "set": owner["name"] if owner.get("kind") == STATEFUL_SET else "",
        }
        return self._signed(claims)

    def of_user(self) -> str:
        """A token for whoever owns the state folder."""
        return self._signed({"user": USER})

    async def review(self, token: str) -> Caller | None:
        """See TokenReviewer."""
        claims = self._claims(token)
        if claims is None:
            return None
        if claims.get("user") == USER:
            return Caller("", USER, "", "", "", USER)
        try:
            pod = await asyncio.to_thread(self._objects.get, (POD, claims["namespace"], claims["pod"]))
        except sqlite3.Error as error:
            raise ReviewUnavailableError(f"the caller's token cannot be reviewed now: {error}") from error
        if pod is None or pod["metadata"]["uid"] != claims["uid"]:
            return None
        key = (STATEFUL_SET, claims["namespace"], claims["set"])
        stateful_set = await asyncio.to_thread(self._objects.get, key) if claims["set"] else None
        group_uid = _controller(stateful_set).get("uid", "") if stateful_set is not None else ""
        return Caller(claims["namespace"], claims["account"], claims["pod"], claims["uid"], claims["set"], group_uid=group_uid)

    async def may(self, caller: Caller, verb: str, namespace: str, name: str) -> bool:
        """See TokenReviewer. There are no roles here: the folder's owner may, and nobody else."""
        del verb, namespace, name
        return caller.user == USER

    def _signed(self, claims: dict[str, str]) -> str:
        payload = base64.urlsafe_b64encode(json.dumps(claims, sort_keys=True).encode()).decode().rstrip("=")
        return f"{payload}.{self._signature(payload)}"

    def _signature(self, payload: str) -> str:
        return hmac.new(self._secret, payload.encode(), hashlib.sha256).hexdigest()

    def _claims(self, token: str) -> dict[str, Any] | None:
        payload, _, signature = token.partition(".")
        if not hmac.compare_digest(self._signature(payload).encode(), signature.encode(errors="replace")):
            return None
        found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return found


def _controller(body: Json) -> Json:
    """The owner that controls this object; empty if there is none."""
    owners = body["metadata"].get("ownerReferences", ())
    return next((owner for owner in owners if owner.get("controller")), {})


class FileLeadership:
    """Leadership by an exclusive lock on `path`, which the kernel gives back with the end of the process, however it ends.

    The file says who holds it. Whoever takes the file away takes the leadership away.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._deadline = float("-inf")
        self._lost = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def acquire(self) -> None:
        """See Leadership."""
        # The kernel tells nobody that a lock was given back, but who waits for it in a call of its own.
        while not self.take():  # noqa: ASYNC110
            await asyncio.sleep(LOOK)
        self._watching = asyncio.create_task(self._watch(), name="leadership")

    def take(self) -> bool:
        """Take the lock if nobody else has it, or if we have it already."""
        if self._descriptor is not None:
            return True
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        if not _same_file(descriptor, self._path):
            os.close(descriptor)  # it was taken away before we had it
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor
        self._deadline = float("inf")
        return True

    def deadline(self) -> float:
        return self._deadline

    async def lost(self) -> None:
        await self._lost.wait()

    async def release(self) -> None:
        """See Leadership."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        self.let_go()

    def let_go(self) -> None:
        """Give the lock back."""
        self._deadline = float("-inf")
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    async def _watch(self) -> None:
        while self._descriptor is not None and _same_file(self._descriptor, self._path):  # noqa: ASYNC110
            await asyncio.sleep(LOOK)
        log.error("%s is not the file any more on which this operator has its lock", self._path)
        self._deadline = float("-inf")
        self._lost.set()


def holder(path: Path) -> int | None:
    """The process that holds the lock on this file; None if nobody does, 0 if it has not said who it is."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        said = os.pread(descriptor, 32, 0).decode()
        return int(said) if said.isdigit() else 0
    finally:
        os.close(descriptor)
    return None


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (ours.st_dev, ours.st_ino) == (found.st_dev, found.st_ino)
