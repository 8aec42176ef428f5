"""Decides the keys and certificates of an instance. Called by `cluster` and `kafka` before the first start. Uses openssl only.

Every instance has an authority of its own, so a credential of one is worth nothing at another.
"""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dev.cluster.errors import ClusterError
from dev.cluster.registry import Addresses

DAYS = "3650"


@dataclass(frozen=True)
class Identity:
    """One certificate: who it names (CN), the groups it gives (O), the names and addresses that it may serve under."""

    file: str
    name: str
    group: str = ""
    serves: tuple[str, ...] = ()


def identities(addresses: Addresses, node_name: str) -> list[Identity]:
    """Every certificate of an instance."""
    service = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
    ]
    api_names = (*(f"DNS:{name}" for name in service), *(f"IP:{ip}" for ip in _api_ips(addresses)))
    return [
        Identity("apiserver", "kube-apiserver", serves=api_names),
        Identity("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
        Identity("front-proxy-client", "front-proxy-client"),
        Identity("admin", "kubernetes-admin", "system:masters"),
        Identity("controller-manager", "system:kube-controller-manager"),
        Identity("scheduler", "system:kube-scheduler"),
        Identity("proxy", "system:kube-proxy"),
        Identity("coredns", "shardherd:coredns", "system:masters"),
        Identity("kubelet", f"system:node:{node_name}", "system:nodes"),
        Identity("kubelet-serving", node_name, serves=(f"DNS:{node_name}", f"IP:{addresses.node}")),
    ]


def _api_ips(addresses: Addresses) -> tuple[str, ...]:
    return ("127.0.0.1", addresses.node, addresses.first_service)


def write(folder: Path, addresses: Addresses, node_name: str) -> None:
    """Write ca.crt, ca.key, sa.key, sa.pub and NAME.crt, NAME.key of every identity into `folder`."""
    write_authority(folder)
    _openssl("genrsa", "-out", str(folder / "sa.key"), "2048")
    _openssl("rsa", "-in", str(folder / "sa.key"), "-pubout", "-out", str(folder / "sa.pub"))
    for identity in identities(addresses, node_name):
        sign(folder, identity)


def write_authority(folder: Path) -> None:
    """Make the folder, with an authority of its own: ca.crt and ca.key."""
    folder.mkdir(parents=True, mode=0o700)
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(folder / "ca.key"))
    ca = ["-key", str(folder / "ca.key"), "-out", str(folder / "ca.crt"), "-days", DAYS, "-subj", "/CN=shardherd-ca"]
    _openssl("req", "-x509", "-new", *ca)


def sign(folder: Path, identity: Identity) -> None:
    """Write NAME.crt and NAME.key of an identity, signed by the folder's authority."""
    key, request, certificate = (folder / f"{identity.file}.{suffix}" for suffix in ("key", "csr", "crt"))
    subject = (f"/O={identity.group}" if identity.group else "") + f"/CN={identity.name}"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    _openssl("req", "-new", *curve, "-keyout", str(key), "-out", str(request), "-subj", subject)
    usage = ["keyUsage=critical,digitalSignature", "extendedKeyUsage=clientAuth,serverAuth"]
    names = [f"subjectAltName={','.join(identity.serves)}"] if identity.serves else []
    extensions = folder / f"{identity.file}.ext"
    extensions.write_text("\n".join([*usage, *names]) + "\n")
    authority = ["-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key"), "-CAcreateserial"]
    _openssl(
        "x509", "-req", "-in", str(request), *authority, "-out", str(certificate), "-days", DAYS, "-extfile", str(extensions)
    )
    request.unlink()
    extensions.unlink()


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")


def kubeconfig(folder: Path, identity: str, server: str, cluster: str) -> str:
    """A kubeconfig with everything inside it, so that it works from any folder. JSON is YAML."""

    def inline(name: str) -> str:
        return base64.b64encode((folder / name).read_bytes()).decode()

    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": {"server": server, "certificate-authority-data": inline("ca.crt")}}],
        "users": [
            {
                "name": identity,
                "user": {
                    "client-certificate-data": inline(f"{identity}.crt"),
                    "client-key-data": inline(f"{identity}.key"),
                },
            }
        ],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": identity, "namespace": "default"}}],
        "current-context": cluster,
    }
    return json.dumps(content, indent=2) + "\n"
