// The names of everything that the page reads of its document, and the check that the document has them. A test compares them
// with what shardherd/page/document.py makes. Nothing else of a document may be read.

export const FORMAT = 1;

const ROW = [
  "namespace", "name", "ready", "reason", "message", "shardsTotal", "shardsRead", "consumersReady", "consumersWanted",
  "lagRecords", "lagSeconds",
];

export const FIELDS = {
  document: ["format", "version", "time", "groups", "groupsOmitted", "wanted", "group"],
  row: ROW,
  group: [
    ...ROW, "loaded", "paused", "assignor", "epoch", "produced", "consumed", "conditions", "withheld", "diagnosis", "states",
    "consumers", "consumersOmitted", "shards", "shardsOmitted", "lag", "rebalances", "rebalancesForgotten", "since",
  ],
  condition: ["type", "status", "reason", "message", "since"],
  withheld: ["reason", "message"],
  answer: ["question", "reason", "message", "means", "remedy", "source"],
  state: ["state", "means", "shards"],
  consumer: ["name", "ready", "draining", "cordoned", "phase", "phaseSeconds", "heartbeatSeconds", "shards", "zone", "stage",
    "fullest"],
  shard: ["name", "state", "holder", "next", "epoch", "position", "end", "lag", "verdict", "age", "why"],
  lag: ["interval", "points"],
  rebalance: ["time", "reason", "moved", "means"],
};

const PARTS = { conditions: "condition", withheld: "withheld", diagnosis: "answer", states: "state", consumers: "consumer",
  rebalances: "rebalance" };

export class OtherVersionError extends Error {}

function has(kind, value) {
  const missing = FIELDS[kind].filter((name) => !(name in value));
  if (missing.length) {
    throw new OtherVersionError(`The operator is of another version than this page (no ${kind}.${missing[0]}): reload the page.`);
  }
}

/** The document with its shards as objects; throws OtherVersionError if it is not as expected. */
export function checked(found) {
  if (found.format !== FORMAT) {
    throw new OtherVersionError("The operator is of another version than this page: reload the page.");
  }
  has("document", found);
  found.groups.forEach((each) => has("row", each));
  if (found.group) {
    has("group", found.group);
    has("lag", found.group.lag);
    for (const [name, kind] of Object.entries(PARTS)) found.group[name].forEach((each) => has(kind, each));
    // They come as rows without names, as there are thousands.
    found.group.shards = found.group.shards.map((row) => Object.fromEntries(FIELDS.shard.map((name, at) => [name, row[at]])));
  }
  return found;
}
