"""What the documentation says to type and only a kubelet answers: logs, programs in pods, ports that are forwarded.

The group is one of plain consumers, which say nothing: that its log can be asked for is all that is seen of it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from dev.demo.kube import is_ready
from dev.demo.lab import Lab
from tests.e2e.groups import FAULTS
from tests.e2e.plain import Plain, prepare, reading
from tests.harness.ctrl_c import CTRL_C_ENDS
from tests.harness.long import long
from tests.harness.typed import NODE, Command, of

pytestmark = [pytest.mark.timeout(300), long]


@pytest.fixture(scope="module")
def group(installed: Lab) -> Iterator[Plain]:
    """A group that reads, in the place of those that the documentation names."""
    prepare(installed)
    with reading(installed, "typed", consumers=1, shards=2) as group:
        group.until("has a ready pod", lambda: all(is_ready(pod) for pod in group.pods()) and group.pods(), 120)
        yield group


def filled(command: Command, group: Plain) -> str:
    """A command about this group."""
    text = re.sub(r"-n (streams|shop)\b", f"-n {FAULTS}", command.text)
    return re.sub(r"\b(clickstream|clicks)(?=-0|\b)", group.name, text).removesuffix(" &")


@pytest.mark.parametrize("command", list({each.text: each for each in of(NODE)}.values()), ids=str)
def test_what_needs_a_node_does_what_the_page_says(command: Command, group: Plain, installed: Lab) -> None:
    tools = installed.cluster.tools
    environment = {**installed.cluster.environment(), "PATH": f"{tools.kubectl.parent}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        [*CTRL_C_ENDS, "bash", "-c", f"exec {filled(command, group)}"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if "port-forward" in command.text:
        said = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        port = command.text.removesuffix(" &").rpartition(" ")[2]
        assert re.fullmatch(rf"Forwarding from 127\.0\.0\.1:{port} -> \S+\n", said), said + err
        return
    said, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    if "-l shardherd.dev/leader=true" in command.text:
        fields = {"time", "level", "logger", "message"}
        assert [line for line in said.splitlines() if not fields <= json.loads(line).keys()] == []
        assert said != ""
    elif command.text.endswith("-o json"):
        assert group.name in json.dumps(json.loads(said))
    elif "brokers" in command.text:
        assert group.name in said
