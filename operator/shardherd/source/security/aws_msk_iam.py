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


class MskIam(SaslMechanismAwsMskIam):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python's mechanism with our keys; for whoever gives none of ours it is as it was."""

    def __init__(self, **config: Any) -> None:
        keys = config.get("sasl_oauth_token_provider")
        self._keys = keys if isinstance(keys, AccessKeys) else None
        if self._keys is None:
            super().__init__(**config)
            return
        # Its constructor wants botocore, which a key in a Secret does not take.
        self.host = config["host"]
        self._auth = None
        self._is_done = self._is_authenticated = False

    def _build_client(self) -> Any:
        if self._keys is None:
            return super()._build_client()
        key = self._keys.keeper.current()
        return AwsMskIamClient(self.host, key.access_key, key.secret_key, self._keys.region, key.token)


register_sasl_mechanism(AWS_MSK_IAM, MskIam, overwrite=True)
