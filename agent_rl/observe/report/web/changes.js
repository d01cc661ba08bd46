// Changes of a run under way: swap, scale, drain, stop. The key stays in the memory of this page alone.

import { el, button, badge } from "./base.js";

/** `place` is the number of the run that is shown. The element is hidden until its server offers changes. */
export function changes(place) {
  let key = "", live = false;
  const lists = { role: [], host: [] };
  const input = (type, words, more = {}) =>
    el("input", [], { type, name: words, "aria-label": words, placeholder: words, autocomplete: "off", ...more });
  const choice = (what) => {
    const made = el("select", [], { name: what, "aria-label": what });
    lists[what].push(made);
    return el("label", [`${what} `, made]);
  };
  const sure = (words) => el("label", [el("input", [], { type: "checkbox", name: "sure", required: "" }), ` ${words}`]);
  const field = (made) => made.querySelector("select") ?? made;

  const given = input("password", "key that agent-rl view printed");
  const state = el("span.note", "", { role: "status" });
  const log = el("ul.changes", [], { "aria-label": "Changes", "aria-live": "polite" });
  const hold = (event) => {
    event?.preventDefault();
    key = given.value.trim();
    given.value = "";
    follow();
  };
  const keys = el("form.bar", [el("label", ["key ", given]), button("use this key", hold), state]);
  keys.addEventListener("submit", hold);

  /** A line of controls; `asked` makes the change and its name when it is sent. */
  function form(name, parts, asked) {
    const made = el("form.bar", [el("b", name), parts, el("button", name, { type: "submit" })], { name });
    made.addEventListener("submit", (event) => {
      event.preventDefault();
      const change = asked();
      const words = Object.values(change).flat().filter((each) => each !== false && each !== "");
      ask({ change: name, ...change }, [name, ...words].join(" "));
      made.querySelectorAll("[type=checkbox]").forEach((each) => { each.checked = false; });
    });
    return made;
  }

  const [scaled, swapped, drained] = [choice("role"), choice("role"), choice("host")];
  const number = input("number", "processes", { min: "1", required: "" });
  const path = input("text", "module:Class; empty: the same");
  const settings = el("textarea", [], {
    name: "settings", "aria-label": "settings", placeholder: "key = value, one a line", rows: "2", spellcheck: "false",
  });
  const fresh = el("input", [], { type: "checkbox", name: "fresh" });
  const forms = el("fieldset", [
    form("scale", [scaled, number], () => ({ role: field(scaled).value, number: number.valueAsNumber })),
    form("swap", [swapped, path, settings, el("label", [fresh, " without its present settings"])], () => ({
      role: field(swapped).value, class: path.value.trim(), fresh: fresh.checked,
      settings: settings.value.split("\n").map((line) => line.trim()).filter(Boolean),
    })),
    form("drain", [drained, sure("its actors stop in order")], () => ({ host: field(drained).value })),
    form("stop", [sure("the whole run ends in order, with a checkpoint")], () => ({})),
  ], { disabled: "" });
  const element = el("details.card.control", [el("summary", "Change this run"), keys, forms, log], { hidden: "" });

  async function ask(change, words) {
    const line = el("li", [badge(["under way", "kept"]), ` ${words}`]);
    log.prepend(line);
    const said = (verdict, lines) =>
      line.replaceChildren(badge(verdict), ` ${words}`, el("ul.details", lines.map((each) => el("li", each))));
    try {
      const answer = await fetch("change", {
        method: "POST", headers: { Authorization: `Bearer ${key}` }, body: JSON.stringify({ run: place(), ...change }),
      });
      const { refused, done } = await answer.json();
      if (answer.status === 401) key = "";
      said(refused.length ? ["refused", "loss"] : ["done", "gain"], [...refused, ...done]);
    } catch (error) {
      said(["not known", "loss"], [`No answer came (${error.message}). The run carries out what it has begun.`]);
    }
    follow();
  }

  /** Offer the roles and hosts of a topology, as the page shows it. */
  function follow(section) {
    const shown = section?.blocks.find((block) => block.graph)?.graph;
    if (shown) {
      live = shown.state !== "ended";
      const names = {
        role: shown.roles.map(({ role }) => role),
        host: shown.roles.flatMap(({ host }) => host.split(", ")).filter(Boolean),
      };
      for (const [what, all] of Object.entries(lists)) for (const made of all) {
        const known = [...new Set(names[what])], listed = [...made.options].map(({ value }) => value);
        if (known.join() !== listed.join()) made.replaceChildren(...known.map((name) => el("option", name)));
      }
    }
    forms.disabled = !key || !live;
    state.textContent = !live ? "The run does not run now."
      : key ? "This page holds the key until it is closed." : "Give the key first.";
  }

  follow();
  return { element, follow };
}
