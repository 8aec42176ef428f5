"""Which settings of Kafka's security go together."""

import json
import pickle

import pytest

from shardherd.core.model.security import MECHANISMS, OAuth, Security, SecurityError

SCRAM = Security("SASL_SSL", "SCRAM-SHA-512", username="app", password_file="/kafka/password", ca_file="/kafka/ca.crt")

TOKEN = "https://issuer.example/token"
OAUTH = Security(
    "SASL_SSL",
    "OAUTHBEARER",
    username="app",
    password_file="/kafka/password",
    oauth=OAuth(TOKEN, "kafka", (("logicalCluster", "lkc-1"),)),
    issuer_ca_file="/kafka/issuer-ca.crt",
)
NAMES = ", ".join(MECHANISMS)
CLIENT = {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "username": "app", "password_file": "/p"}


def test_security_survives_json_and_pickling() -> None:
    assert Security().as_dict() == {}
    assert Security.from_dict(SCRAM.as_dict()) == SCRAM == pickle.loads(pickle.dumps(SCRAM))
    assert SCRAM.as_dict() == {
        "protocol": "SASL_SSL",
        "mechanism": "SCRAM-SHA-512",
        "username": "app",
        "password_file": "/kafka/password",
        "ca_file": "/kafka/ca.crt",
    }


def test_where_tokens_come_from_survives_too() -> None:
    assert Security.from_dict(json.loads(json.dumps(OAUTH.as_dict()))) == OAUTH == pickle.loads(pickle.dumps(OAUTH))
    assert OAUTH.as_dict() == {
        "protocol": "SASL_SSL",
        "mechanism": "OAUTHBEARER",
        "username": "app",
        "password_file": "/kafka/password",
        "oauth": {"token_endpoint": TOKEN, "scope": "kafka", "extensions": {"logicalCluster": "lkc-1"}},
        "issuer_ca_file": "/kafka/issuer-ca.crt",
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"protocol": "TLS"}, "the security protocol 'TLS' is none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        (
            {"protocol": "SASL_SSL"},
            f"the SASL mechanism '' is none of {NAMES}; SASL_SSL needs one",
        ),
        (
            {"protocol": "SASL_SSL", "mechanism": "GSS-SPNEGO"},
            f"the SASL mechanism 'GSS-SPNEGO' is none of {NAMES}; SASL_SSL needs one",
        ),
        (
            {"protocol": "SASL_SSL", "mechanism": "AWS_MSK_IAM"},
            "AWS_MSK_IAM needs the region of the brokers, such as eu-west-1, not ''",
        ),
        (
            {"protocol": "SASL_PLAINTEXT", "mechanism": "AWS_MSK_IAM", "region": "eu-west-1"},
            "AWS_MSK_IAM needs SASL_SSL, not SASL_PLAINTEXT",
        ),
        (
            {"protocol": "SASL_SSL", "mechanism": "AWS_MSK_IAM", "region": "eu-west-1", "username": "AKIA"},
            "SASL_SSL needs a user name and the file that has its password",
        ),
        (
            {"protocol": "SSL", "region": "eu-west-1"},
            "a region of AWS needs the SASL mechanism AWS_MSK_IAM, not none",
        ),
        (
            {"protocol": "SASL_SSL", "mechanism": "GSSAPI", "username": "clicks@EXAMPLE.COM"},
            "GSSAPI needs a principal as user name and the file of its keytab, and no password",
        ),
        (
            {"protocol": "SASL_SSL", "mechanism": "GSSAPI", "username": "clicks", "keytab_file": "/k", "password_file": "/p"},
            "GSSAPI needs a principal as user name and the file of its keytab, and no password",
        ),
        (
            {"protocol": "SSL", "service": "kafka"},
            "a keytab and a service's name need the SASL mechanism GSSAPI, not none",
        ),
        (CLIENT, "OAUTHBEARER needs the token endpoint, where the client gets its tokens"),
        (
            {**CLIENT, "mechanism": "PLAIN", "oauth": {"token_endpoint": TOKEN}},
            "a token endpoint needs the SASL mechanism OAUTHBEARER, not PLAIN",
        ),
        (
            {**CLIENT, "mechanism": "PLAIN", "issuer_ca_file": "/ca"},
            "authorities of a token endpoint need OAUTHBEARER, not PLAIN",
        ),
        (
            {**CLIENT, "oauth": {"token_endpoint": "http://issuer.example/token"}},
            "the token endpoint 'http://issuer.example/token' must begin with https: with SASL_SSL, or the client's secret goes"
            " over the network as plain text",
        ),
        (
            {**CLIENT, "oauth": {"token_endpoint": "https://a:b@issuer.example/"}},
            "the token endpoint 'https://a:b@issuer.example/' must be an address such as https://issuer.example/token, without"
            " a user, a password and a fragment",
        ),
        (
            {**CLIENT, "oauth": {"token_endpoint": TOKEN, "extensions": {"auth": "x"}}},
            "the name 'auth' of an OAUTHBEARER extension must be letters, and not auth",
        ),
        (
            {**CLIENT, "oauth": {"token_endpoint": TOKEN, "extensions": {"cluster": "a\1"}}},
            "the value of the OAUTHBEARER extension 'cluster' must be printable ASCII",
        ),
        ({**CLIENT, "oauth": {"token_endpoint": TOKEN, "client": "x"}}, "unknown setting 'client' of OAUTHBEARER"),
        ({"protocol": "SSL", "mechanism": "PLAIN"}, "a SASL mechanism (PLAIN) needs SASL_PLAINTEXT or SASL_SSL, not SSL"),
        (
            {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "a"},
            "SASL_SSL needs a user name and the file that has its password",
        ),
        (
            {"protocol": "SASL_SSL", "mechanism": "PLAIN", "password_file": "/p"},
            "SASL_SSL needs a user name and the file that has its password",
        ),
        ({"protocol": "SSL", "certificate_file": "/c"}, "mutual TLS needs both a certificate's file and its key's file"),
        ({"protocol": "SSL", "key_file": "/k"}, "mutual TLS needs both a certificate's file and its key's file"),
        ({"ca_file": "/ca"}, "files for TLS need SSL or SASL_SSL, not PLAINTEXT"),
        ({"password": "hunter2"}, "unknown setting 'password' of Kafka's security"),
    ],
)
def test_what_does_not_go_together_is_named(settings: dict[str, str], message: str) -> None:
    with pytest.raises(SecurityError) as refused:
        Security.from_dict(settings)
    assert str(refused.value) == message


def test_mutual_tls_needs_no_password_and_a_user_name_may_stand_in_a_file() -> None:
    mutual = Security("SSL", certificate_file="/c", key_file="/k")
    named = Security("SASL_PLAINTEXT", "PLAIN", username_file="/u", password_file="/p")
    assert [(each.tls, each.sasl) for each in (mutual, named)] == [(True, False), (False, True)]
