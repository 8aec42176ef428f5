"""What every SecretReader must do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from shardherd.ports import SecretReader, SecretRefusedError, SecretUnavailableError


@dataclass
class SecretsLab:
    """A reader, a namespace, how to put a Secret there (name, data, with our label), and how to cut the reader off."""

    reader: SecretReader
    namespace: str
    put: Callable[[str, dict[str, bytes], bool], Awaitable[None]]
    cut_off: Callable[[], None]


class SecretsContract:
    """A subclass gives the fixture `lab`."""

    async def test_a_secret_with_our_label_is_read_whole(self, lab: SecretsLab) -> None:
        await lab.put("kafka", {"username": b"app", "password": b"\x00\xff"}, True)

        assert await lab.reader.read(lab.namespace, "kafka") == {"username": b"app", "password": b"\x00\xff"}

    async def test_what_changes_is_seen_at_the_next_reading(self, lab: SecretsLab) -> None:
        await lab.put("kafka", {"password": b"one"}, True)
        await lab.reader.read(lab.namespace, "kafka")
        await lab.put("kafka", {"password": b"two"}, True)

        assert await lab.reader.read(lab.namespace, "kafka") == {"password": b"two"}

    async def test_a_secret_without_our_label_is_refused_by_name(self, lab: SecretsLab) -> None:
        await lab.put("database", {"password": b"hunter2"}, False)

        with pytest.raises(
            SecretRefusedError, match=r"'database' .* has no label shardherd\.dev/kafka-credentials=true"
        ) as raised:
            await lab.reader.read(lab.namespace, "database")
        assert "hunter2" not in str(raised.value)

    async def test_a_secret_that_is_not_there_is_refused_by_name(self, lab: SecretsLab) -> None:
        with pytest.raises(SecretRefusedError, match=f"there is no Secret 'nothing' in namespace '{lab.namespace}'"):
            await lab.reader.read(lab.namespace, "nothing")

    async def test_one_that_cannot_be_read_now_is_no_refusal(self, lab: SecretsLab) -> None:
        lab.cut_off()

        with pytest.raises(SecretUnavailableError, match="Secret 'kafka' in namespace"):
            await lab.reader.read(lab.namespace, "kafka")
