"""The Kinesis that most tests read keeps the contract of the service."""

from __future__ import annotations

import pytest

from tests.contract.kinesis import KinesisContract
from tests.harness.kinesis import PlayedKinesis


class TestPlayed(KinesisContract):
    @pytest.fixture
    def service(self, kinesis: PlayedKinesis) -> PlayedKinesis:
        return kinesis
