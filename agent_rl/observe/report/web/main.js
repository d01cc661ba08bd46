// Puts the page together: from the object in the file, or from events of the server that it came from.

import { el, badge, keep } from "./base.js";
import { settings, drawAll, redraw } from "./charts.js";
import { sectionOf } from "./blocks.js";
import { explorer } from "./explorer.js";

const saved = JSON.parse(document.getElementById("data").textContent);
const listed = saved?.sections.flatMap(({ blocks }) => blocks).find((block) => block.explorer)?.explorer;
const held = new Map(Object.entries(listed?.bodies ?? {}));
const runs = [];  // { head, sections: Map, explorer } of each run
const asked = new URLSearchParams(location.search);
const token = asked.get("token") ? `&token=${encodeURIComponent(asked.get("token"))}` : "";
let first = 0;  // the run whose texts are shown; the curves of the others lie over its curves
const header = el("header"), main = el("main", [], { id: "main" }), footer = el("footer");
const connection = el("span.badge", "", { role: "status" });

function run(index) {
  const body = async (key) => {
    if (saved) return held.get(key) ?? null;
    const answer = await fetch(`trajectory?run=${index}&key=${encodeURIComponent(key)}${token}`);
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    return found;
  };
  return runs[index] ??= { head: null, sections: new Map(), explorer: explorer(body) };
}

function controls() {
  const range = { min: "0", max: "0.95", step: "0.05", value: settings.smoothing };
  const smooth = el("input", [], { type: "range", name: "smoothing", ...range });
  smooth.addEventListener("change", () => {
    settings.smoothing = Number(smooth.value);
    drawSections([...runs[first].sections.keys()]);
  });
  const parts = [el("label", ["smooth curves ", smooth])];
  if (runs.length > 1) {
    const choose = el("select", runs.map((each, index) => el("option", each?.head?.title ?? `run ${index + 1}`,
      { value: index, ...(index === first ? { selected: "" } : {}) })), { name: "run" });
    choose.addEventListener("change", () => { first = Number(choose.value); drawWhole(); });
    parts.push(el("label", ["shown run ", choose]), el("span.note", "Thin dashed curves: the other runs."));
  }
  return el("div.bar", parts);
}

function drawHead() {
  const { head, sections } = runs[first];
  document.title = `${head.title}: ${head.headline}`;
  const tile = ([name, value, more]) => el("div.tile", [el("dt", name), el("dd", value), el("dd", more)]);
  const link = ({ id, title }) => el("a", title, { href: `#${id}` });
  keep(() => header, () => header.replaceChildren(...[
    el("div.top", [el("h1", head.title), badge(head.badge), saved ? null : connection]),
    el("p.headline", head.headline),
    el("ul.details", head.details.map((each) => el("li", each))),
    el("nav", [...sections.values()].map(link), { "aria-label": "Sections" }),
    el("dl.tiles", head.tiles.map(tile)),
    head.notes.length ? el("ul.notes", head.notes.map((each) => el("li", each)), { "aria-label": "Notes" }) : null,
    controls(),
  ].filter(Boolean)));
  footer.textContent = head.footer;
}

function drawSections(ids) {
  for (const id of ids) {
    const shown = runs[first].sections.get(id), before = document.getElementById(id);
    if (!shown) {
      before?.remove();
      continue;
    }
    const others = runs.filter((each, index) => each?.head && index !== first);
    keep(() => document.getElementById(id), () => {
      const made = sectionOf(shown, runs[first], others);
      if (before) before.replaceWith(made);
      else main.append(made);
    });
  }
  drawAll();
}

function drawWhole() {
  main.replaceChildren();
  drawHead();
  drawSections(runs[first].sections.keys());
}

/** Take a message: the whole or parts of a run's page. */
function take(message) {
  const index = message.run ?? 0, into = run(index);
  if (message.rows) into.explorer.take(message.rows);
  if (!message.sections) return;
  const { sections, order, ...head } = message;
  into.head = { ...into.head, ...head };
  const known = new Map([...into.sections, ...sections.map((each) => [each.id, each])]);
  const ids = order ?? sections.map((each) => each.id);
  const grown = ids.join() !== [...into.sections.keys()].join();
  into.sections = new Map(ids.filter((id) => known.has(id)).map((id) => [id, known.get(id)]));
  if (!runs[first]?.head) return;
  if (grown && index === first) return drawWhole();
  drawHead();
  drawSections(sections.map((each) => each.id).filter((id) => index === first || runs[first].sections.has(id)));
}

document.body.append(el("a.skip", "Skip to the content", { href: "#main" }), header, main, footer);
if (saved) {
  take(saved);
  if (listed) take({ rows: listed });
} else {
  const events = new EventSource(`events?${token.slice(1)}`);
  const says = (words, kind) => { connection.textContent = words; connection.className = `badge ${kind}`; };
  events.addEventListener("open", () => says("connected", "gain"));
  events.addEventListener("error", () => says("not connected: agent-rl view has ended, or tries again", "loss"));
  events.addEventListener("message", (event) => take(JSON.parse(event.data)));
}
for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", redraw);
if (location.hash) document.getElementById(location.hash.slice(1).split("?")[0])?.scrollIntoView();
