"""Which settings close Spark's own connections to strangers, and how a user opens them."""

from __future__ import annotations

import pytest

from shardherd.spark.network import guarded

AUTHENTICATION = {"spark.authenticate": "true"}
ENCRYPTION = {
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.saslFallback": "false",
}


@pytest.mark.parametrize(
    "master", ["k8s://https://kubernetes.default.svc", "local", "local[2]", "local[*]", "local[2, 3]", "yarn"]
)
def test_only_who_has_the_secret_that_spark_draws_is_spoken_to_and_nobody_listens(master: str) -> None:
    given = {"spark.master": master, "spark.ui.enabled": "false"}
    assert guarded(given) == given | AUTHENTICATION | ENCRYPTION


@pytest.mark.parametrize("master", ["spark://elsewhere:7077", "local-cluster[1,1,512]"])
def test_where_spark_draws_no_secret_it_is_for_the_user_to_give_one(master: str) -> None:
    given = {"spark.master": master}
    assert guarded(given) == given
    conf = given | {"spark.authenticate": "true", "spark.authenticate.secret": "theirs"}
    assert guarded(conf) == conf | ENCRYPTION


def test_a_user_may_switch_it_off() -> None:
    given = {"spark.master": "k8s://https://kubernetes.default.svc", "spark.authenticate": "false"}
    assert guarded(given) == given


def test_without_encryption_strangers_are_still_refused_the_way_that_spark_then_knows() -> None:
    given = {"spark.master": "local[2]", "spark.network.crypto.enabled": "false"}
    assert guarded(given) == given | AUTHENTICATION


def test_a_users_tls_takes_the_place_of_encryption() -> None:
    given = {"spark.master": "local[2]", "spark.ssl.rpc.enabled": "true"}
    assert guarded(given) == given | AUTHENTICATION


def test_what_a_user_says_of_encryption_wins() -> None:
    given = {"spark.master": "local[2]", "spark.network.crypto.cipher": "AES/CTR/NoPadding"}
    assert guarded(given) == AUTHENTICATION | ENCRYPTION | given
