"""`python -m dev.release`: fills a folder with all that is given to users, or with the packages alone.

Called by `make release` and `make wheel`. Publishes nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cyclonedx.model.component import ComponentType
from packageurl import PackageURL

from dev.cluster.errors import ClusterError
from dev.cluster.paths import REPOSITORY
from dev.cluster.progress import say, step
from dev.cluster.tools import Tools
from dev.release import bill, chart, checksums, images, packages
from dev.release.source import ReleaseError, Source, read, working_tree

LOCKS = ("aws", "cli", "delta", "operator", "postgresql", "spark", "worker")
"""What the package may be installed with."""


LOCKS_OF_IMAGES = {"operator": ("operator",), "spark": ("spark",), "worker": ("worker",)}
"""What the images are made with."""


def of_image(source: Source, target: str, file: Path, out: Path) -> Path:
    """The bill of materials of an image."""
    purl = PackageURL("generic", None, f"shardherd-{target}", source.version)
    about = bill.ours(source, ComponentType.CONTAINER, purl, {file.name: checksums.of(file)})
    packages = bill.locked(_locks(source, LOCKS_OF_IMAGES[target]))
    path = out / f"{images.file_name(source, target)}.cdx.json"
    return bill.write(source, about, packages, path, bill.debian_packages(images.debian_status(target)))


def of_packages(source: Source, files: Sequence[Path], out: Path) -> Path:
    """The bill of materials of the packages."""
    sums = {path.name: checksums.of(path) for path in files}
    about = bill.ours(source, ComponentType.LIBRARY, PackageURL("pypi", None, "shardherd", source.version), sums)
    return bill.write(source, about, bill.locked(_locks(source, LOCKS)), out / f"shardherd-{source.version}.cdx.json")


def _locks(source: Source, names: Sequence[str]) -> list[Path]:
    return [source.repository / "requirements" / f"{name}.lock" for name in names]


def release(source: Source, out: Path) -> list[Path]:
    """Fill the folder `out`, which has nothing else afterwards."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        made = Path(scratch) / out.name
        with step("making the packages"):
            of_packages(source, packages.build(source, made), made)
        with step("building the images"):
            images.build()
        for target in LOCKS_OF_IMAGES:
            with step(f"making the archive of the image {target}"):
                of_image(source, target, images.archive(source, target, made), made)
        helm = Tools().helm
        with step("making the chart's archive"):
            chart.package(source, made, helm)
        checksums.write(made)
        # What was there stays until all is made.
        shutil.rmtree(out, ignore_errors=True)
        made.rename(out)
    return sorted(out.iterdir())


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m dev.release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=["all", "packages"], default="all")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "dist")
    options = parser.parse_args(arguments)
    try:
        if options.what == "packages":
            made = list(packages.build(working_tree(REPOSITORY, os.environ), options.out))
        else:
            made = release(read(REPOSITORY, os.environ), options.out)
    except (ReleaseError, ClusterError) as error:
        say(f"release: {error}")
        return 1
    for path in made:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
