"""The operator's settings: defaults, values and refusals."""

from __future__ import annotations

import pytest

from shardherd.settings import (
    ApiSettings,
    IdentitySettings,
    LeaseSettings,
    Settings,
    SettingsError,
    TelemetrySettings,
    TlsSettings,
    load,
)

REQUIRED = {"SHARDHERD_NAMESPACE": "system", "SHARDHERD_POD_NAME": "shardherd-0"}


def test_everything_but_the_identity_has_a_default() -> None:
    assert load(REQUIRED) == Settings(
        identity=IdentitySettings("system", "shardherd-0", "", "", ""),
        api=ApiSettings(8080, "http://shardherd.system.svc:8080", "shardherd", "review", 16 * 1024 * 1024, 0, 100),
        lease=LeaseSettings(15.0, 10.0, 2.0, 0.5, "shardherd"),
        telemetry=TelemetrySettings(9090, "json", "INFO", 10_000, ""),
        discovery_interval=1.0,
        resync_interval=300.0,
        watch_namespaces=(),
        tls=TlsSettings("disabled", 8443, "shardherd-tls", accept_plain=True, authority_days=365, certificate_days=90),
    )


def test_every_variable_is_read() -> None:
    environment = REQUIRED | {
        "SHARDHERD_POD_UID": "uid",
        "SHARDHERD_TERMINATION_LOG": "/dev/termination-log",
        "SHARDHERD_SERVICE_ACCOUNT": "ours",
        "SHARDHERD_API_PORT": "1080",
        "SHARDHERD_COORDINATOR_URL": "https://operator:1080/",
        "SHARDHERD_TOKEN_AUDIENCE": "ours",
        "SHARDHERD_TOKEN_CHECK": "keys",
        "SHARDHERD_MAX_BODY_BYTES": "1024",
        "SHARDHERD_MAX_GROUPS_PER_SOURCE": "5",
        "SHARDHERD_REQUESTS_PER_SECOND": "7",
        "SHARDHERD_LEASE_DURATION_S": "30",
        "SHARDHERD_LEASE_RENEW_DEADLINE_S": "20",
        "SHARDHERD_LEASE_RETRY_S": "0.5",
        "SHARDHERD_LEASE_LOOK_S": "0.25",
        "SHARDHERD_LEASE_NAME": "ours",
        "SHARDHERD_METRICS_PORT": "1090",
        "SHARDHERD_PAGE_PORT": "1092",
        "SHARDHERD_METRICS_TOKEN_FILE": "/etc/token",
        "SHARDHERD_SHARD_SERIES_LIMIT": "50",
        "SHARDHERD_KAFKA_EXPORTER_NAMES": "true",
        "SHARDHERD_LOG_FORMAT": "text",
        "SHARDHERD_LOG_LEVEL": "DEBUG",
        "SHARDHERD_DISCOVERY_INTERVAL_S": "5",
        "SHARDHERD_RESYNC_INTERVAL_S": "60",
        "SHARDHERD_WATCH_NAMESPACES": "shop, web,",
        "SHARDHERD_OWN_AWS_IDENTITY": "true",
        "SHARDHERD_TLS": "auto",
        "SHARDHERD_TLS_PORT": "1443",
        "SHARDHERD_TLS_SECRET": "ours-tls",
        "SHARDHERD_TLS_ACCEPT_PLAIN": "false",
        "SHARDHERD_TLS_AUTHORITY_DAYS": "30",
        "SHARDHERD_TLS_CERTIFICATE_DAYS": "7",
    }
    assert load(environment) == Settings(
        identity=IdentitySettings("system", "shardherd-0", "uid", "/dev/termination-log", "ours"),
        api=ApiSettings(1080, "https://operator:1080", "ours", "keys", 1024, 5, 7),
        lease=LeaseSettings(30.0, 20.0, 0.5, 0.25, "ours"),
        telemetry=TelemetrySettings(1090, "text", "DEBUG", 50, "/etc/token", kafka_names=True),
        discovery_interval=5.0,
        resync_interval=60.0,
        watch_namespaces=("shop", "web"),
        tls=TlsSettings("auto", 1443, "ours-tls", accept_plain=False, authority_days=30, certificate_days=7),
        own_aws_identity=True,
        page_port=1092,
    )


