"""Decides how a realm of Kerberos runs on this machine by itself: Debian's KDC, on the loopback address. Called by fixtures.

Its principals are made before it starts, each with a keytab in `folder`. It knows nothing of Kafka.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from dev.cluster.errors import ClusterError, tail
from dev.cluster.ports import HOST, free_ports
from dev.cluster.tools import Tools
from dev.cluster.waiting import wait_for

NAME = "SHARDHERD.TEST"
START_TIMEOUT = 30.0
STOP_TIMEOUT = 10.0


class Realm:
    """One KDC with its data in `folder`. `make` principals, `start` it, `close` it at the end."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        self.folder = folder
        self.package = tools.kerberos
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.client_settings.write_text(
            f"[libdefaults]\ndefault_realm = {NAME}\ndns_lookup_kdc = false\ndns_lookup_realm = false\n"
            "dns_canonicalize_hostname = false\nrdns = false\nudp_preference_limit = 1\n"
            f"[realms]\n{NAME} = {{\n  kdc = {HOST}:{self._port}\n}}\n"
        )
        (folder / "kdc.conf").write_text(
            f"[realms]\n{NAME} = {{\n  database_name = {folder}/principal\n  key_stash_file = {folder}/stash\n"
            f"  acl_file = {folder}/kadm5.acl\n  kdc_listen = {HOST}:{self._port}\n  kdc_tcp_listen = {HOST}:{self._port}\n"
            "  max_life = 1h\n  supported_enctypes = aes256-cts-hmac-sha1-96:normal\n}\n"
            f"[logging]\nkdc = FILE:{self.log}\n"
        )
        self._run("/usr/sbin/kdb5_util", "create", "-s", "-P", "of-this-run-only", "-r", NAME)

    @property
    def client_settings(self) -> Path:
        """The krb5.conf of its clients."""
        return self.folder / "krb5.conf"

    @property
    def log(self) -> Path:
        return self.folder / "kdc.log"

    def make(self, principal: str, life: str = "1h") -> Path:
        """The keytab of a new principal, whose tickets are good for so long."""
        keytab = self.folder / f"{principal.replace('/', '-')}.keytab"
        self._run("/usr/sbin/kadmin.local", "addprinc", "-randkey", "-maxlife", life, principal)
        self._run("/usr/sbin/kadmin.local", "ktadd", "-k", str(keytab), principal)
        return keytab

    def start(self) -> None:
        command = ["setpriv", "--pdeathsig", "KILL", "/usr/sbin/krb5kdc", "-n", "-r", NAME]
        with (self.folder / "kdc.out").open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=self._environment(), start_new_session=True)
        process = self._process

        def answers() -> str | None:
            if process.poll() is not None:
                raise ClusterError(f"the KDC has ended\n{tail(self.folder / 'kdc.out')}")
            with socket.socket() as probe:
                return None if probe.connect_ex((HOST, self._port)) == 0 else "nobody listens"

        wait_for("readiness of the KDC", answers, self.log, START_TIMEOUT)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT)
            self._process = None

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "KRB5_CONFIG": str(self.client_settings), "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf")}
