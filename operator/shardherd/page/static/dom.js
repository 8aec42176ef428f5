// Makes and changes elements. Whatever is shown goes through `textContent` or an attribute: no text ever becomes HTML.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) attribute(node, name, value);
  node.append(...children.filter((each) => each !== null && each !== undefined));
  return node;
}

/** An HTML element. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** Sets an attribute if it differs; null or false takes it away. */
export function attribute(node, name, value) {
  if (value === null || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Sets a text if it differs: what has not changed keeps its selection, and is not read out again. */
export function text(node, value) {
  const wanted = String(value);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/** Shows `items` as children of `parent`, one each. An item of a known key keeps its element, and with it the focus. */
export function keyed(parent, items, keyOf, make, fill) {
  const known = (parent.known ??= new Map());
  const wanted = new Map(); // two of one key are told apart by their order
  for (const item of items) {
    let key = keyOf(item);
    while (wanted.has(key)) key += "+";
    wanted.set(key, item);
  }
  for (const [key, node] of known) {
    if (!wanted.has(key)) {
      node.remove();
      known.delete(key);
    }
  }
  let place = parent.firstElementChild;
  for (const [key, item] of wanted) {
    let node = known.get(key);
    if (!node) known.set(key, (node = make(item)));
    fill(node, item);
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  }
}

/** A table of texts under a caption. Rows are of the function `cells`; the first cell heads its row. */
export function table(caption, heads) {
  const body = h("tbody");
  const headings = heads.map((each) => h("th", { scope: "col" }, each));
  const node = h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, ...headings)), body);
  const make = () => h("tr", {}, h("th", { scope: "row" }), ...heads.slice(1).map(() => h("td")));
  const update = (items, keyOf, cells) =>
    keyed(body, items, keyOf, make, (row, item) => cells(item).forEach((each, at) => text(row.children[at], each ?? "-")));
  // A wide one scrolls by itself, also by the keyboard.
  return { node: h("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": caption }, node), body, update };
}

const WHOLE = new Intl.NumberFormat("en");

export const number = (value) => (value === null || value === undefined ? "-" : WHOLE.format(value));

export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

/** A duration in its two largest units. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  if (first < 0) return "0 s";
  let left = Math.floor(seconds);
  const parts = units.slice(first, first + 2).map(([unit, size]) => {
    const many = Math.floor(left / size);
    left -= many * size;
    return many ? `${many} ${unit}` : "";
  });
  return parts.filter(Boolean).join(" ");
}

/** A time of day here; with the date if it is another day. Takes seconds since 1970, or a text of RFC 3339. */
export function clock(time) {
  const date = typeof time === "number" ? new Date(time * 1000) : new Date(time);
  if (Number.isNaN(date.getTime())) return "-";
  const day = date.toDateString() === new Date().toDateString() ? "" : `${date.toLocaleDateString("en-CA")} `;
  return day + date.toLocaleTimeString("en-GB");
}
