"""Ports of this machine are given once, also where many processes ask for some at the same moment and nobody listens yet."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from dev.cluster import ports
from dev.cluster.errors import ClusterError
from dev.cluster.ports import HOST, free_ports

OTHER = """
import sys
from dev.cluster.ports import free_ports
print(*free_ports(2, int(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def test_a_port_is_given_once_and_nobody_listens_on_it() -> None:
    given = free_ports(20)

    assert len(set(given)) == 20
    for port in given:
        with socket.create_server((HOST, port)):
            pass


def test_a_port_on_which_someone_listens_is_not_given() -> None:
    (port,) = free_ports(1)
    with socket.create_server((HOST, port + 1)):
        assert port + 1 not in free_ports(3, port)


def test_a_port_that_another_process_was_given_is_not_given_before_that_process_ends() -> None:
    (first,) = free_ports(1)
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(first)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        ours = set(free_ports(20, first))
        other.communicate()
    later = set(free_ports(20, first))

    assert (len(theirs), theirs & ours, theirs - later) == (2, set(), set())


def test_ports_are_looked_for_from_the_beginning_once_the_last_ones_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    (begin,) = free_ports(1)
    monkeypatch.setattr(ports, "PORTS", range(begin, begin + 40))

    assert set(free_ports(2, begin + 39)) & set(range(begin, begin + 39))


def test_that_no_port_is_left_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (given,) = free_ports(1)
    monkeypatch.setattr(ports, "PORTS", range(given, given + 1))

    with pytest.raises(ClusterError, match=f"no port is free from {given} to {given + 1}"):
        free_ports(1)
