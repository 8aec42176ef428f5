// One group in full. Made once for a group; then its parts are changed in place, so that focus and open tables stay.

import { makeChart } from "./chart.js";
import { attribute, clock, duration, h, keyed, number, plural, table, text } from "./dom.js";
import { makePicture } from "./picture.js";
import { makeShard, makeShards } from "./shards.js";

const section = (title, ...children) => {
  const id = `part-${title.toLowerCase().replaceAll(" ", "-")}`;
  return h("section", { "aria-labelledby": id }, h("h3", { id }, title), ...children);
};

function tile(name) {
  const value = h("dd");
  return { node: h("div", { class: "tile" }, h("dt", {}, name), value), value };
}

function answer() {
  const parts = ["question", "said", "means", "remedy", "source"].map((name) => h(name === "question" ? "h4" : "p", { class: name }));
  return h("li", { class: "card" }, ...parts);
}

function fillAnswer(node, why) {
  const remedy = why.remedy && `What to do: ${why.remedy}.`;
  const means = why.means && `It means: ${why.means}.`;
  const said = why.reason ? `${why.reason}: ${why.message}` : why.message;
  [why.question, said, means, remedy, `From ${why.source}.`].forEach((each, at) => {
    node.children[at].hidden = !each;
    text(node.children[at], each);
  });
}

/** How full a consumer is: its stage where that has consequences, and the fullest of what it reports. */
function full(consumer) {
  return [consumer.stage !== "below" && `above ${consumer.stage}`, consumer.fullest].filter(Boolean).join(": ") || null;
}

