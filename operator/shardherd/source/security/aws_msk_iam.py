"""SASL AWS_MSK_IAM: kafka-python's mechanism, with access keys that are got beforehand and not while it authenticates.

Made by `credentials` for the connections of one cluster. What is signed names the broker, so it is worth nothing at another.
Where no access key is given, botocore finds who this pod is, as any program on AWS: by variables, by the web identity of its
service account, by the agent of EKS Pod Identity, by the machine. It says that it is missing only if it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.abc import SaslMechanism
from kafka.net.sasl.msk import AwsMskIamClient, SaslMechanismAwsMskIam

from shardherd.core.model.security import AWS_MSK_IAM
from shardherd.source.security.credential_errors import CredentialsError
from shardherd.source.security.credential_keeper import Fresh, Keeper

LIFE = 300.0
"""Seconds until botocore is asked again. It keeps keys of a role itself, and has got new ones 10 minutes before they end."""


@dataclass(frozen=True, slots=True)
class Key:
    """One access key; `token` belongs to those of a role."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


class AccessKeys:
    """The access key that `given` reads, or without it the one of this pod."""

    def __init__(self, region: str, given: Callable[[], Key] | None = None) -> None:
        self.region = region
        self.keeper = Keeper(self._fetch)
        self._given = given
        self._session: Any = None

    def _fetch(self) -> Fresh[Key]:
        return Fresh(self._of_the_pod() if self._given is None else self._given(), LIFE)

    def _of_the_pod(self) -> Key:
        try:
            from botocore.exceptions import BotoCoreError, ClientError
            from botocore.session import Session
        except ImportError as error:
            raise CredentialsError(
                "AWS_MSK_IAM with the identity of the pod needs the Python package botocore: build the image with EXTRAS=aws"
            ) from error
        try:
            if self._session is None:
                made = Session()
                made.set_config_variable("region", self.region)
                self._session = made
            found = self._session.get_credentials()
            frozen = None if found is None else found.get_frozen_credentials()
        except (BotoCoreError, ClientError, OSError) as error:
            raise CredentialsError(
                f"AWS gives no access key ({type(error).__name__}: {error}): check the role of this pod's service account, and"
                " that AWS STS can be reached from it"
            ) from error
        if frozen is None:
            # What it did not find it does not look for again.
            self._session = None
            raise CredentialsError(
                "AWS knows no identity of this pod: give its service account a role (IRSA or EKS Pod Identity), or the group an"
                " access key in a Secret"
            )
        return Key(frozen.access_key, frozen.secret_key, frozen.token)


class MskIam(SaslMechanism):  # type: ignore[misc]  # kafka-python has no types
    """The mechanism with our keys. kafka-python's own wants botocore, which a key in a Secret does not take."""

    def __init__(self, host: str, keys: AccessKeys) -> None:
        self._host = host
        self._keys = keys
        self._answer: bytes | None = None

    def auth_bytes(self) -> bytes:
        key = self._keys.keeper.current()
        signed: bytes = AwsMskIamClient(
            self._host, key.access_key, key.secret_key, self._keys.region, key.token
        ).first_message()
        return signed

    def receive(self, auth_bytes: bytes) -> None:
        self._answer = auth_bytes

    def is_done(self) -> bool:
        return self._answer is not None

    def is_authenticated(self) -> bool:
        return bool(self._answer)

    def auth_details(self) -> str:
        return f"Authenticated via SASL / {AWS_MSK_IAM} {(self._answer or b'').decode()}"


def msk_mechanism(**config: Any) -> SaslMechanism:
    """The mechanism for keys of ours; for whoever gives none it is kafka-python's."""
    keys = config.get("sasl_oauth_token_provider")
    return MskIam(config["host"], keys) if isinstance(keys, AccessKeys) else SaslMechanismAwsMskIam(**config)


register_sasl_mechanism(AWS_MSK_IAM, msk_mechanism, overwrite=True)
