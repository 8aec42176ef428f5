"""The operator's settings: read once from the environment, checked, and never changed.

`cli` calls `load`; everything else is handed the parts it needs. Each field says its unit, its default and why the default is
what it is. A bad value raises SettingsError, which names the variable, the value and the remedy. Reads nothing by itself: the
environment is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from shardherd.core.model import selectors

LARGEST = 2**63 - 1
"""The largest whole number that a setting may be, where nothing else limits it."""

MOST_DAYS = 36_500
"""The longest that a certificate may hold: a date of ten thousand years from now can no longer be written."""

LEAST_SECONDS, MOST_SECONDS = 0.01, 1_000_000.0
"""The shortest and the longest that a setting may be in seconds: what is looked at more often is looked at all the time, and
longer nobody waits."""

SHOWN = 80
"""Characters of a wrong value that a message shows."""


def can_be_called(url: str) -> bool:
    """Whether this is an HTTP URL that names a host, and a port that there is if it names one."""
    if not url.isprintable() or " " in url:  # to take it apart would leave out ends of lines
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


class SettingsError(Exception):
    """A variable of the environment is missing or wrong. The message names it, its value and the remedy."""


@dataclass(frozen=True, slots=True)
class IdentitySettings:
    """Which pod this operator is; the chart fills these in from the downward API.

    namespace: where the Lease is. Required, as two operators exclude each other only within one namespace.
    pod_name: names the holder of the Lease. Required, as it must differ between pods.
    pod_uid: the other half of the holder: a container that is started again in the same pod holds the Lease at once, another
    pod of the same name does not. Default empty: outside a cluster, where no pod is labelled and no death is proven.
    service_account: whose rights it has; no group of this namespace may have them. Default empty: not known.
    termination_log: where the kubelet reads a container's last words; we name this start of ours there, so that the status of
    a dead container says who died. Default empty: nothing is written.
    """

    namespace: str
    pod_name: str
    pod_uid: str = ""
    termination_log: str = ""
    service_account: str = ""


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The coordinator's HTTP API.

    port: default 8080, as the chart's Service names it.
    coordinator_url: what consumers call. Default the chart's Service, `https://shardherd.<namespace>.svc:<TLS port>`, or
        without TLS `http://shardherd.<namespace>.svc:<port>`.
    token_audience: audience of consumers' tokens. Default `shardherd`, so that no token made for another use is accepted.
    token_check: `review` (default: the API server reviews consumers' tokens, which needs a ClusterRole) or `keys` (they are
        checked against the keys that the cluster publishes, for which Roles are enough; needs watch_namespaces).
    max_body: bytes of a request's body. Default 16 MiB: a heartbeat that names 100,000 shards fits.
    max_groups_per_source: how many groups may read one topic of one Kafka cluster; the newest above it are granted nothing.
        Default 0, which means no limit: groups do not disturb each other, and one costs a small request a second.
    requests_per_second: how often one caller may call on average, and one address show tokens that are not known; five times as
        many may come at once. Default 100, a hundred times what a consumer does that moves shards and checkpoints all the
        time. 0: no limit.
    """

    port: int = 8080
    coordinator_url: str = ""
    token_audience: str = "shardherd"
    token_check: str = "review"
    max_body: int = 16 * 1024 * 1024
    max_groups_per_source: int = 0
    requests_per_second: int = 100


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS between consumers and the coordinator.

    mode: `disabled` (default: outside of the chart nobody makes the Secret), `auto` (the operator keeps an authority and a
        serving certificate in the Secret, which must exist) or `secret` (somebody else keeps it, for example cert-manager).
    port: default 8443, apart from plain HTTP, which probes use, and pods from before TLS.
    secret: its name in the operator's namespace. Default `shardherd-tls`, as the chart names it.
    accept_plain: whether consumers may still call over plain HTTP. Default true: pods that were made before TLS know no other
        way, and one with an HTTPS address never falls back.
    authority_days, certificate_days: how long they are made for in mode `auto`; each is replaced after two thirds of it.
        Default 365 and 90.
    """

    mode: str = "disabled"
    port: int = 8443
    secret: str = "shardherd-tls"
    accept_plain: bool = True
    authority_days: int = 365
    certificate_days: int = 90


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Leadership. Seconds; defaults are those of Kubernetes' own components: a leader that fell silent is replaced after 15 s.

    duration: how long a Lease holds without a renewal. renew_deadline: how long the leader tries to renew before it gives up;
    it must end before others may take over. retry: how often it tries. look: how often who waits looks; default 0.5, a small
    request each, so that a Lease that was given back is held again within half a second.
    name: of the Lease. Default `shardherd`; the chart gives the release's, so that two releases may share a namespace.
    """

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0
    look: float = 0.5
    name: str = "shardherd"


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """Logs and metrics.

    metrics_port: default 9090, apart from the API so that a NetworkPolicy can tell scrapers from consumers.
    log_format: `json` (default, for collectors) or `text` (for people). log_level: default INFO, which is silent at rest.
    metrics_token_file: a file with the token that scrapers must show, read at each scrape. Default empty: anybody may scrape.
    shard_series_limit: a group with more shards than this is exported as a whole only, not by shard. Default 10,000, with five
        series each: what a Prometheus of common size takes. 0: never by shard.
    kafka_names: whether groups are exported under the names of kafka_exporter, too. Default false.
    """

    metrics_port: int = 9090
    log_format: str = "json"
    log_level: str = "INFO"
    shard_series_limit: int = 10_000
    metrics_token_file: str = ""
    kafka_names: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of the operator.

    discovery_interval: seconds between looks at a source. Default 1, one small request a broker: growth is seen at once.
    resync_interval: seconds after which a group is compared with the cluster although nothing happened. Default 300: only lost
    watch events and edits by hand need it.
    watch_namespaces: namespaces whose groups are served. Default none named, which means all.
    watch_namespace_selector: in place of names, a label selector: the groups of every namespace that it matches now are served.
    Default empty: no namespace is watched, and no right to it is needed.
    own_aws_identity: whether groups that name no access key of AWS are served with the operator's own identity. Default false.
    page_port: where the read-only page is served. Default 0: nowhere, as it is shown to whoever reaches the port.
    """

    identity: IdentitySettings
    api: ApiSettings
    lease: LeaseSettings
    telemetry: TelemetrySettings
    discovery_interval: float = 1.0
    resync_interval: float = 300.0
    watch_namespaces: tuple[str, ...] = ()
    watch_namespace_selector: str = ""
    tls: TlsSettings = TlsSettings()
    own_aws_identity: bool = False
    page_port: int = 0


def load(environment: Mapping[str, str]) -> Settings:
    """The settings that this environment gives. Raises SettingsError."""
    read = _Reader(environment)
    namespace = read.text("SHARDHERD_NAMESPACE", None)
    api_port = read.port("SHARDHERD_API_PORT", 8080)
    tls = TlsSettings(
        mode=read.choice("SHARDHERD_TLS", "disabled", ("disabled", "auto", "secret")),
        port=read.port("SHARDHERD_TLS_PORT", 8443),
        secret=read.text("SHARDHERD_TLS_SECRET", "shardherd-tls"),
        accept_plain=read.choice("SHARDHERD_TLS_ACCEPT_PLAIN", "true", ("true", "false")) == "true",
        authority_days=read.whole("SHARDHERD_TLS_AUTHORITY_DAYS", 365, least=1, most=MOST_DAYS),
        certificate_days=read.whole("SHARDHERD_TLS_CERTIFICATE_DAYS", 90, least=1, most=MOST_DAYS),
    )
    host = f"shardherd.{namespace}.svc"
    usual_url = f"http://{host}:{api_port}" if tls.mode == "disabled" else f"https://{host}:{tls.port}"
    settings = Settings(
        identity=IdentitySettings(
            namespace=namespace,
            pod_name=read.text("SHARDHERD_POD_NAME", None),
            pod_uid=read.text("SHARDHERD_POD_UID", ""),
            termination_log=read.text("SHARDHERD_TERMINATION_LOG", ""),
            service_account=read.text("SHARDHERD_SERVICE_ACCOUNT", ""),
        ),
        api=ApiSettings(
            port=api_port,
            coordinator_url=read.url("SHARDHERD_COORDINATOR_URL", usual_url),
            token_audience=read.text("SHARDHERD_TOKEN_AUDIENCE", "shardherd"),
            token_check=read.choice("SHARDHERD_TOKEN_CHECK", "review", ("review", "keys")),
            max_body=read.whole("SHARDHERD_MAX_BODY_BYTES", 16 * 1024 * 1024, least=1024),
            max_groups_per_source=read.whole("SHARDHERD_MAX_GROUPS_PER_SOURCE", 0, least=0),
            requests_per_second=read.whole("SHARDHERD_REQUESTS_PER_SECOND", 100, least=0),
        ),
        lease=LeaseSettings(
            duration=read.seconds("SHARDHERD_LEASE_DURATION_S", 15.0),
            renew_deadline=read.seconds("SHARDHERD_LEASE_RENEW_DEADLINE_S", 10.0),
            retry=read.seconds("SHARDHERD_LEASE_RETRY_S", 2.0),
            look=read.seconds("SHARDHERD_LEASE_LOOK_S", 0.5),
            name=read.text("SHARDHERD_LEASE_NAME", "shardherd"),
        ),
        telemetry=TelemetrySettings(
            metrics_port=read.port("SHARDHERD_METRICS_PORT", 9090),
            metrics_token_file=read.text("SHARDHERD_METRICS_TOKEN_FILE", ""),
            shard_series_limit=read.whole("SHARDHERD_SHARD_SERIES_LIMIT", 10_000, least=0),
            kafka_names=read.choice("SHARDHERD_KAFKA_EXPORTER_NAMES", "false", ("true", "false")) == "true",
            log_format=read.choice("SHARDHERD_LOG_FORMAT", "json", ("json", "text")),
            log_level=read.choice("SHARDHERD_LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR")),
        ),
        discovery_interval=read.seconds("SHARDHERD_DISCOVERY_INTERVAL_S", 1.0),
        resync_interval=read.seconds("SHARDHERD_RESYNC_INTERVAL_S", 300.0),
        watch_namespaces=read.names("SHARDHERD_WATCH_NAMESPACES"),
        watch_namespace_selector=read.selector("SHARDHERD_WATCH_NAMESPACE_SELECTOR"),
        own_aws_identity=read.choice("SHARDHERD_OWN_AWS_IDENTITY", "false", ("true", "false")) == "true",
        tls=tls,
        page_port=read.port("SHARDHERD_PAGE_PORT", 8082) if environment.get("SHARDHERD_PAGE_PORT", "").strip() else 0,
    )
    lease = settings.lease
    if not lease.retry < lease.renew_deadline < lease.duration:
        raise SettingsError(
            f"SHARDHERD_LEASE_RETRY_S ({lease.retry:g}) < SHARDHERD_LEASE_RENEW_DEADLINE_S ({lease.renew_deadline:g}) < "
            f"SHARDHERD_LEASE_DURATION_S ({lease.duration:g}) does not hold: a leader must give up before another may take "
            "over; use for example 2, 10 and 15"
        )
    if settings.watch_namespace_selector and settings.watch_namespaces:
        raise SettingsError(
            f'SHARDHERD_WATCH_NAMESPACE_SELECTOR is "{settings.watch_namespace_selector}" and SHARDHERD_WATCH_NAMESPACES names'
            f" {', '.join(settings.watch_namespaces)}: namespaces are chosen by their labels or by name, set one of the two"
        )
    if settings.api.token_check == "keys" and not settings.watch_namespaces:
        raise SettingsError(
            'SHARDHERD_TOKEN_CHECK is "keys" and SHARDHERD_WATCH_NAMESPACES names none: name those whose groups are served'
        )
    if tls.mode != "disabled" and not settings.api.coordinator_url.startswith("https://"):
        raise SettingsError(
            f'SHARDHERD_TLS is "{tls.mode}" and SHARDHERD_COORDINATOR_URL is "{settings.api.coordinator_url}": consumers would'
            f" not use it; give the URL of the TLS port, for example https://{host}:{tls.port}"
        )
    if tls.certificate_days > tls.authority_days:
        raise SettingsError(
            f"SHARDHERD_TLS_CERTIFICATE_DAYS is {tls.certificate_days} and SHARDHERD_TLS_AUTHORITY_DAYS {tls.authority_days}:"
            " no certificate outlives its authority; make the first the smaller one"
        )
    if tls.mode != "disabled" and tls.port in (settings.api.port, settings.telemetry.metrics_port):
        raise SettingsError(
            f"SHARDHERD_TLS_PORT is {tls.port}, which SHARDHERD_API_PORT or SHARDHERD_METRICS_PORT is too: give it another port"
        )
    if settings.api.port == settings.telemetry.metrics_port:
        raise SettingsError(
            f"SHARDHERD_API_PORT and SHARDHERD_METRICS_PORT are both {settings.api.port}: give them different ports"
        )
    taken = (settings.api.port, settings.telemetry.metrics_port, *((tls.port,) if tls.mode != "disabled" else ()))
    if settings.page_port in taken:
        raise SettingsError(
            f"SHARDHERD_PAGE_PORT is {settings.page_port}, which another port of the operator is too: give it another port"
        )
    return settings


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads single variables; an empty value counts as unset."""

    environment: Mapping[str, str]

    def text(self, name: str, default: str | None) -> str:
        value = self.environment.get(name, "").strip()
        if value:
            return value
        if default is None:
            raise SettingsError(f"{name} is not set: the chart sets it; outside a cluster set it by hand")
        return default

    def port(self, name: str, default: int) -> int:
        value = self.text(name, str(default))
        if re.fullmatch("[0-9]{1,5}", value) is None or not 1 <= int(value) <= 65535:
            raise SettingsError(f'{name} is "{value[:SHOWN]}": use a port from 1 to 65535, for example {default}')
        return int(value)

    def whole(self, name: str, default: int, *, least: int, most: int = LARGEST) -> int:
        value = self.text(name, str(default))
        if re.fullmatch("[0-9]{1,19}", value) is None or not least <= int(value) <= most:
            limits = f"{least} or more" if most == LARGEST else f"from {least} to {most}"
            raise SettingsError(f'{name} is "{value[:SHOWN]}": use a whole number, {limits}, for example {default}')
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        value = self.text(name, str(default))
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not LEAST_SECONDS <= number <= MOST_SECONDS:
            limits = f"from {LEAST_SECONDS:g} to {MOST_SECONDS:.0f}"
            raise SettingsError(f'{name} is "{value[:SHOWN]}": use a number of seconds {limits}, for example {default:g}')
        return number

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        value = self.text(name, default)
        if value not in choices:
            raise SettingsError(f'{name} is "{value}": use one of {", ".join(choices)}')
        return value

    def url(self, name: str, default: str) -> str:
        value = self.text(name, default)
        if not can_be_called(value):
            raise SettingsError(
                f'{name} is "{value}": use a URL that begins with http:// or https:// and names a host, for example {default}'
            )
        return value.rstrip("/")

    def selector(self, name: str) -> str:
        value = self.text(name, "")
        try:
            if value:
                selectors.parse(value)
        except selectors.SelectorError as error:
            raise SettingsError(f'{name} is "{value}": {error}') from error
        return value

    def names(self, name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.environment.get(name, "").split(",") if part.strip())
