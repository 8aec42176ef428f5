"""Decides how every program of the local cluster is got, once, and where it is kept. Called by `cluster` and `tools`.

Everything comes from package registries by their ordinary clients: Debian packages by apt-get, Go programs by `go build` of
the `tool` directives in tools/*/go.mod, Kafka by Maven from tools/kafka/pom.xml, kinesalite by npm from its lock file. What is
built is kept in the cache under a name that holds a digest of its inputs, so a changed version is built next to the old one.
Starts nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dev.cluster import ociimage
from dev.cluster.errors import ClusterError
from dev.cluster.paths import SOURCES, cache
from dev.cluster.progress import step

APT_PACKAGES = (
    "buildah",
    "busybox-static",
    "ca-certificates",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "debootstrap",
    "ethtool",
    "iproute2",
    "iptables",
    "openssl",
    "prometheus",
    "runc",
    "socat",
    "util-linux",
)
BROWSER_PACKAGES = ("chromium", "chromium-driver")
POSTGRESQL_PACKAGES = ("postgresql", "postgresql-client")
ARCHIVE_PACKAGES = ("skopeo",)
KERBEROS_PACKAGES = ("krb5-admin-server", "krb5-kdc", "python3-gssapi")
NODE_PACKAGES = {"node": "nodejs", "npm": "npm"}
NODE_FILES = ("package.json", "package-lock.json")
JAVA_PACKAGES = {"java": "openjdk-17-jre-headless", "mvn": "maven"}
JAVA_COMPILER_PACKAGE = "openjdk-17-jdk-headless"

GO_VERSION = "1.26.8"
GO_THAT_UPDATES_ITSELF = 21

KUBERNETES_VERSION = "1.34.4"
_VERSION_PACKAGE = "k8s.io/component-base/version"
LINKER_FLAGS = {
    # Without these the programs call themselves v0.0.0 and clients refuse features.
    "kubernetes": " ".join(
        [
            "-s -w",
            f"-X {_VERSION_PACKAGE}.gitVersion=v{KUBERNETES_VERSION}",
            f"-X {_VERSION_PACKAGE}.gitMajor={KUBERNETES_VERSION.split('.')[0]}",
            f"-X {_VERSION_PACKAGE}.gitMinor={KUBERNETES_VERSION.split('.')[1]}",
        ]
    ),
    "etcd": "-s -w",
    "helm": "-s -w",
    "coredns": "-s -w",
    "kwok": "-s -w",
    "cert-manager": "-s -w",
}

BASE_SUITE = "bookworm"
# What debian:bookworm-slim leaves out too. Java's post-install wants man1 to exist.
SLIM_EXCLUDES = "\n".join(
    [
        "path-exclude /usr/share/doc/*",
        "path-include /usr/share/doc/*/copyright",
        "path-exclude /usr/share/info/*",
        "path-exclude /usr/share/locale/*",
        "path-exclude /usr/share/man/*",
        "",
    ]
)

PAUSE_IMAGE = "docker.io/shardherd/pause:dev"
BUSYBOX_IMAGE = "docker.io/shardherd/busybox:dev"
BUSYBOX = Path("/bin/busybox")


@dataclass(frozen=True)
class Tools:
    """Paths of all tools. Asking for one builds it if the cache does not have it."""

    @cached_property
    def kubernetes(self) -> Path:
        """Folder of kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy, kubelet and kubectl."""
        return _go_programs("kubernetes")

    @cached_property
    def kubectl(self) -> Path:
        return self.kubernetes / "kubectl"

    @cached_property
    def etcd(self) -> Path:
        # The Go command names a program after its package's folder: go.etcd.io/etcd/server/v3.
        return _go_programs("etcd") / "server"

    @cached_property
    def helm(self) -> Path:
        return _go_programs("helm") / "helm"

    @cached_property
    def coredns(self) -> Path:
        return _go_programs("coredns") / "coredns"

    @cached_property
    def kwok(self) -> Path:
        """What plays kubelets; only the benchmark of the operator asks for it."""
        return _go_programs("kwok") / "kwok"

    @cached_property
    def cert_manager(self) -> Path:
        """cert-manager's controllers; only a long test asks for them."""
        return _go_programs("cert-manager") / "cert-manager"

    @cached_property
    def cert_manager_definitions(self) -> Path:
        """Folder of the definitions of cert-manager's resources, of the version of its controllers."""
        return _module("cert-manager", "github.com/cert-manager/cert-manager") / "deploy" / "crds"

    @cached_property
    def kafka(self) -> Path:
        """Folder of the jars of the broker and of its command-line tools; whoever asks for it will need Java, too."""
        _ensure(_java_packages())
        return jars("kafka", SOURCES / "kafka" / "pom.xml")

    @cached_property
    def spark_jars(self) -> Path:
        """Folder of the jars of Spark's own Kafka source and of its `from_avro`, which pyspark does not bring."""
        return jars("spark-kafka", SOURCES / "spark-kafka" / "pom.xml")

    @cached_property
    def postgresql_jars(self) -> Path:
        """Folder of the jar of PostgreSQL's driver for Java; only the benchmark of the sinks asks for it."""
        return jars("postgresql-jdbc", SOURCES / "postgresql-jdbc" / "pom.xml")

    @cached_property
    def java_compiler(self) -> str:
        """A `java` that can run source files, which the benchmarks need."""
        if not shutil.which("javac"):
            with step(f"installing Debian package {JAVA_COMPILER_PACKAGE}"):
                _install([JAVA_COMPILER_PACKAGE])
        return "java"

    @cached_property
    def pause(self) -> Path:
        """Archive of the images of the sandbox container and of busybox."""
        return _small_images()

    @cached_property
    def base(self) -> Path:
        """Archive of the root file system of the base image."""
        return _base_system()

    @cached_property
    def kerberos(self) -> Path:
        """Folder of the Python package gssapi, which Debian has compiled; installs Kerberos' own programs, too."""
        _ensure(list(KERBEROS_PACKAGES))
        folder = cache() / "tools" / "gssapi"
        folder.mkdir(parents=True, exist_ok=True)
        # Nothing else of the system's Python: it has packages that we have, too.
        for name in ("gssapi", "decorator.py"):
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(Path("/usr/lib/python3/dist-packages") / name)
        return folder

    @cached_property
    def postgresql(self) -> Path:
        """Folder of the programs of Debian's PostgreSQL; installing them makes the user that it runs as."""
        _ensure(list(POSTGRESQL_PACKAGES))
        return max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))

    @cached_property
    def kinesalite(self) -> Path:
        """Folder of the packages of kinesalite, a server that does as Kinesis does; installs what runs it, too."""
        _ensure(_node_packages())
        return _node_modules("kinesalite")

    @cached_property
    def packages(self) -> None:
        """Nothing; installs the Debian packages."""
        _ensure([*APT_PACKAGES, *_java_packages()])

    def there(self, name: str) -> bool:
        """Whether asking for this tool would find it, and fetch or build nothing."""
        if name == "packages":
            return not _missing([*APT_PACKAGES, *_java_packages()])
        if name in LINKER_FLAGS:
            return _folder(name, _go_inputs(name)).exists()
        if name == "kafka":
            return _folder(name, (SOURCES / "kafka" / "pom.xml").read_bytes()).exists()
        if name == "kinesalite":
            return not _node_packages() and _folder(name, _node_inputs(name)).exists()
        if name == "base":
            return _folder(name, _base_inputs()).exists()
        return BUSYBOX.exists() and _folder("busybox", _busybox_inputs()).exists()


