// The shards on their consumers: a square for each, in the box of who holds it. One that changes hands moves to its new box.
// For the keyboard and screen readers it is a list of options: arrows go from shard to shard, Enter shows one.

import { attribute, h, keyed, plural, s, text } from "./dom.js";

const NOBODY = "held by nobody";
const OVER = "read to the end";
const GAP = 3;
const PADDING = 10;
const HEAD = 26;
const LEAST = 200; // of a box, in pixels

function sizeFor(shards) {
  return shards > 1500 ? 8 : shards > 400 ? 11 : shards > 80 ? 16 : 26;
}

function laneOf(shard) {
  if (shard.state === "OVER") return OVER;
  return shard.holder ?? NOBODY;
}

function lanesOf(group) {
  const lanes = new Map(group.consumers.map((each) => [each.name, { name: each.name, consumer: each, shards: [] }]));
  for (const shard of group.shards) {
    const name = laneOf(shard);
    if (!lanes.has(name)) lanes.set(name, { name, consumer: null, shards: [] });
    lanes.get(name).shards.push(shard);
  }
  return [...lanes.values()];
}

function about(lane) {
  const words = [plural(lane.shards.length, "shard")];
  if (lane.consumer) {
    if (!lane.consumer.ready) words.push("not ready");
    if (lane.consumer.draining) words.push("draining");
    if (lane.consumer.cordoned) words.push("cordoned");
    if (lane.consumer.stage !== "below") words.push(`above ${lane.consumer.stage}`);
    if (lane.consumer.phase) words.push(lane.consumer.phase);
  } else if (lane.name !== NOBODY && lane.name !== OVER) {
    words.push("gone");
  }
  return words.join(", ");
}

