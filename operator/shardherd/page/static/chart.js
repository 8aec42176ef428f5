// A line over the last hour. The same numbers are in a table below it, for who cannot see the line.

import { attribute, clock, h, s, table, text } from "./dom.js";

const HOUR = 3600;
const HIGH = 150;
const LEFT = 64;
const BOTTOM = 22;
const TOP = 10;

/** The least round number that is not below `value`, and whose half is a whole one. */
function roundUp(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [2, 4, 6, 8, 10, 20].map((each) => each * unit).find((each) => each >= value);
}

/** A path through the points. Where a value is missing, or none was taken, the line has a gap. */
function lineOf(points, place, gap) {
  const parts = [];
  let before = null;
  for (const [time, value] of points) {
    if (value === null) {
      before = null;
      continue;
    }
    const joined = before !== null && time - before <= gap;
    parts.push(`${joined ? "L" : "M"}${place.x(time).toFixed(1)} ${place.y(value).toFixed(1)}${joined ? "" : "h0"}`);
    before = time;
  }
  return parts.join("");
}

export function makeChart(title, format) {
  const line = s("path", { class: "line" });
  const grid = s("g", { class: "grid" });
  const svg = s("svg", { class: "chart", role: "img", height: HIGH }, grid, line);
  const rows = table(`${title}, every five minutes`, ["time", title]);
  const said = h("p", { class: "muted" });
  const more = h("details", {}, h("summary", {}, `${title} as a table`), rows.node);
  const node = h("figure", {}, h("figcaption", {}, h("h4", {}, title)), said, svg, more);
  let last = null;

  function draw() {
    if (!last || !node.clientWidth) return;
    const { points, now, gap } = last;
    const wide = node.clientWidth;
    const known = points.filter(([, value]) => value !== null);
    const most = roundUp(Math.max(1, ...known.map(([, value]) => value)));
    const place = {
      x: (time) => LEFT + (1 - (now - time) / HOUR) * (wide - LEFT - 12),
      y: (value) => TOP + (1 - value / most) * (HIGH - TOP - BOTTOM),
    };
    attribute(svg, "width", wide);
    attribute(line, "d", lineOf(points, place, gap));
    const levels = [0, most / 2, most].map((value) => [
      s("line", { x1: LEFT, x2: wide - 12, y1: place.y(value), y2: place.y(value) }),
      s("text", { x: LEFT - 8, y: place.y(value) + 4, "text-anchor": "end" }, format(value)),
    ]);
    const times = [60, 45, 30, 15, 0].map((minutes) => {
      const x = place.x(now - minutes * 60);
      return s("text", { x, y: HIGH - 5, "text-anchor": minutes ? "middle" : "end" }, minutes ? `-${minutes} min` : "now");
    });
    grid.replaceChildren(...levels.flat(), ...times);
    const top = known.reduce((best, each) => (best === null || each[1] > best[1] ? each : best), null);
    const current = points.at(-1)?.[1] ?? null;
    const words = top
      ? `now ${current === null ? "not known" : format(current)}, at most ${format(top[1])} at ${clock(top[0])}`
      : "not known yet";
    text(said, words);
    attribute(svg, "aria-label", `${title} of the last hour: ${words}`);
    if (more.open) list(points);
  }

  function list(points) {
    const slots = new Map(points.map(([time, value]) => [Math.floor(time / 300), [time, value]]));
    rows.update([...slots.values()].reverse(), ([time]) => Math.floor(time / 300), ([time, value]) => [
      clock(time), value === null ? "not known" : format(value),
    ]);
  }

  more.addEventListener("toggle", draw);
  new ResizeObserver(draw).observe(node);
  return {
    node,
    /** Points are [time, value or null], the oldest first. */
    update(points, now, interval) {
      last = { points, now, gap: 2.5 * interval };
      draw();
    },
  };
}
