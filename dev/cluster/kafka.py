"""Decides how three real Kafka brokers run beside each other on this machine, without an instance. Called by test fixtures.

Every broker is a controller too, so that any one of them may go. Each has one listener for every way to authenticate, and
StandardAuthorizer; `SUPER` may do everything, `LIMITED` what the access control lists say. It knows nothing of what is tested.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dev.cluster import certificates, daemons, probes, tokens
from dev.cluster.broker import identifier
from dev.cluster.certificates import Identity
from dev.cluster.config import KEEPS_RECORDS
from dev.cluster.errors import ClusterError, tail
from dev.cluster.ports import HOST, free_ports
from dev.cluster.tools import Tools
from dev.cluster.waiting import wait_for

SUPER, LIMITED = "super", "limited"
PASSWORDS = {SUPER: "super-word-81723", LIMITED: "limited-word-55012"}

LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "MUTUAL": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    # Answers, but advertises an address where nobody does.
    "ASTRAY": "PLAINTEXT",
    # Advertises an address of its own where nobody listens, unless a test stands there: see `gate`.
    "GATED": "PLAINTEXT",
}
"""Listener -> security protocol."""

ASTRAY_PORT = 1

START_TIMEOUT = 240.0
STOP_TIMEOUT = 60.0

NODES = (1, 2, 3)


@dataclass(frozen=True)
class _Ports:
    """Ports of one broker: by listener, and of its controller."""

    listeners: dict[str, int]
    controller: int
    gate: int


class KafkaTrio:
    """Three brokers, numbered 1 to 3, with their state in `folder`. `start_all` first, `close` at the end."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        self.folder = folder
        self._tools = tools
        self._ports = _free_ports()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.started = 0
        """How many brokers were started so far."""

    # --- what a caller reads ------------------------------------------------------------------------------------------

    def bootstrap(self, listener: str = "PLAINTEXT", nodes: Iterable[int] = NODES) -> str:
        """Addresses of these brokers' listener, comma-separated."""
        return ",".join(f"{HOST}:{self._ports[node].listeners[listener]}" for node in nodes)

    def gate(self, node: int) -> int:
        """The port that this broker advertises as its listener GATED, which is another one."""
        return self._ports[node].gate

    @property
    def certificates(self) -> Path:
        """Folder of ca.crt, of .crt and .key of `super` and `limited`, and of stranger.crt, an authority that signed none."""
        return self.folder / "certificates"

    @property
    def _key_set(self) -> str:
        return (self.certificates / tokens.KEY_SET).as_uri()

    def log(self, node: int) -> Path:
        return self.folder / f"broker-{node}.log"

    # --- life ---------------------------------------------------------------------------------------------------------

    def start_all(self) -> None:
        """Make the certificates and the storage, and start all three."""
        self.folder.mkdir(parents=True, exist_ok=True)
        certificates.write_authority(self.certificates)
        for identity in (Identity("broker", "broker", serves=(f"IP:{HOST}", "DNS:localhost")), Identity(SUPER, SUPER)):
            certificates.sign(self.certificates, identity)
        certificates.sign(self.certificates, Identity(LIMITED, LIMITED))
        certificates.write_authority(self.folder / "strangers")
        shutil.copy(self.folder / "strangers" / "ca.crt", self.certificates / "stranger.crt")
        keys = self.certificates
        (keys / "broker.pem").write_bytes((keys / "broker.key").read_bytes() + (keys / "broker.crt").read_bytes())
        tokens.write_key(keys)
        for node in NODES:
            (self.folder / f"broker-{node}.properties").write_text(self._properties(node))
        self._format()
        for node in NODES:
            self.launch(node)
        for node in NODES:
            self.await_ready(node, members=len(NODES))

    def start(self, node: int) -> None:
        """Start a broker that was stopped, and wait until it serves."""
        self.launch(node)
        self.await_ready(node)

    def launch(self, node: int) -> None:
        """Begin to start a broker that does not run. It ends with the thread that calls this."""
        # What the brokers may read keys from is said to Java, beside the settings.
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._key_set}"
        properties = str(self.folder / f"broker-{node}.properties")
        command = daemons.java(self._tools, "kafka.Kafka", properties, heap="320m", options=(allowed,))
        self.started += 1
        with self.log(node).open("ab") as log:
            # Whatever happens to us, no broker outlives us.
            self._processes[node] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command], stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )

    def await_ready(self, node: int, members: int = 1) -> None:
        """Wait until a broker that was launched serves, and knows of so many brokers."""
        port = self._ports[node].listeners["PLAINTEXT"]

        def ready() -> str | None:
            reason = probes.broker_ready(HOST, port, members)
            if reason and self._processes[node].poll() is not None:
                raise ClusterError(f"broker {node} ended with {self._processes[node].poll()}\n{tail(self.log(node))}")
            return reason

        wait_for(f"readiness of broker {node}", ready, self.log(node), START_TIMEOUT)

    def stop(self, node: int) -> None:
        """End a broker as an administrator does: it hands its leaderships over first."""
        process = self._processes.pop(node)
        process.terminate()
        process.wait(STOP_TIMEOUT)

    def kill(self, node: int) -> None:
        """End a broker as a machine that fails does."""
        process = self._processes.pop(node)
        process.kill()
        process.wait(STOP_TIMEOUT)

    def signal(self, node: int, number: signal.Signals) -> None:
        """Send SIGSTOP or SIGCONT to a broker."""
        self._processes[node].send_signal(number)

    def await_topic(self, topic: str) -> None:
        """Wait until every broker that runs knows a topic: one that was made is known to each of them at another time."""
        for node in self.running():
            port = self._ports[node].listeners["PLAINTEXT"]
            known = partial(probes.topic_known, HOST, port, topic)
            wait_for(f"topic {topic!r} at broker {node}", known, self.log(node), STOP_TIMEOUT)

    def running(self) -> list[int]:
        return sorted(self._processes)

    def restore(self) -> None:
        """Have all three running again, whatever a test did."""
        for node in NODES:
            if node in self._processes:
                self.signal(node, signal.SIGCONT)
        for node in NODES:
            if node not in self._processes:
                self.launch(node)
        for node in NODES:
            self.await_ready(node, members=len(NODES))

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(STOP_TIMEOUT)
        self._processes = {}

    # --- inside -------------------------------------------------------------------------------------------------------

    def _format(self) -> None:
        """Format one broker's storage with the users in it; the others' differs in their own names only."""
        cluster = identifier()
        options = ["--config", str(self.folder / "broker-1.properties"), "--cluster-id", cluster]
        for user, password in PASSWORDS.items():
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                options += ["--add-scram", f"{mechanism}=[name={user},password={password}]"]
        command = daemons.java(self._tools, "kafka.tools.StorageTool", "format", *options)
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder)
        if done.returncode != 0:
            raise ClusterError(f"Kafka's storage was not formatted: {done.stdout}{done.stderr}")
        first = self.folder / "data-1"
        meta = (first / "meta.properties").read_text().splitlines()
        for node in NODES[1:]:
            lines = [line for line in meta if not line.startswith(("node.id=", "directory.id="))]
            other = self.folder / f"data-{node}"
            subprocess.run(["cp", "-a", str(first), str(other)], check=True)
            (other / "meta.properties").write_text(
                "\n".join([*lines, f"node.id={node}", f"directory.id={identifier()}"]) + "\n"
            )

    def _properties(self, node: int) -> str:
        ports, keys = self._ports[node], self.certificates
        advertised = ports.listeners | {"ASTRAY": ASTRAY_PORT, "GATED": ports.gate}
        plain = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
        settings = {
            "process.roles": "broker,controller",
            "node.id": str(node),
            # Each in a zone of its own; who says no rack is sent to no near replica.
            "broker.rack": f"zone-{node}",
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            "controller.quorum.voters": ",".join(f"{each}@{HOST}:{self._ports[each].controller}" for each in NODES),
            "listeners": ",".join(
                [
                    *(f"{name}://{HOST}:{port}" for name, port in ports.listeners.items()),
                    f"CONTROLLER://{HOST}:{ports.controller}",
                ]
            ),
            "advertised.listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in advertised.items()),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in {**LISTENERS, "CONTROLLER": "PLAINTEXT"}.items()
            ),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.folder / f"data-{node}"),
            # A broker that fails is noticed soon; a machine that is busy for minutes is no failure.
            "broker.session.timeout.ms": "5000",
            "broker.heartbeat.interval.ms": "500",
            "controller.quorum.election.timeout.ms": "500",
            "controller.quorum.fetch.timeout.ms": "1000",
            "initial.broker.registration.timeout.ms": "180000",
            "replica.lag.time.max.ms": "5000",
            **KEEPS_RECORDS,
            "auto.create.topics.enable": "true",
            "default.replication.factor": "3",
            "min.insync.replicas": "1",
            "offsets.topic.num.partitions": "2",
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.num.partitions": "2",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": str(4 << 20),
            "num.network.threads": "1",
            "num.io.threads": "2",
            # Who may do what.
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{SUPER};User:CN={SUPER}",
            # Who is who.
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keys / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(keys / "ca.crt"),
            "listener.name.mutual.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        }
        modules = "org.apache.kafka.common.security"
        for listener in ("sasl_plaintext", "sasl_ssl"):
            prefix = f"listener.name.{listener}"
            settings[f"{prefix}.plain.sasl.jaas.config"] = f"{modules}.plain.PlainLoginModule required {plain};"
            for mechanism in ("scram-sha-256", "scram-sha-512"):
                settings[f"{prefix}.{mechanism}.sasl.jaas.config"] = f"{modules}.scram.ScramLoginModule required;"
            settings |= {
                f"{prefix}.oauthbearer.{name}": value
                for name, value in {
                    "sasl.jaas.config": f"{modules}.oauthbearer.OAuthBearerLoginModule required;",
                    "sasl.server.callback.handler.class": f"{modules}.oauthbearer.OAuthBearerValidatorCallbackHandler",
                    "sasl.oauthbearer.jwks.endpoint.url": self._key_set,
                    "sasl.oauthbearer.expected.issuer": tokens.ISSUER,
                    "sasl.oauthbearer.expected.audience": tokens.AUDIENCE,
                    # A connection ends with its token, unless the client authenticates again before.
                    "connections.max.reauth.ms": "3600000",
                }.items()
            }
        return "".join(f"{key}={value}\n" for key, value in settings.items())


def _free_ports() -> dict[int, _Ports]:
    """Ports that are free now, outside of the range from which the machine gives ports to clients."""
    free = iter(free_ports(len(NODES) * (len(LISTENERS) + 2)))
    return {node: _Ports({name: next(free) for name in LISTENERS}, next(free), next(free)) for node in NODES}
