"""Bills of materials: each locked package with its hashes, in CycloneDX's own schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.model.component import ComponentType
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from dev.release import bill
from dev.release.bill import DebianPackage, Locked, debian_packages, locked
from dev.release.source import ReleaseError, Source

ROOT = Path(__file__).parents[3]
SOURCE = Source(ROOT, "1.2.3", "a" * 40, 1_700_000_000)
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))

STATUS = """Package: tini
Status: install ok installed
Architecture: amd64
Version: 0.19.0-1
Description: tiny but valid init
 for containers

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u13
"""


def written(folder: Path, packages: list[Locked], debian: list[DebianPackage]) -> Any:
    about = bill.ours(
        SOURCE, ComponentType.CONTAINER, PackageURL("generic", None, "shardherd-spark", "1.2.3"), {"spark.tar": "b" * 64}
    )
    text = bill.write(SOURCE, about, packages, folder / "bill.json", debian).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    return json.loads(text)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_locked_package_is_listed_with_its_purl_and_hashes(lock: Path, tmp_path: Path) -> None:
    packages = locked([lock])
    said = written(tmp_path, packages, [])
    listed = {
        each["purl"]: {digest["content"] for place in each["externalReferences"] for digest in place["hashes"]}
        for each in said["components"]
    }
    lines = lock.read_text().splitlines()
    names = [line.split()[0] for line in lines if line and not line.startswith((" ", "#"))]
    hashes = {line.strip().removeprefix("--hash=sha256:").rstrip(" \\") for line in lines if "--hash=" in line}
    assert set(listed) == {f"pkg:pypi/{name.replace('==', '@')}" for name in names}
    assert set().union(*listed.values()) == hashes
    assert all(listed.values())


def test_it_says_what_it_is_of_and_is_the_same_each_time(tmp_path: Path) -> None:
    packages = [Locked("one", "1.0", ("c" * 64,))]
    said = written(tmp_path, packages, [])
    assert said == written(tmp_path, packages, [])
    about = said["metadata"]["component"]
    assert (about["type"], about["name"], about["version"]) == ("container", "shardherd-spark", "1.2.3")
    assert about["externalReferences"] == [
        {"type": "distribution", "url": "spark.tar", "hashes": [{"alg": "SHA-256", "content": "b" * 64}]}
    ]
    assert said["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert {"ref": about["bom-ref"], "dependsOn": ["pkg:pypi/one@1.0"]} in said["dependencies"]


def test_of_an_image_the_packages_of_debian_are_listed_too(tmp_path: Path) -> None:
    installed = debian_packages(STATUS)
    assert installed == [DebianPackage("libc6", "2.36-9+deb12u13", "amd64"), DebianPackage("tini", "0.19.0-1", "amd64")]
    assert [each["purl"] for each in written(tmp_path, [], installed)["components"]] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64&distro=bookworm",
        "pkg:deb/debian/tini@0.19.0-1?arch=amd64&distro=bookworm",
    ]


def test_what_several_files_lock_is_listed_once_and_must_be_of_one_version(tmp_path: Path) -> None:
    for name, version in {"a": "1.0", "b": "1.0", "c": "2.0"}.items():
        (tmp_path / f"{name}.lock").write_text(f"one=={version} \\\n    --hash=sha256:{'c' * 64}\n    # via two\n")
    assert locked([tmp_path / "a.lock", tmp_path / "b.lock"]) == [Locked("one", "1.0", ("c" * 64,))]
    with pytest.raises(ReleaseError, match=r"c\.lock locks one 2\.0, another lock file 1\.0: run `make lock`"):
        locked([tmp_path / "a.lock", tmp_path / "c.lock"])
