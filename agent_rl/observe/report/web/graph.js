// The topology: a card for each role with its actors, and arrows between the cards where there is room.

import { el, percent } from "./base.js";

const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes, content = []) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...[content].flat());
  return made;
}

function actor(shown) {
  const busy = el("meter", percent(shown.busy), { min: "0", max: "1", value: shown.busy, "aria-label": "busy" });
  return el("li", [
    el("b", shown.name), " ", el("span.badge", shown.state), " ", busy, ` busy ${percent(shown.busy)}`,
    el("p.sizes", [...shown.words, ...(shown.waits ? [`waits ${shown.waits}`] : [])].join(" \u00b7 ")),
  ]);
}

function card(role, { links, state }) {
  const there = role.actors.length;
  const other = state !== "ended" && role.wanted && role.wanted !== there;
  const count = other ? `${there} of ${role.wanted} wanted` : `${there}`;
  return el("li", [
    el("h3", [role.role, " ", el(`span.badge${other ? ".loss" : ""}`, count)]),
    role.host ? el("p.sizes", `on ${role.host}`) : null,
    el("ul.actors", role.actors.slice(0, 8).map(actor)),
    there > 8 ? el("p.sizes", `and ${there - 8} more`) : null,
    el("ul.flows", links.filter((link) => link.from === role.role)
      .map((link) => el("li", [`\u2192 ${link.to}: `, link.words]))),
  ], { "data-role": role.role });
}

export function graph(shown) {
  const cards = el("ul.roles", shown.roles.map((role) => card(role, shown)));
  const arrows = svg("svg", { "aria-hidden": "true", class: "arrows" });
  const place = el("div.graph", [arrows, cards]);
  const draw = () => {
    const box = place.getBoundingClientRect();
    if (!box.width) return;
    arrows.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    const boxes = new Map([...cards.children].map((each) => [each.dataset.role, each.getBoundingClientRect()]));
    const head = svg("marker", { id: "head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7,
                                 orient: "auto" }, svg("path", { d: "M0 0 8 4 0 8z" }));
    arrows.replaceChildren(svg("defs", {}, head), ...shown.links.flatMap((link) => {
      const [a, b] = [boxes.get(link.from), boxes.get(link.to)];
      if (!a || !b) return [];
      const middle = (each) => [each.x + each.width / 2 - box.x, each.y + each.height / 2 - box.y];
      const [from, to] = [edge(a, middle(a), middle(b)), edge(b, middle(b), middle(a))];
      return [svg("path", { d: `M${from} L${to}`, "marker-end": "url(#head)" })];
    }));
  };
  new ResizeObserver(draw).observe(place);
  const kind = { live: "gain", late: "loss" }[shown.state] ?? "same";
  return [el("p.note", [el(`span.badge.${kind}`, shown.state), " ", shown.note]), place];
}

/** Where the line from the middle of a box to another point leaves the box. */
function edge(box, [x, y], [toX, toY]) {
  const [dx, dy] = [toX - x, toY - y];
  const within = (size, length) => (length ? (size / 2 + 3) / Math.abs(length) : Infinity);
  const share = Math.min(within(box.width, dx), within(box.height, dy));
  return [x + dx * share, y + dy * share];
}