def machine() -> str:
    return platform.machine()


def _run(command: list[str], *, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Standard output of a command; ClusterError with the end of its errors."""
    done = subprocess.run(command, env={**os.environ, **(env or {})}, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
        raise ClusterError(f"`{' '.join(command)}` ended with {done.returncode}:\n{said}")
    return done.stdout


def _folder(name: str, inputs: bytes) -> Path:
    return cache() / "tools" / f"{name}-{hashlib.sha256(inputs).hexdigest()[:12]}-{machine()}"


def _cached(name: str, inputs: bytes, what: str, build: Callable[[Path], None]) -> Path:
    """The folder of a tool in the cache; `build` fills a scratch folder that then takes its place at once."""
    folder = _folder(name, inputs)
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder
        with step(what, name):
            scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
            try:
                scratch.chmod(0o755)
                build(scratch)
                scratch.rename(folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return folder


def browser_packages() -> None:
    """What tests of the page look at it with."""
    _ensure(list(BROWSER_PACKAGES))


def archive_packages() -> None:
    """What tests of a release push its images with, as users do."""
    _ensure(list(ARCHIVE_PACKAGES))


def _java_packages() -> list[str]:
    return [package for program, package in JAVA_PACKAGES.items() if not shutil.which(program)]


def _node_packages() -> list[str]:
    return [package for program, package in NODE_PACKAGES.items() if not shutil.which(program)]


def _missing(packages: list[str]) -> list[str]:
    if not packages:
        return []
    status = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages], capture_output=True, text=True, check=False
    )
    installed = {line.split()[0] for line in status.stdout.splitlines() if line.endswith(" installed")}
    return [package for package in packages if package not in installed]


def _ensure(packages: list[str]) -> None:
    """Install those of these Debian packages that are not there."""
    if missing := _missing(packages):
        with step(f"installing Debian packages: {' '.join(missing)}", "packages" if len(missing) > 2 else ""):
            _install(missing)


def _install(packages: list[str]) -> None:
    if os.geteuid() != 0:
        raise ClusterError(f"these Debian packages are missing and only root can install them: {' '.join(packages)}")
    cache().mkdir(parents=True, exist_ok=True)
    # One at a time: apt-get does not wait for another one that reads the lists.
    with (cache() / "packages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (missing := _missing(packages)):
            return
        with _no_services():
            quiet = {"DEBIAN_FRONTEND": "noninteractive"}
            finish_interrupted()
            _run(["apt-get", "update", "-qq"], env=quiet)
            _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], env=quiet)


def finish_interrupted() -> None:
    """Configure the packages that somebody who was ended has unpacked only: apt-get installs nothing until that is done."""
    if _run(["dpkg", "--audit"]).strip():
        _run(["dpkg", "--configure", "-a"], env={"DEBIAN_FRONTEND": "noninteractive"})


@contextmanager
def _no_services() -> Iterator[None]:
    """Packages may not start services of their own (containerd, Prometheus) meanwhile."""
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            policy.unlink()


def _go() -> str:
    """The Go command: the machine's if it can fetch newer toolchains by itself, else one fetched from the module proxy."""
    found = shutil.which("go")
    if found:
        version = re.search(r"go1\.(\d+)", _run([found, "version"], env={"GOTOOLCHAIN": "local"}))
        if version and int(version[1]) >= GO_THAT_UPDATES_ITSELF:
            return found
    return str(_go_toolchain() / "bin" / "go")


def _go_toolchain() -> Path:
    """Debian's Go is too old for the modules, but can fetch a newer Go, which is published as a module too."""
    architecture = ociimage.ARCHITECTURES.get(machine(), machine())
    module = f"golang.org/toolchain@v0.0.1-go{GO_VERSION}.linux-{architecture}"

    def build(scratch: Path) -> None:
        if not shutil.which("go"):
            _install(["golang-go"])
        work = scratch / "work"
        work.mkdir()
        env = {"GOPATH": str(work), "GOFLAGS": "-modcacherw", "GO111MODULE": "on"}
        fetched = Path(json.loads(_run(["go", "mod", "download", "-json", module], env=env, cwd=work))["Dir"])
        # The archive of a module does not carry who may execute what.
        for program in (*fetched.glob("bin/*"), *fetched.glob("pkg/tool/*/*")):
            program.chmod(0o755)
        for each in fetched.iterdir():
            each.rename(scratch / each.name)
        shutil.rmtree(work)

    return _cached("go", module.encode(), f"fetching Go {GO_VERSION}", build)


def _go_inputs(name: str) -> bytes:
    source = SOURCES / name
    files = [source / "go.mod", source / "go.sum", *sorted(source.glob("*.go"))]
    return b"".join([*(file.read_bytes() for file in files), LINKER_FLAGS[name].encode()])


def _go_programs(name: str) -> Path:
    def build(scratch: Path) -> None:
        # The linker drops what debuggers read, so the compiler need not write it; and it collects its garbage rarely. Both save
        # a quarter of the processor's time, and change nothing in the programs: they are no input.
        quick = ["-gcflags", "all=-dwarf=false"]
        command = [_go(), "build", "-mod=readonly", "-buildvcs=false", *quick, "-ldflags", LINKER_FLAGS[name]]
        environment = {"CGO_ENABLED": "0", "GOWORK": "off", "GOGC": "300"}
        _run([*command, "-o", f"{scratch}/", "tool"], cwd=SOURCES / name, env=environment)

    return _cached(name, _go_inputs(name), f"building {name} from Go modules, once", build)


def _module(name: str, path: str) -> Path:
    """Where Go keeps the sources of a module that the programs of `name` need."""
    listed = [_go(), "mod", "download", "-json", path]
    return Path(json.loads(_run(listed, cwd=SOURCES / name, env={"GOWORK": "off"}))["Dir"])


def jars(name: str, pom: Path) -> Path:
    """A folder of the jars that a pom depends on, from Maven. Raises ClusterError."""

    def build(scratch: Path) -> None:
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={scratch}"]
        _run(["mvn", "-q", "-B", "-f", str(pom), *goal])

    return _cached(name, pom.read_bytes(), f"fetching {name} from Maven", build)


def _node_inputs(name: str) -> bytes:
    return b"".join((SOURCES / name / file).read_bytes() for file in NODE_FILES)


def _node_modules(name: str) -> Path:
    """The folder of the packages that a lock file names, from npm; none of them runs anything of its own meanwhile."""

    def build(scratch: Path) -> None:
        for file in NODE_FILES:
            shutil.copy(SOURCES / name / file, scratch)
        _run(["npm", "ci", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund"], cwd=scratch)

    return _cached(name, _node_inputs(name), f"fetching {name} from npm", build) / "node_modules"


def _small_images() -> Path:
    def build(scratch: Path) -> None:
        ociimage.write_busybox(BUSYBOX, scratch / "images.tar", machine(), PAUSE_IMAGE, BUSYBOX_IMAGE)

    return _cached("busybox", _busybox_inputs(), "making the sandbox image", build) / "images.tar"


def _busybox_inputs() -> bytes:
    return Path(ociimage.__file__).read_bytes() + BUSYBOX.read_bytes()


def _base_system() -> Path:
    def build(scratch: Path) -> None:
        root = scratch / "root"
        mirrors = _debian_mirrors()
        _run(
            [
                "debootstrap",
                "--variant=minbase",
                BASE_SUITE,
                str(root),
                *([mirrors[BASE_SUITE]] if BASE_SUITE in mirrors else []),
            ]
        )
        if mirrors:
            lines = [f"deb {address} {suite} main\n" for suite, address in mirrors.items()]
            (root / "etc/apt/sources.list").write_text("".join(lines))
        (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(SLIM_EXCLUDES)
        for folder in ("usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man", "var/lib/apt/lists"):
            shutil.rmtree(root / folder, ignore_errors=True)
        for folder in ("usr/share/man/man1", "var/lib/apt/lists/partial"):
            (root / folder).mkdir(parents=True)
        for leftover in (*(root / "var/cache/apt").rglob("*.*"), *(root / "var/log").rglob("*.log")):
            leftover.unlink()
        _run(["tar", "--create", "--numeric-owner", "--xattrs", f"--directory={root}", f"--file={scratch / 'root.tar'}", "."])
        shutil.rmtree(root)

    return (
        _cached("base", _base_inputs(), f"making the base image's file system ({BASE_SUITE}, debootstrap)", build) / "root.tar"
    )


def _base_inputs() -> bytes:
    return f"{BASE_SUITE}\n{SLIM_EXCLUDES}".encode()


def _debian_mirrors() -> dict[str, str]:
    """Where this machine's apt gets the suite and its updates from: suite -> address. Empty if it runs another suite."""
    listing = _run(["apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"])
    parts = [line.split() for line in listing.splitlines()]
    return {suite: address for suite, component, address in parts if suite.startswith(BASE_SUITE) and component == "main"}
