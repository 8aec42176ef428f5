"""kafka-python's loop of connections, which waits for their sockets without describing them.

`cluster_connection` and the coordinator's connections make their loops here. Decides nothing.
"""

from __future__ import annotations

import selectors
from typing import Any

from kafka.net.selector import NetworkSelector


class DescriptorSelector(selectors.DefaultSelector):
    """The system's selector, which is asked for a socket by its descriptor.

    kafka-python asks for the key of a socket before each wait, mostly one that is not registered. Python's selectors then put
    the socket's description into the KeyError, with both of its addresses, twice: 8 % of what the loop does for records of
    1 KB.
    """

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        """As the system's. Raises KeyError, in which a number stands for the socket."""
        descriptor = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        # One that is closed has no descriptor any more, and is looked for as it is.
        return super().get_key(fileobj if descriptor < 0 else descriptor)


def network_loop(name: str) -> NetworkSelector:
    """A loop whose clients are called `name`. It is not started."""
    return NetworkSelector(client_id=name, selector=DescriptorSelector)
