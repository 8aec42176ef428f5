"""Five minutes of the long run: what `make soak` does, with a seed that is derived from the commit."""

from __future__ import annotations

import pytest

from dev.demo.lab import Lab
from dev.soak.plan import Kind, draw
from dev.soak.run import Soak, show
from tests.harness.cluster import Tell
from tests.harness.long import long
from tests.simulation.seeds import of_commit

pytestmark = pytest.mark.timeout(1800)

SECONDS = 300.0


@long
def test_nothing_is_lost_repeated_or_grows_while_faults_come_for_five_minutes(installed: Lab, tell: Tell) -> None:
    seed, _ = of_commit()
    plan = draw(seed, SECONDS, tuple(Kind))
    tell(f"make soak MINUTES={SECONDS / 60:g} SEED={seed}")
    for fault in plan:
        tell(str(fault))
    assert show(Soak(installed, SECONDS, plan)(), installed.reporter) == ""
