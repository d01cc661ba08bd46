// Elements, and words for figures. Texts enter the page as texts only, never as markup.

/** An element, as "name.class.class". The content is texts, elements, or lists of them. */
export function el(name, content = [], attributes = {}) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElement(tag);
  made.classList.add(...classes);
  made.append(...[content].flat(Infinity).filter((part) => part !== null && part !== undefined));
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** A control that calls a function. */
export function button(words, act, attributes = {}) {
  const made = el("button", words, { type: "button", ...attributes });
  made.addEventListener("click", act);
  return made;
}

/** Change what is in a place. The control that has the focus, and details that are open, stay what they are. */
export function keep(place, change) {
  const all = (kind) => [...(place()?.querySelectorAll(kind) ?? [])];
  const controls = () => all(".plot, a, button, input, select, summary");
  const active = document.activeElement, at = controls().indexOf(active);
  const open = all("details").map((each) => each.open);
  change();
  all("details").forEach((each, index) => { each.open = open[index] ?? each.open; });
  if (at >= 0) (active.isConnected ? active : controls()[at])?.focus({ preventScroll: true });
}

export const badge = ([words, kind]) => el(`span.badge.${kind}`, words);
export const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
export const percent = (share) => `${(100 * share).toFixed(1)}\u202f%`;

export function clock(seconds) {
  const two = (value) => String(value).padStart(2, "0");
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}
