"""Runs a query in a cell's location, one elsewhere, and one in a cell's location where the user says what creates the files.

The arguments are a folder, and a file that has a line for each `readlink` that was run. It prints how many each query ran.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from shardherd.spark.cells.location import FILES, Locations
from tests.harness.spark import make_session

OTHER = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
WITHIN = 120


def main(folder: Path, links: Path) -> None:
    spark = make_session(folder, {"spark.master": "local[1]"})
    locations = Locations(spark, str(folder / "state"), "group-uid")
    locations.check()

    def run(location: str) -> int:
        before = len(links.read_text().splitlines())
        rows = spark.readStream.format("rate").load()
        query = rows.writeStream.format("noop").option("checkpointLocation", location).trigger(availableNow=True).start()
        assert query.awaitTermination(WITHIN)
        assert (Path(location) / "commits" / "0").exists()
        return len(links.read_text().splitlines()) - before

    with locations.used():
        ours = run(locations.of(0, 1))
    elsewhere = run(str(folder / "elsewhere"))
    spark.conf.set(FILES, OTHER)
    with locations.used():
        said = run(locations.of(1, 1))
    spark.stop()
    print(json.dumps([ours, elsewhere, said]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
