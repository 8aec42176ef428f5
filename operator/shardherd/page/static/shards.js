// The shards as a table, which says what the picture shows, and one shard in full.

import { attribute, duration, h, number, plural, table, text } from "./dom.js";

const PAGE = 100;
const HEADS = ["shard", "state", "holder", "next holder", "lag", "verdict", "position", "end", "epoch", "for", "why it does not move on"];

const cells = (shard) => [
  shard.name, shard.state, shard.holder, shard.next, number(shard.lag), shard.verdict, number(shard.position), number(shard.end), shard.epoch,
  duration(shard.age), shard.why,
];

export function makeShards() {
  const filter = h("input", { type: "search", autocomplete: "off", id: "shard-filter" });
  const least = h("button", { type: "button" }, "Previous");
  const next = h("button", { type: "button" }, "Next");
  const shown = h("span", { class: "muted", role: "status" });
  const rows = table("Shards", HEADS);
  const label = h("label", {}, "Shard, state or consumer ", filter);
  const node = h("div", {}, h("p", { class: "tools" }, label, least, next, shown), rows.node);
  let group = null;
  let first = 0;

  function draw() {
    const words = filter.value.trim().toLowerCase();
    const found = group.shards.filter((shard) =>
      [shard.name, shard.state, shard.holder, shard.next].some((each) => each?.toLowerCase().includes(words)));
    first = Math.max(0, Math.min(first, Math.floor((found.length - 1) / PAGE) * PAGE));
    const page = found.slice(first, first + PAGE);
    rows.update(page, (shard) => shard.name, cells);
    attribute(least, "disabled", first === 0 ? "" : null);
    attribute(next, "disabled", first + PAGE >= found.length ? "" : null);
    const omitted = group.shardsOmitted ? `; ${plural(group.shardsOmitted, "more shard")} of this group not shown` : "";
    text(shown, found.length ? `${number(first + 1)} to ${number(first + page.length)} of ${number(found.length)}${omitted}` : "none");
  }

  filter.addEventListener("input", () => {
    first = 0;
    draw();
  });
  least.addEventListener("click", () => {
    first -= PAGE;
    draw();
  });
  next.addEventListener("click", () => {
    first += PAGE;
    draw();
  });
  return {
    node,
    update(found) {
      group = found;
      draw();
    },
  };
}

export function makeShard(onClosed) {
  const title = h("h4");
  const list = h("dl");
  const close = h("button", { type: "button" }, "Close");
  const node = h("section", { class: "card", "aria-label": "One shard", hidden: "" }, title, list, close);
  close.addEventListener("click", onClosed);
  const parts = HEADS.slice(1).map((head) => {
    const value = h("dd");
    list.append(h("dt", {}, head), value);
    return value;
  });
  return {
    node,
    update(shard) {
      node.hidden = !shard;
      if (!shard) return;
      text(title, shard.name);
      cells(shard).slice(1).forEach((each, at) => text(parts[at], each ?? "-"));
    },
  };
}
