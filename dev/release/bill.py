"""Decides what a bill of materials says: in CycloneDX, each package that is locked for an artefact.

Of an image it lists each package of Debian that is in it, too. Called by the command. Fetches nothing: the lock files have the
hashes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from dev.release.source import ReleaseError, Source


@dataclass(frozen=True)
class Locked:
    """One package of a lock file: any of these files of it may be installed."""

    name: str
    version: str
    sha256: tuple[str, ...]


@dataclass(frozen=True)
class DebianPackage:
    """One package of Debian that is installed in an image."""

    name: str
    version: str
    architecture: str


def locked(locks: Iterable[Path]) -> list[Locked]:
    """The packages of lock files, each once. Raises ReleaseError if two files lock one in different versions."""
    found: dict[str, Locked] = {}
    for lock in locks:
        entries = re.split(r"\n(?=\S)", re.sub(r"^\s*#.*\n?", "", lock.read_text(), flags=re.MULTILINE).strip())
        for entry in entries:
            name, _, version = entry.split()[0].partition("==")
            each = Locked(name, version, tuple(sorted(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))))
            if found.setdefault(name, each) != each:
                raise ReleaseError(
                    f"{lock.name} locks {name} {version}, another lock file {found[name].version}: run `make lock`"
                )
    return sorted(found.values(), key=lambda each: each.name)


def debian_packages(status: str) -> list[DebianPackage]:
    """What dpkg's status file says is installed."""
    found = []
    for paragraph in re.split(r"\n{2,}", status.strip()):
        fields = dict(re.findall(r"^([\w-]+): (.+)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            found.append(DebianPackage(fields["Package"], fields["Version"], fields["Architecture"]))
    return sorted(found, key=lambda each: (each.name, each.architecture))


def write(
    source: Source,
    about: Component,
    packages: Iterable[Locked],
    path: Path,
    debian: Iterable[DebianPackage] = (),
) -> Path:
    """Write the bill of what `about` is. The same for the same, wherever and whenever it is written."""
    components = [*(_of_python(each) for each in packages), *(_of_debian(each) for each in debian)]
    bom = Bom(components=components, serial_number=uuid5(NAMESPACE_URL, f"{about.purl}#{source.revision}"))
    bom.metadata.timestamp = source.created
    bom.metadata.component = about
    bom.register_dependency(about, components)
    path.write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n")
    return path


def ours(source: Source, kind: ComponentType, purl: PackageURL, sha256: Mapping[str, str]) -> Component:
    """What a bill is about: an artefact of ours; `sha256` are its files, by name."""
    files = [
        ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(name), hashes=[_hash(digest)])
        for name, digest in sha256.items()
    ]
    return Component(
        name=purl.name,
        version=source.version,
        type=kind,
        purl=purl,
        bom_ref=str(purl),
        licenses=[DisjunctiveLicense(id="Apache-2.0")],
        external_references=files,
    )


def _of_python(each: Locked) -> Component:
    purl = PackageURL("pypi", None, each.name, each.version)
    place = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(str(purl)),
        comment="any one of the files with these hashes",
        hashes=[_hash(digest) for digest in each.sha256],
    )
    return Component(
        name=each.name,
        version=each.version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=str(purl),
        external_references=[place],
    )


def _of_debian(each: DebianPackage) -> Component:
    purl = PackageURL("deb", "debian", each.name, each.version, {"arch": each.architecture, "distro": "bookworm"})
    return Component(name=each.name, version=each.version, type=ComponentType.LIBRARY, purl=purl, bom_ref=str(purl))


def _hash(sha256: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=sha256)