def test_with_tls_consumers_are_told_of_its_port() -> None:
    assert load(REQUIRED | {"SHARDHERD_TLS": "secret"}).api.coordinator_url == "https://shardherd.system.svc:8443"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {"SHARDHERD_TLS": "auto", "SHARDHERD_COORDINATOR_URL": "http://operator:8080"},
            'SHARDHERD_TLS is "auto" and SHARDHERD_COORDINATOR_URL is "http://operator:8080": consumers would not use it; give'
            " the URL of the TLS port, for example https://shardherd.system.svc:8443",
        ),
        (
            {"SHARDHERD_TLS_CERTIFICATE_DAYS": "400"},
            "SHARDHERD_TLS_CERTIFICATE_DAYS is 400 and SHARDHERD_TLS_AUTHORITY_DAYS 365: no certificate outlives its authority;"
            " make the first the smaller one",
        ),
        (
            {"SHARDHERD_TLS": "auto", "SHARDHERD_TLS_PORT": "8080"},
            "SHARDHERD_TLS_PORT is 8080, which SHARDHERD_API_PORT or SHARDHERD_METRICS_PORT is too: give it another port",
        ),
    ],
)
def test_settings_of_tls_have_to_fit(variables: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(REQUIRED | variables)
    assert str(refused.value) == said


@pytest.mark.parametrize("name", ["SHARDHERD_NAMESPACE", "SHARDHERD_POD_NAME"])
def test_the_identity_must_be_given(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is not set: the chart sets it; outside a cluster set it by hand"):
        load({key: value for key, value in REQUIRED.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("SHARDHERD_API_PORT", "eighty", "use a port from 1 to 65535, for example 8080"),
        ("SHARDHERD_API_PORT", "0", "use a port from 1 to 65535, for example 8080"),
        ("SHARDHERD_METRICS_PORT", "70000", "use a port from 1 to 65535, for example 9090"),
        ("SHARDHERD_DISCOVERY_INTERVAL_S", "0", "use a number of seconds from 0.01 to 1000000, for example 1"),
        *(
            ("SHARDHERD_DISCOVERY_INTERVAL_S", value, "use a number of seconds from 0.01 to 1000000, for example 1")
            for value in ("1e-320", "0.009", "-1", "-inf", "nan", "1e300")
        ),
        ("SHARDHERD_RESYNC_INTERVAL_S", "1000001", "use a number of seconds from 0.01 to 1000000, for example 300"),
        ("SHARDHERD_DISCOVERY_INTERVAL_S", "soon", "use a number of seconds from 0.01 to 1000000, for example 1"),
        ("SHARDHERD_LEASE_DURATION_S", "inf", "use a number of seconds from 0.01 to 1000000, for example 15"),
        ("SHARDHERD_LEASE_RETRY_S", "nan", "use a number of seconds from 0.01 to 1000000, for example 2"),
        ("SHARDHERD_MAX_BODY_BYTES", "16M", "use a whole number, 1024 or more, for example 16777216"),
        ("SHARDHERD_MAX_GROUPS_PER_SOURCE", "-1", "use a whole number, 0 or more, for example 0"),
        ("SHARDHERD_LOG_FORMAT", "xml", "use one of json, text"),
        ("SHARDHERD_LOG_LEVEL", "loud", "use one of DEBUG, INFO, WARNING, ERROR"),
        ("SHARDHERD_TLS", "on", "use one of disabled, auto, secret"),
        ("SHARDHERD_TLS_ACCEPT_PLAIN", "no", "use one of true, false"),
        *(
            (
                "SHARDHERD_COORDINATOR_URL",
                url,
                "use a URL that begins with http:// or https:// and names a host, for example http://shardherd.system.svc:8080",
            )
            for url in ("operator:8080", "http://", "https://[operator", "http://operator:80800", "http://op erator:8080")
        ),
        ("SHARDHERD_TLS_AUTHORITY_DAYS", "36501", "use a whole number, from 1 to 36500, for example 365"),
        ("SHARDHERD_TLS_CERTIFICATE_DAYS", "0", "use a whole number, from 1 to 36500, for example 90"),
        (
            "SHARDHERD_WATCH_NAMESPACE_SELECTOR",
            "team in a",
            "'team in a' is none of key, !key, key=value, key!=value, key in (value,...) and key notin (value,...);"
            " write for example shardherd.dev/operator=a, or team in (a,b),!retired",
        ),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_the_remedy(name: str, value: str, remedy: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(REQUIRED | {name: value})
    assert str(refused.value) == f'{name} is "{value}": {remedy}'


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("SHARDHERD_METRICS_PORT", "use a port from 1 to 65535, for example 9090"),
        ("SHARDHERD_REQUESTS_PER_SECOND", "use a whole number, 0 or more, for example 100"),
    ],
)
def test_a_number_of_thousands_of_digits_is_refused_by_its_first(name: str, remedy: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(REQUIRED | {name: "9" * 5000})
    assert str(refused.value) == f'{name} is "{"9" * 80}": {remedy}'


@pytest.mark.parametrize(("deadline", "retry"), [("15", "2"), ("10", "10")])
def test_a_leader_must_give_up_before_another_may_take_over(deadline: str, retry: str) -> None:
    with pytest.raises(SettingsError, match="does not hold: a leader must give up before another may take over"):
        load(REQUIRED | {"SHARDHERD_LEASE_RENEW_DEADLINE_S": deadline, "SHARDHERD_LEASE_RETRY_S": retry})


def test_tokens_are_checked_by_keys_only_of_namespaces_that_are_named() -> None:
    with pytest.raises(SettingsError, match='SHARDHERD_TOKEN_CHECK is "keys" and SHARDHERD_WATCH_NAMESPACES names none'):
        load(REQUIRED | {"SHARDHERD_TOKEN_CHECK": "keys"})


def test_namespaces_are_chosen_by_their_labels_or_by_name() -> None:
    selector = "shardherd.dev/operator=a,!retired"
    chosen = {"SHARDHERD_WATCH_NAMESPACE_SELECTOR": f" {selector} "}
    assert load(REQUIRED | chosen).watch_namespace_selector == selector
    assert (
        load(REQUIRED).watch_namespace_selector
        == load(REQUIRED | {"SHARDHERD_WATCH_NAMESPACE_SELECTOR": " "}).watch_namespace_selector
        == ""
    )
    with pytest.raises(SettingsError, match="names shop, web: namespaces are chosen by their labels or by name, set one of"):
        load(REQUIRED | chosen | {"SHARDHERD_WATCH_NAMESPACES": "shop,web"})
    with pytest.raises(SettingsError, match='SHARDHERD_TOKEN_CHECK is "keys" and SHARDHERD_WATCH_NAMESPACES names none'):
        load(REQUIRED | chosen | {"SHARDHERD_TOKEN_CHECK": "keys"})


def test_two_servers_cannot_share_a_port() -> None:
    with pytest.raises(
        SettingsError, match="SHARDHERD_API_PORT and SHARDHERD_METRICS_PORT are both 9090: give them different ports"
    ):
        load(REQUIRED | {"SHARDHERD_API_PORT": "9090"})
    for taken in ("8080", "9090", "8443"):
        with pytest.raises(SettingsError, match=f"SHARDHERD_PAGE_PORT is {taken}, which another port of the operator is too"):
            load(REQUIRED | {"SHARDHERD_PAGE_PORT": taken, "SHARDHERD_TLS": "auto"})


def test_the_page_is_served_only_where_a_port_is_named() -> None:
    assert load(REQUIRED).page_port == load(REQUIRED | {"SHARDHERD_PAGE_PORT": " "}).page_port == 0
    with pytest.raises(SettingsError, match='SHARDHERD_PAGE_PORT is "0": use a port from 1 to 65535, for example 8082'):
        load(REQUIRED | {"SHARDHERD_PAGE_PORT": "0"})