export function makeGroup(announce) {
  const title = h("h2");
  const ready = h("span", { class: "badge" });
  const message = h("p", { class: "said" });
  const loading = h("p", { class: "trouble" }, "The coordinator has not loaded this group yet: what is shown is from its status alone.");
  const tiles = Object.fromEntries(["Lag", "Oldest record", "Consumers", "Shards", "Read", "Written"].map((name) => [name, tile(name)]));
  const withheld = h("ul", { class: "withheld" });
  const answers = h("ol", { class: "answers" });
  const states = h("ul", { class: "states", "aria-label": "States of shards" });
  const noShards = h("p", { class: "state" }, "No shards are known yet.");
  const lagRecords = makeChart("Lag in records", number);
  const lagSeconds = makeChart("Lag in seconds", duration);
  const conditions = table("Conditions", ["condition", "is", "reason", "since", "message"]);
  const consumers = table("Consumers", ["consumer", "ready", "shards", "phase", "last heard", "how full", "zone"]);
  const rebalances = table("Rebalances, the newest first", ["time", "reason", "shards moved", "means"]);
  const told = h("p", { class: "muted" });
  const more = h("p", { class: "muted" });
  let shown = null;
  let chosen = null;
  const pick = (name) => {
    chosen = name === chosen ? null : name;
    const shard = shown.shards.find((each) => each.name === chosen);
    if (shard) announce(`${shard.name}: ${shard.state}, ${shard.holder ?? "held by nobody"}. ${shard.why ?? ""}`);
    one();
  };
  const picture = makePicture(pick);
  const shard = makeShard(() => {
    pick(chosen);
    picture.node.firstElementChild.focus();
  });
  const shards = makeShards();

  const node = h("article", {},
    h("div", { class: "title" }, title, ready), message, loading,
    h("dl", { class: "tiles" }, ...Object.values(tiles).map((each) => each.node)),
    section("Diagnosis", withheld, answers),
    section("Shards on consumers", states, noShards, picture.node, shard.node),
    section("Lag of the last hour", h("div", { class: "pair" }, lagRecords.node, lagSeconds.node)),
    section("Rebalances", told, rebalances.node),
    section("Conditions", conditions.node),
    section("Consumers", more, consumers.node),
    section("Shards", shards.node));

  function one() {
    picture.update(shown, chosen);
    shard.update(shown.shards.find((each) => each.name === chosen));
  }

  /** Says what has changed to who does not see it. */
  function tell(before, now) {
    if (before.ready !== now.ready) announce(`Ready is ${now.ready}: ${now.message}`);
    const holders = new Map(before.shards.map((each) => [each.name, each.holder]));
    const moved = now.shards.filter((each) => holders.has(each.name) && holders.get(each.name) !== each.holder);
    if (moved.length) {
      const [first] = moved;
      announce(`${plural(moved.length, "shard")} moved; ${first.name} is with ${first.holder ?? "nobody"}`);
    }
  }

  function update(group, now) {
    const before = shown;
    shown = group;
    text(title, `${group.namespace}/${group.name}`);
    text(ready, group.paused ? "paused" : { True: "ready", False: "not ready" }[group.ready] ?? "unknown");
    attribute(ready, "data-ready", group.ready);
    text(message, group.reason ? `${group.reason}: ${group.message}` : group.message);
    loading.hidden = group.loaded;
    const perSecond = (value) => (value === null ? "-" : `${number(value)} /s`);
    const values = {
      Lag: plural(group.lagRecords ?? 0, "record"), "Oldest record": duration(group.lagSeconds),
      Consumers: `${number(group.consumersReady)} of ${number(group.consumersWanted)} ready`,
      Shards: `${number(group.shardsRead)} of ${number(group.shardsTotal)} held`,
      Read: perSecond(group.consumed), Written: perSecond(group.produced),
    };
    if (group.lagRecords === null) values.Lag = "-";
    for (const [name, value] of Object.entries(values)) text(tiles[name].value, value);

    keyed(withheld, group.withheld, (each) => each.reason + each.message, () => h("li", { class: "trouble" }),
      (item, each) => text(item, `${each.reason}: ${each.message}`));
    withheld.hidden = !group.withheld.length;
    keyed(answers, group.diagnosis, (why) => `${why.question} ${why.message}`, answer, fillAnswer);
    conditions.update(group.conditions, (each) => each.type,
      (each) => [each.type, each.status, each.reason, clock(each.since), each.message]);

    keyed(states, group.states, (each) => each.state,
      () => h("li", {}, h("span", { "aria-hidden": "true" }), h("b"), h("span", { class: "muted" })), (item, each) => {
        const [swatch, name, means] = item.children;
        attribute(swatch, "class", `swatch ${each.state}`);
        text(name, `${each.state} ${number(each.shards)}`);
        text(means, each.means);
      });
    noShards.hidden = group.shards.length > 0;
    one();

    const points = group.lag.points;
    const live = group.loaded && group.lagRecords !== null ? [[now, group.lagRecords, group.lagSeconds]] : [];
    const all = [...points, ...live];
    lagRecords.update(all.map(([time, records]) => [time, records]), now, group.lag.interval);
    lagSeconds.update(all.map(([time, , seconds]) => [time, seconds]), now, group.lag.interval);

    rebalances.update(group.rebalances, (each) => `${each.time} ${each.reason}`,
      (each) => [clock(each.time), each.reason, number(each.moved), each.means]);
    const earlier = group.rebalancesForgotten ? `; ${number(group.rebalancesForgotten)} earlier ones are not kept` : "";
    text(told, `${plural(group.rebalances.length, "step")} since this operator leads (${clock(group.since)})${earlier}. Assignor ${group.assignor}, epoch ${number(group.epoch)}.`);
    consumers.update(group.consumers, (each) => each.name, (each) => [
      each.name, each.ready ? "yes" : "no", number(each.shards), each.phase && `${each.phase}, ${duration(each.phaseSeconds)}`,
      `${duration(each.heartbeatSeconds)} ago`, full(each), each.zone || null]);
    more.hidden = !group.consumersOmitted;
    text(more, `${plural(group.consumersOmitted, "more consumer")} not shown.`);
    shards.update(group);
    if (before) tell(before, group);
  }

  return { node, update };
}
