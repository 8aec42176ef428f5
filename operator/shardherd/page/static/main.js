// Asks for the document again and again, and shows it. The group that is looked at is in the address: #/namespace/name.

import { attribute, clock, h, keyed, number, plural, duration, text } from "./dom.js";
import { OtherVersionError, checked } from "./fields.js";
import { makeGroup } from "./group.js";

const INTERVAL = 2000;
const PATIENCE = 10000;
const MANY = 8; // groups from which on they can be filtered

const part = (id) => document.getElementById(id);
const wanted = () => location.hash.match(/^#\/([^/]+\/[^/]+)$/)?.[1] ?? null;

let shown = null; // { key, view } of the group that is shown
let seen = null; // the last document
let answered = null; // when it came
let timer = null;
let asking = null;
let away = false;

function announce(words) {
  text(part("announced"), words);
}

async function ask() {
  clearTimeout(timer);
  asking?.abort();
  const mine = (asking = new AbortController());
  const late = setTimeout(() => mine.abort(), PATIENCE);
  const key = wanted();
  try {
    const answer = await fetch(`document.json${key ? `?group=${encodeURIComponent(decodeURIComponent(key))}` : ""}`, {
      cache: "no-store", signal: mine.signal,
    });
    const body = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(body.error ?? `The operator answers with ${answer.status}.`);
    const found = checked(body);
    if (mine === asking) show(found);
  } catch (error) {
    if (mine === asking) fail(error);
  } finally {
    clearTimeout(late);
    if (mine === asking && document.visibilityState === "visible") timer = setTimeout(ask, INTERVAL);
  }
}

function fail(error) {
  const known = error instanceof OtherVersionError || (error.name !== "TypeError" && error.name !== "AbortError");
  const what = known ? error.message : "The operator does not answer.";
  const since = answered === null ? "" : ` What is shown is of ${clock(answered)}.`;
  const trouble = part("trouble");
  text(trouble, `${what}${since} It is asked again every ${INTERVAL / 1000} s.`);
  trouble.hidden = false;
  document.body.classList.add("stale");
  text(part("connection"), "no answer");
  if (!seen) text(part("state"), "Nothing is known yet.");
  away = true;
}

function show(found) {
  seen = found;
  answered = Date.now() / 1000;
  part("trouble").hidden = true;
  document.body.classList.remove("stale");
  text(part("connection"), `as of ${clock(found.time)}`);
  text(part("version"), `shardherd ${found.version}`);
  if (away) announce("The operator answers again.");
  away = false;
  list(found);
  const { group } = found;
  const key = group ? `${group.namespace}/${group.name}` : null;
  if (key !== shown?.key) {
    shown = group ? { key, view: makeGroup(announce) } : null;
    part("group").replaceChildren(...(shown ? [shown.view.node] : []));
    document.title = key ? `${key} - shardherd` : "shardherd";
  }
  part("group").hidden = !group;
  if (group) shown.view.update(group, found.time);
  const none = "There is no ConsumerGroup yet. Create one with: kubectl apply -f consumergroup.yaml, or shardherd local up -f consumergroup.yaml.";
  const missing = found.wanted ? `There is no group ${found.wanted} (any more). Choose another.` : "Choose a group.";
  part("state").hidden = Boolean(group);
  text(part("state"), found.groups.length ? missing : none);
  // The only one need not be chosen.
  if (!found.wanted && found.groups.length === 1) location.replace(`#/${found.groups[0].namespace}/${found.groups[0].name}`);
}

function list(found) {
  const words = part("filter").value.trim().toLowerCase();
  const rows = found.groups.filter((each) => `${each.namespace}/${each.name} ${each.reason}`.toLowerCase().includes(words));
  part("filter-label").hidden = found.groups.length <= MANY;
  keyed(part("groups"), rows, (each) => `${each.namespace}/${each.name}`,
    () => h("li", {}, h("a", {}, h("b"), h("span", { class: "badge" }), h("span", { class: "muted" }))), (item, each) => {
      const link = item.firstElementChild;
      const [name, ready, about] = link.children;
      const key = `${each.namespace}/${each.name}`;
      attribute(link, "href", `#/${key}`);
      attribute(link, "aria-current", key === found.wanted ? "page" : null);
      attribute(link, "title", each.message);
      text(name, key);
      attribute(ready, "data-ready", each.ready);
      text(ready, each.ready === "True" ? "ready" : each.reason || "unknown");
      const lag = each.lagSeconds === null ? "" : ` (${duration(each.lagSeconds)})`;
      text(about, `${plural(each.shardsTotal ?? 0, "shard")}, ${each.consumersReady}/${number(each.consumersWanted)} consumers, lag ${number(each.lagRecords)}${lag}`);
    });
  const omitted = found.groupsOmitted ? `${plural(found.groupsOmitted, "more group")} not shown.` : "";
  const none = found.groups.length && !rows.length ? "No group matches." : "";
  text(part("groups-more"), omitted + none);
  part("groups-more").hidden = !(omitted || none);
}

part("filter").addEventListener("input", () => seen && list(seen));
addEventListener("hashchange", ask);
part("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the group
  part("main").focus();
});
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") ask();
});
ask();
