// All trajectories: search, filters, one in full or its group side by side. Bodies are fetched when they are opened.
// The address of the page holds the filters and the trajectory that is open, so that it can be shared.

import { el, button, badge, keep, percent } from "./base.js";
import { part } from "./blocks.js";

const STEP = 100;  // rows that are added at once
const CHOICES = {
  success: ["verdict", [["", "any"], ["1", "right"], ["0", "wrong"], ["none", "not judged"]]],
  purpose: ["asked for", [["", "anything"]]],
  environment: ["environment", [["", "any"]]],
  subject: ["subject", [["", "any"]]],
  status: ["ended", [["", "any way"]]],
  errors: ["tool errors", [["", "any"], ["1", "some"], ["0", "none"]]],
  kept: ["kept", [["", "or not"], ["1", "kept"], ["0", "not kept"]]],
  fate: ["fate of its group", [["", "any"]]],
};
const OF_GROUPS = ["purpose", "environment", "subject", "fate"];
const NUMBERS = {
  from: ["step from", "step", 1], to: ["step to", "step", -1], least: ["tokens at least", "tokens", 1],
  most: ["tokens at most", "tokens", -1],
};
const COLUMNS = [
  ["step", "step", "number"], ["verdict", "success", "text"], ["reward", "reward", "number optional"],
  ["problem", "text", "text"],
  ["tokens", "tokens", "number optional"], ["turns", "turns", "number optional"], ["calls", "calls", "number optional"],
  ["ended", "status", "text optional"], ["fate", "fate", "text optional"],
];
const COLOURINGS = ["nothing", "log-probability", "policy version", "advantage"];