export function makePicture(onChosen) {
  const boxes = s("g");
  const squares = s("g", { role: "none" });
  const svg = s("svg", { class: "picture", role: "listbox", tabindex: "0", "aria-label": "Shards on consumers" }, boxes, squares);
  const node = h("div", { class: "holder" }, svg);
  let group = null;
  let cursor = null;
  let chosen = null;
  let places = new Map(); // of each shard: { x, y, id, shard }

  function draw() {
    if (!group) return;
    const width = Math.max(LEAST, node.clientWidth);
    const size = sizeFor(group.shards.length);
    const step = size + GAP;
    const lanes = lanesOf(group);
    const columns = Math.max(1, Math.min(lanes.length, Math.floor(width / LEAST)));
    const wide = Math.floor((width - (columns - 1) * PADDING) / columns);
    const across = Math.max(1, Math.floor((wide - 2 * PADDING + GAP) / step));
    places = new Map();
    let top = 0;
    for (let first = 0; first < lanes.length; first += columns) {
      const row = lanes.slice(first, first + columns);
      const tall = HEAD + 2 * PADDING + Math.max(1, ...row.map((lane) => Math.ceil(lane.shards.length / across))) * step;
      row.forEach((lane, at) => {
        Object.assign(lane, { x: at * (wide + PADDING), y: top, wide, tall });
        lane.shards.forEach((shard, number) => {
          const x = lane.x + PADDING + (number % across) * step;
          const y = lane.y + HEAD + PADDING + Math.floor(number / across) * step;
          places.set(shard.name, { x, y, shard, order: places.size });
        });
      });
      top += tall + PADDING;
    }
    attribute(svg, "width", width);
    attribute(svg, "height", Math.max(0, top - PADDING));
    keyed(boxes, lanes, (lane) => lane.name, makeBox, fillBox);
    // In the order of their names, so that one that moves keeps its element, and glides.
    keyed(squares, group.shards, (shard) => shard.name, makeSquare, (square, shard) => fillSquare(square, shard, size));
    if (!places.has(cursor)) cursor = null;
    mark();
  }

  function makeBox() {
    return s("g", { class: "lane", "aria-hidden": "true" }, s("rect", { rx: 6 }), s("text", { class: "name" }), s("text", { class: "about" }));
  }

  function fillBox(box, lane) {
    const [frame, name, said] = box.children;
    attribute(box, "class", `lane${lane.consumer ? "" : " none"}${lane.consumer && !lane.consumer.ready ? " unready" : ""}`);
    for (const [attr, value] of [["x", lane.x], ["y", lane.y], ["width", lane.wide], ["height", lane.tall]]) attribute(frame, attr, value);
    for (const [label, below] of [[name, 16], [said, 29]]) {
      attribute(label, "x", lane.x + PADDING);
      attribute(label, "y", lane.y + below);
    }
    const room = Math.floor((lane.wide - 2 * PADDING) / 7);
    text(name, lane.name.length > room ? `${lane.name.slice(0, room - 1)}…` : lane.name);
    text(said, about(lane));
  }

  function makeSquare(shard) {
    const square = s("g", { role: "option", id: `shard-${shard.name}` }, s("title"), s("rect"), s("text"));
    square.addEventListener("click", () => choose(shard.name));
    return square;
  }

  function fillSquare(square, shard, size) {
    const [title, body, label] = square.children;
    const place = places.get(shard.name);
    const where = shard.next ? `${shard.holder} to ${shard.next}` : (shard.holder ?? NOBODY);
    const moved = `translate(${place.x}px, ${place.y}px)`;
    if (square.style.transform !== moved) square.style.transform = moved;
    attribute(square, "class", `shard ${shard.state}${shard.name === chosen ? " chosen" : ""}`);
    attribute(square, "aria-selected", shard.name === chosen);
    attribute(square, "aria-label", `${shard.name}, ${shard.state}, ${where}`);
    text(title, `${shard.name} ${shard.state}: ${where}`);
    attribute(body, "width", size);
    attribute(body, "height", size);
    attribute(body, "rx", size > 10 ? 3 : 1);
    const partition = size > 20 ? shard.name.slice(shard.name.lastIndexOf("/") + 1) : "";
    attribute(label, "x", size / 2);
    attribute(label, "y", size / 2 + 4);
    text(label, partition.length > 3 ? "" : partition);
  }

  function mark() {
    const before = squares.querySelector(".cursor");
    const now = cursor === null ? null : squares.known.get(cursor);
    if (before && before !== now) before.classList.remove("cursor");
    if (now) now.classList.add("cursor");
    attribute(svg, "aria-activedescendant", now ? now.id : null);
  }

  function choose(name) {
    cursor = name;
    onChosen(name);
    mark();
  }

  /** The nearest shard in a direction, along it first. */
  function beside(from, dx, dy) {
    let best = null;
    let least = Infinity;
    for (const place of places.values()) {
      const along = (place.x - from.x) * dx + (place.y - from.y) * dy;
      const aside = Math.abs((place.x - from.x) * dy) + Math.abs((place.y - from.y) * dx);
      if (along > 0 && along + 3 * aside < least) {
        least = along + 3 * aside;
        best = place;
      }
    }
    return best;
  }

  svg.addEventListener("keydown", (event) => {
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const ordered = [...places.values()];
    const from = places.get(cursor);
    let to = null;
    if (event.key in arrows) to = from ? beside(from, ...arrows[event.key]) : ordered[0];
    else if (event.key === "Home") to = ordered[0];
    else if (event.key === "End") to = ordered.at(-1);
    else if ((event.key === "Enter" || event.key === " ") && from) choose(cursor);
    else return;
    event.preventDefault();
    if (to) {
      cursor = to.shard.name;
      mark();
      squares.known.get(cursor).scrollIntoView({ block: "nearest" });
    }
  });
  svg.addEventListener("focus", () => {
    if (cursor === null && places.size) cursor = chosen ?? places.keys().next().value;
    mark();
  });
  new ResizeObserver(draw).observe(node);

  return {
    node,
    update(found, selected) {
      group = found;
      chosen = selected;
      draw();
    },
  };
}
