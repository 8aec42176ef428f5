"""kafka-python's loop waits for sockets, which nobody describes for it."""

from __future__ import annotations

import socket
from selectors import EVENT_READ

import pytest

from shardherd.source.kafka.network_loop import DescriptorSelector, network_loop


class Undescribed(socket.socket):
    """A socket whose addresses are not asked for."""

    def __repr__(self) -> str:
        raise AssertionError("the socket was described")


def connected() -> tuple[Undescribed, Undescribed]:
    ours, theirs = socket.socketpair()
    found = Undescribed(fileno=ours.detach()), Undescribed(fileno=theirs.detach())
    for each in found:
        each.setblocking(False)
    return found


def test_the_loop_waits_for_a_socket_again_and_again_without_describing_it() -> None:
    net = network_loop("test")
    ours, theirs = connected()

    async def read_twice() -> list[bytes]:
        found = []
        for sent in (b"one", b"two"):
            theirs.send(sent)
            await net.wait_read(ours)
            found.append(ours.recv(16))
        return found

    with ours, theirs:
        assert net.run(read_twice) == [b"one", b"two"]
    net.close()


def test_a_socket_is_found_by_itself_and_by_its_descriptor() -> None:
    ours, theirs = connected()
    with DescriptorSelector() as selector, ours, theirs:
        made = selector.register(ours, EVENT_READ, "what it is for")
        assert selector.get_key(ours) == selector.get_key(ours.fileno()) == made
        with pytest.raises(KeyError, match=str(theirs.fileno())):
            selector.get_key(theirs)


def test_a_socket_that_was_closed_before_it_was_taken_out_is_still_found() -> None:
    ours, theirs = socket.socketpair()
    with DescriptorSelector() as selector, theirs:
        made = selector.register(ours, EVENT_READ)
        ours.close()
        assert selector.get_key(ours) == made
        assert selector.unregister(ours) == made
