"""Decides the key by which tokens of OAUTHBEARER are signed, and who may have issued them for whom. Called by `kafka`.

Whoever plays the issuer signs with the key; the brokers read the other half from the key set.
"""

from __future__ import annotations

import json
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

ISSUER, AUDIENCE = "https://issuer.example", "kafka"
KEY, KEY_SET, KEY_ID = "issuer.key", "issuer.json", "one"


def write_key(folder: Path) -> None:
    """Write the key (KEY, PEM) and the set of keys that brokers trust (KEY_SET)."""
    key = ec.generate_private_key(ec.SECP256R1())
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / KEY).write_bytes(pem)
    public = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    public |= {"kid": KEY_ID, "alg": "ES256", "use": "sig"}
    (folder / KEY_SET).write_text(json.dumps({"keys": [public]}))