/** `body` fetches a trajectory by key: a promise of its object, or of null where it is gone. */
export function explorer(body) {
  const rows = [], byKey = new Map(), groups = new Map(), choices = {};
  let columns = null, fates = new Map(), filter = new URLSearchParams(), found = [], shown = 0, current = null;
  let colouring = COLOURINGS[0], shownText = "turns", queued = false;

  const hint = { placeholder: "search problems, answers, ids", "aria-label": "Search" };
  const search = el("input", [], { type: "search", ...hint });
  const count = el("p.note", "", { role: "status" });
  const list = el("tbody");
  const more = button("", () => show(shown + STEP));
  const detail = el("section.detail", [], { "aria-label": "Trajectory", tabindex: "-1", hidden: "" });
  const inputs = { q: search };
  const controls = [el("label", ["search ", search])];
  for (const [name, [words]] of Object.entries(CHOICES)) {
    inputs[name] = el("select", [], { "aria-label": words });
    controls.push(el("label", [`${words} `, inputs[name]]));
  }
  for (const [name, [words]] of Object.entries(NUMBERS)) {
    inputs[name] = el("input", [], { type: "number", min: "0", "aria-label": words });
    controls.push(el("label", [`${words} `, inputs[name]]));
  }
  for (const [name, input] of Object.entries(inputs)) {
    input.name = name;
    input.addEventListener("input", () => { set(name, input.value); apply(); });
  }
  const head = COLUMNS.map(([words, name, kind]) => el(`th.${kind.replace(" ", ".")}`,
    button(words, () => { sort(name); apply(); }, { "aria-label": `sort by ${words}` }), { scope: "col" }));
  const table = el("table.list", [el("caption.hidden", "Trajectories"), el("thead", el("tr", head)), list]);
  const element = el("div.explorer", [
    detail,
    el("form.filters", [controls, button("clear", () => { filter = new URLSearchParams(); restore(); apply(); })]),
    count, el("div.card", table), more,
  ]);
  element.querySelector("form").addEventListener("submit", (event) => event.preventDefault());

  function set(name, value) {
    if (value === "") filter.delete(name);
    else filter.set(name, value);
    share();
  }

  function share() {
    const said = filter.toString();
    history.replaceState(null, "", said ? `#trajectories?${said}` : "#trajectories");
  }

  function sort(name) {
    set("sort", filter.get("sort") === name ? `-${name}` : filter.get("sort") === `-${name}` ? "" : name);
  }

  /** Take rows as the page's JSON has them. */
  function take({ columns: named, fates: words, groups: theirs, rows: theirRows }) {
    columns = named ?? columns;
    if (words) fates = new Map(Object.entries(words));
    for (const [id, values] of Object.entries(theirs ?? {})) {
      const group = groups.get(id) ?? {};
      columns.group.forEach((name, index) => { group[name] = values[index]; });
      groups.set(id, group);
    }
    for (const values of theirRows ?? []) {
      const key = values.slice(0, 3).join(".");
      const row = byKey.get(key) ?? { key };
      columns.row.forEach((name, index) => { row[name] = values[index]; });
      if (!byKey.has(key)) {
        byKey.set(key, row);
        rows.push(row);
      }
      row.of = groups.get(row.group) ?? {};
      const said = [row.key, row.of.problem, row.of.text, row.of.environment, row.of.subject, row.answer, row.status];
      row.words = said.join("\n").toLowerCase();
    }
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => { queued = false; fill(); apply(true); });
  }

  /** Offer what there is to choose from. */
  function fill() {
    const ofGroups = (name) => [...groups.values()].map((each) => each[name]);
    for (const name of Object.keys(CHOICES)) {
      const known = choices[name] ??= new Map(CHOICES[name][1]);
      const before = known.size;
      const values = name === "status" ? rows.map((row) => row.status)
        : OF_GROUPS.includes(name) ? ofGroups(name) : [];
      for (const each of new Set(values)) if (each) known.set(each, fates.get(each) ?? each.replaceAll("_", " "));
      if (inputs[name].options.length === known.size && before === known.size) continue;
      inputs[name].replaceChildren(...[...known].map(([value, words]) => el("option", words, { value })));
      inputs[name].value = filter.get(name) ?? "";
      inputs[name].parentElement.hidden = known.size < 2;
    }
  }

  function passes() {
    const is = (name) => filter.get(name);
    const words = (is("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const tests = [];
    if (words.length) tests.push((row) => words.every((word) => row.words.includes(word)));
    const truth = (name, of) => {
      if (!is(name)) return;
      const wanted = { none: null, 1: true, 0: false }[is(name)];
      tests.push((row) => (of(row) === null ? null : Boolean(of(row))) === wanted);
    };
    truth("success", (row) => row.success);
    truth("kept", (row) => row.kept);
    truth("errors", (row) => row.errors > 0);
    if (is("status")) tests.push((row) => row.status === is("status"));
    for (const name of OF_GROUPS) if (is(name)) tests.push((row) => row.of[name] === is(name));
    for (const [name, [, of, sign]] of Object.entries(NUMBERS)) {
      const bound = Number(is(name));
      if (is(name)) tests.push((row) => {
        const value = of === "step" ? row.of.step : row[of];
        return value !== null && value !== undefined && sign * value >= sign * bound;
      });
    }
    if (is("group")) tests.push((row) => row.group === is("group"));
    return (row) => tests.every((test) => test(row));
  }

  const value = (row, name) => [row, row.of].find((of) => Object.hasOwn(of, name))?.[name] ?? null;

  function apply(quietly = false) {
    found = rows.filter(passes());
    const by = filter.get("sort");
    if (by) {
      const [name, sign] = by.startsWith("-") ? [by.slice(1), -1] : [by, 1];
      const order = (a, b) => (a === null ? 1 : b === null ? -1 : a < b ? -sign : a > b ? sign : 0);
      found.sort((a, b) => order(value(a, name), value(b, name)));
    }
    head.forEach((each, index) => each.setAttribute("aria-sort",
      by === COLUMNS[index][1] ? "ascending" : by === `-${COLUMNS[index][1]}` ? "descending" : "none"));
    const right = found.filter((row) => row.success).length;
    const judged = found.filter((row) => row.success !== null).length;
    const number = (count) => count.toLocaleString("en");
    count.textContent = `${number(found.length)} of ${number(rows.length)} trajectories`
      + (judged ? `, ${percent(right / judged)} of ${number(judged)} judged ones right` : "");
    show(quietly ? Math.max(shown, STEP) : STEP);
  }

  function show(most) {
    shown = Math.min(most, found.length);
    keep(() => list, () => list.replaceChildren(...found.slice(0, shown).map(line)));
    more.textContent = `show ${Math.min(STEP, found.length - shown)} more`;
    more.hidden = shown === found.length;
  }

  const verdict = ({ success }) => (success === null ? ["not judged", "same"]
    : success ? ["\u2713 right", "gain"] : ["\u2717 wrong", "loss"]);

  function line(row) {
    const cells = [
      row.of.step ?? "\u2013", badge(verdict(row)), row.reward === null ? "\u2013" : Number(row.reward.toFixed(3)),
      button(row.of.text || row.key, () => open(row.key), { class: "link" }), row.tokens, row.turns,
      row.errors ? `${row.calls}, ${row.errors} failed` : row.calls, row.status.replaceAll("_", " "),
      `${fates.get(row.of.fate) ?? row.of.fate}${row.kept ? ", kept" : row.kept === false ? ", not kept" : ""}`,
    ];
    const made = cells.map((cell, index) => el(`td.${COLUMNS[index][2].replace(" ", ".")}`, [cell]));
    return el(current === row.key ? "tr.current" : "tr", made, { "data-key": row.key });
  }

  function mark() {
    for (const each of list.rows) each.classList.toggle("current", each.dataset.key === current);
  }

  /** Show a trajectory, or its whole group side by side. */
  async function open(key, beside = filter.get("beside") === "1") {
    current = key;
    filter.set("open", key);
    if (beside) filter.set("beside", "1");
    else filter.delete("beside");
    share();
    const row = byKey.get(key);
    const keys = beside && row ? rows.filter((each) => each.group === row.group).map((each) => each.key) : [key];
    if (detail.hidden) detail.replaceChildren(el("p.note", "Reading the trajectory."));
    detail.hidden = false;
    mark();
    let bodies;
    try {
      bodies = await Promise.all(keys.map(body));
    } catch (error) {
      bodies = [{ failed: error.message }];
    }
    if (current !== key) return;
    const first = bodies.find((each) => each && !each.failed);
    const at = found.findIndex((each) => each.key === key);
    const step = (by) => button(by < 0 ? "previous" : "next", () => open(found[at + by].key),
                                found[at + by] ? {} : { disabled: "" });
    const again = (change) => (chosen) => { change(chosen); open(key, beside); };
    const links = [
      step(-1), step(1), button(beside ? "this one alone" : "its group side by side", () => open(key, !beside)),
      chooser("colour tokens by", COLOURINGS, colouring, again((chosen) => { colouring = chosen; })),
      chooser("text", ["turns", "raw"], shownText, again((chosen) => { shownText = chosen; })),
      button("copy link", () => navigator.clipboard?.writeText(location.href)),
      button("close", close),
    ];
    keep(() => detail, () => detail.replaceChildren(
      el("h3", `Trajectory ${key}`), el("div.bar", links),
      ...(first ? [el("pre", first.problem), el("p", ["right answer: ", el("code", first.answer || "\u2013")])] : []),
      el("ol.rollouts", bodies.map((each, index) => el(beside ? "li" : "li.wide", trajectory(each, keys[index])))),
      ...(colouring === COLOURINGS[0] ? [] : [legend()]),
    ));
    if (detail.contains(document.activeElement)) return;
    detail.focus({ preventScroll: true });
    detail.scrollIntoView({ block: "start" });
  }

  function close() {
    const link = list.querySelector(".current .link");
    current = null;
    mark();
    filter.delete("open");
    filter.delete("beside");
    share();
    detail.hidden = true;
    detail.replaceChildren();
    (link ?? search).focus();
  }

  function chooser(words, all, chosen, act) {
    const option = (each) => el("option", each, each === chosen ? { selected: "" } : {});
    const made = el("select", all.map(option), { name: words });
    made.addEventListener("change", () => act(made.value));
    return el("label", [`${words} `, made]);
  }

  function legend() {
    const scale = (kind, words) =>
      el("li", [...[1, 2, 3, 4, 5].map((heat) => el(`span.${kind}${heat}`, " \u00a0 ")), ` ${words}`]);
    const meaning = {
      "advantage": [scale("warm", "below its group"), scale("cool", "above its group")],
      "policy version": el("li", "each version has a colour of its own; point at a token for its number"),
      "log-probability": scale("warm", "less likely, up to 4 nats and more"),
    };
    return el("ul.legend", meaning[colouring]);
  }

  function trajectory(shown, key) {
    if (!shown) {
      const gone = "The journal does not hold this trajectory any more (run.keep_trajectories)";
      return [el("h4", key), el("p.note", `${gone}, or this file left it out.`)];
    }
    if (shown.failed) return [el("h4", key), el("p.note", `It cannot be read: ${shown.failed}`)];
    const coloured = colouring !== COLOURINGS[0];
    const turns = shownText === "raw"
      ? el("pre.raw", shown.raw || "The run's tokenizer was not found: there is no raw text.")
      : shown.turns.map((turn) => el(`section.${turn.class.replace(" ", ".")}`, [
        el("p.who", turn.who),
        coloured && turn.tokens ? tokens(turn.tokens, shown.advantage) : turn.parts.map(part),
      ]));
    const facts = shown.verdict.map(([name, words]) => [el("dt", name), el("dd", words)]);
    if (shown.advantage !== null)
      facts.push([el("dt", "advantage in its group"), el("dd", shown.advantage.toFixed(3))]);
    return [
      el("h4", key), el("p", [shown.badges.map(badge), el("span.sizes", shown.sizes)]), el("p.note", shown.why),
      el("dl.facts", facts), turns, shown.note ? el("p.note", shown.note) : null,
    ];
  }

  function tokens([words, logprobs, versions], advantage) {
    return el("pre", words.map((text, index) => {
      const heat = (size) => Math.min(5, Math.ceil(size));
      let kind = "";
      if (colouring === "log-probability") kind = `warm${heat(-logprobs[index] * 1.25)}`;
      else if (colouring === "policy version") kind = `c${versions[index] % 7 + 1}.version`;
      else if (advantage !== null) kind = `${advantage < 0 ? "warm" : "cool"}${heat(2 * Math.abs(advantage))}`;
      const title = `log p ${logprobs[index]}, version ${versions[index]}`;
      return el(kind ? `span.${kind}` : "span", text, { title });
    }));
  }

  /** Set filters and what is open as the page's address says. */
  function restore() {
    for (const [name, input] of Object.entries(inputs)) input.value = filter.get(name) ?? "";
  }

  function go() {
    const [place, said] = location.hash.slice(1).split("?");
    if (place !== "trajectories" || said === undefined || said === filter.toString()) return;
    filter = new URLSearchParams(said);
    restore();
    apply();
    if (filter.get("open")) open(filter.get("open"));
  }

  addEventListener("hashchange", go);
  requestAnimationFrame(go);
  return { element, take };
}
