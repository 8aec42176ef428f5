"""Forged tokens, more than the API server can review, keep nobody from reading and nothing from being written."""

from __future__ import annotations

import contextlib
import itertools
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from dev.cluster import Cluster
from tests.harness.cluster import Names
from tests.harness.long import long
from tests.integration.controller.bench import unique
from tests.integration.controller.fault_lab import FAR, FaultLab, reading

AT_ONCE = 128


@contextlib.contextmanager
def flood(lab: FaultLab) -> Iterator[None]:
    """Callers without end, each with a token that nobody has seen before, until the block ends."""
    url = f"http://127.0.0.1:{lab.operator.api_port}/v1/namespaces/{lab.operator.namespace}/consumergroups/clicks"
    numbers, ended = itertools.count(), threading.Event()

    def call() -> None:
        while not ended.is_set():
            headers = {"Authorization": f"Bearer forged-{next(numbers)}", "Shardherd-Protocol": "3"}
            with contextlib.suppress(urllib.error.HTTPError):
                urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60).close()

    threads = [threading.Thread(target=call, name=f"stranger {number}") for number in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        lab.proxy.faults.slow.clear()
        for thread in threads:
            thread.join()


@long
def test_shards_move_on_while_reviews_of_forged_tokens_hang(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    # Without the limit for each address, which would keep most of them away.
    with reading(cluster, unique(names, "flood"), tmp_path, settings={"SHARDHERD_REQUESTS_PER_SECOND": "0"}) as lab:
        lab.until_read_by(2)
        lab.proxy.faults.slow["/tokenreviews$"] = 10.0
        with flood(lab):
            lab.patch("pods", FAR, {"metadata": {"labels": {"shardherd.dev/cordoned": "true"}}})
            lab.until_read_by(1, within=30.0)
            lab.until_read()
        lab.nothing_lost_or_repeated()
