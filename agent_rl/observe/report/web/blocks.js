// The blocks of a section: texts, tables, rollouts.

import { el, badge } from "./base.js";
import { chart, lanes, swatch } from "./charts.js";
import { graph } from "./graph.js";

function table({ head, rows, optional, summary, id }) {
  const name = (column, cell) => `${cell}${optional.includes(column) ? ".optional" : ""}`;
  const content = (cell) => !Array.isArray(cell) ? cell
    : typeof cell[1] === "number" ? [swatch(cell[1], "area"), cell[0]]
    : el("ul.details", cell.map((each) => el("li", each)));
  const line = (row) => el("tr", row.map((cell, column) => column
    ? el(name(column, "td"), content(cell), { "data-head": head[column] })
    : el("th", content(cell), { scope: "row" })));
  const made = el("table", [
    el("thead", el("tr", head.map((text, column) => el(name(column, "th"), text, { scope: "col" })))),
    el("tbody", rows.map(line)),
  ]);
  return summary ? el("details.card", [el("summary", summary), made], id ? { id } : {}) : el("div.card", made);
}

export function part(content) {
  if (typeof content === "string") return el("pre", content);
  return el("div.call", [
    el("p.who", ["calls ", el("b", content.tool)]),
    content.arguments.map(([name, value]) =>
      value ? [el("p.argument", name), el("pre", value)] : el("p.argument", `${name}: empty`)),
  ]);
}


function rollout(shown) {
  const title = shown.title ? el("h4", shown.title) : null;
  if (!shown.badges) return el("li", [title, el("p.note", shown.note)]);
  const turns = shown.turns.map((turn) =>
    el(`section.${turn.class.replace(" ", ".")}`, [el("p.who", turn.who), turn.parts.map(part)]));
  const note = shown.note ? el("p.note", shown.note) : null;
  const summary = el("summary", [shown.badges.map(badge), el("span.sizes", shown.sizes)]);
  return el("li", [title, el("details", [summary, turns, note], shown.open ? { open: "" } : {})]);
}

const article = ({ problem, answer, badge: said, rollouts }) => el("article", [
  el("header", [el("pre", problem), el("p", ["right answer: ", el("code", answer), " ", badge(said)])]),
  el("ol.rollouts", rollouts.map(rollout)),
]);

function alarm(shown) {
  if (typeof shown === "string") return el("li", shown);
  const state = shown.now ? ["holds now", "loss"] : ["is over", "same"];
  const more = el("a", "what raises it", { href: "#alarms" });
  more.addEventListener("click", () => { document.getElementById("alarms").open = true; });
  return el(shown.now ? "li.now" : "li", [
    el("b", shown.name.replaceAll("_", " ")), " ", badge(state), el("span.sizes", shown.steps),
    el("p", shown.text), el("p.sizes", more),
  ]);
}

/** The settings, and where those of the other runs differ. */
function differences(run, others) {
  const rows = others.flatMap((other) => {
    const [mine, theirs] = [run, other].map(({ head }) => new Map(Object.entries(head.settings ?? {})));
    const text = (value) => (value === undefined ? "\u2013" : JSON.stringify(value));
    return [...new Set([...mine.keys(), ...theirs.keys()])]
      .map((key) => [key, text(mine.get(key)), text(theirs.get(key))]).filter(([, one, two]) => one !== two)
      .map(([key, one, two]) => [key, one, `${other.head.title}: ${two}`]);
  });
  const head = ["setting that differs", run.head.title, "the other run"];
  return rows.length ? table({ head, rows, optional: [] })
    : el("p.note", "The recorded settings of these runs are the same.");
}

const BLOCKS = {
  text: (text) => el("p.note", text),
  advice: (text) => el("p.advice", text),
  heading: (text) => el("h3", text),
  table,
  charts: (charts, block, { others }) =>
    el(block.wide ? "div" : "div.charts", charts.map((each) => chart(each, block.wide, others(each.title)))),
  lanes,
  graph,
  alarms: (all) => el("ul.alarms", all.map(alarm)),
  outcomes: (all) =>
    el("ul.outcomes", all.map(([count, words, kind]) => el(`li.${kind}`, [el("b", count), " ", words]))),
  article,
  explorer: (shown, block, { run }) => run.explorer.element,
};

/** A section of a run, with the curves of other runs over its own. */
export function sectionOf({ id, title, blocks }, run, others) {
  const theirs = (name) => others.flatMap(({ head, sections }) => (sections.get(id)?.blocks ?? [])
    .flatMap((block) => block.charts ?? []).filter((each) => each.title === name)
    .map((each) => ({ name: head.title, chart: each })));
  const context = { run, others: theirs };
  return el("section", [
    el("h2", title),
    id === "made" && others.length ? differences(run, others) : [],
    blocks.map((block) => {
      const kind = Object.keys(block).find((each) => each in BLOCKS);
      return BLOCKS[kind](block[kind], block, context);
    }),
  ], { id });
}
