"""How the page looks, and the few lines of script that make charts answer to pointers, fingers and arrow keys."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f5f6f4; --card: #ffffff; --ink: #1b2126; --quiet: #5a656e; --line: #d9dedb; --grid: #e9ecea;
  --accent: #1f5fbf; --good: #1a7044; --good-ground: #e0f2e8; --bad: #ad3127; --bad-ground: #fbe7e4;
  --warn-ground: #fdf4dc; --warn-line: #d9a521; --chip: #eceff0; --model-ground: #eef3fb; --tool-ground: #f3f4f1;
  --c1: #2267c9; --c2: #c2570c; --c3: #17805a; --c4: #7d4bc4; --c5: #a5771a; --c6: #78838c; --c7: #b0467e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #101418; --card: #181d22; --ink: #e5e9ec; --quiet: #9ba7b0; --line: #2d353c; --grid: #242b31;
    --accent: #7fb0ff; --good: #6fd6a0; --good-ground: #16352a; --bad: #ff9c90; --bad-ground: #42211d;
    --warn-ground: #332a12; --warn-line: #b98d1f; --chip: #262d33; --model-ground: #1a2535; --tool-ground: #20252a;
    --c1: #6ea8ff; --c2: #ff9f57; --c3: #4fcf9c; --c4: #b697f5; --c5: #e0b64c; --c6: #8d99a3; --c7: #ee88ba;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 28px 24px 56px; max-width: 1200px; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
h1, h2, h3, h4, p, ul, ol, figure, dl, dd { margin: 0; padding: 0; }
h1 { font-size: 1rem; font-weight: 650; }
h2 { font-size: 1.3rem; font-weight: 680; margin: 44px 0 14px; letter-spacing: -.01em; }
h3 { font-size: 1rem; font-weight: 650; }
h4 { font-size: .85rem; font-weight: 650; color: var(--quiet); margin-bottom: 6px; }
a { color: var(--accent); }
pre, code { font: .82rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.top { display: flex; flex-wrap: wrap; gap: 6px 12px; align-items: center; }
.headline { font-size: clamp(1.45rem, 1.1rem + 1.9vw, 2.25rem); line-height: 1.2; font-weight: 700; margin: 12px 0 14px;
  letter-spacing: -.02em; text-wrap: balance; max-width: 30em; }
.details { list-style: none; color: var(--quiet); font-size: .95rem; max-width: 60em; }
.details li + li { margin-top: 2px; }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin-top: 16px; font-size: .92rem; }
.badge { display: inline-block; padding: 1px 9px; border-radius: 99px; font-size: .78rem; font-weight: 600; white-space: nowrap;
  background: var(--chip); color: var(--ink); }
.top .badge { white-space: normal; border-radius: 12px; }
.badge.gain, .badge.done { background: var(--good-ground); color: var(--good); }
.badge.loss { background: var(--bad-ground); color: var(--bad); }
.badge.kept { background: var(--model-ground); color: var(--accent); }
.notes { background: var(--warn-ground); border-left: 4px solid var(--warn-line); border-radius: 8px; padding: 12px 16px 12px 34px;
  margin-top: 20px; font-size: .93rem; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; margin-top: 22px; }
.tile, figure, article, .card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; min-width: 0; }
.tile { padding: 12px 16px; }
.tile dt { font-size: .82rem; color: var(--quiet); }
.tile dd { font-size: 1.5rem; font-weight: 680; letter-spacing: -.02em; font-variant-numeric: tabular-nums; line-height: 1.3; }
.tile dd + dd { font-size: .8rem; font-weight: 400; color: var(--quiet); letter-spacing: 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); gap: 14px; }
figure { padding: 14px 16px 12px; }
figure > p, .note { font-size: .84rem; color: var(--quiet); }
.note { margin: 8px 0; max-width: 60em; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; list-style: none; font-size: .82rem; color: var(--quiet); min-height: 1.5em; }
.swatch-box { width: 18px; height: 10px; margin-right: 5px; vertical-align: 0; }
.drawing { display: block; width: 100%; height: auto; margin: 6px 0 2px; overflow: visible; touch-action: pan-y; }
.drawing.narrow { display: none; }
.drawing:focus-visible, summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 4px; }
output { display: block; min-height: 1.45em; margin: 2px 0 4px; font-size: .82rem; line-height: 1.45; font-variant-numeric: tabular-nums;
  white-space: pre-line; overflow-wrap: anywhere; }
svg text { font-size: 11px; fill: var(--quiet); font-variant-numeric: tabular-nums; font-family: inherit; }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
svg .strong { fill: var(--ink); font-weight: 650; } svg .lane { white-space: pre; }
.grid { stroke: var(--grid); } .axis { stroke: var(--quiet); stroke-width: .8; }
.boundary { stroke: var(--quiet); stroke-dasharray: 2 3; }
.curve { fill: none; stroke-width: 1.9; stroke-linejoin: round; stroke-linecap: round; }
.curve.c2 { stroke-dasharray: 5 3.5; }
.band { stroke: none; opacity: .17; }
.whisker { stroke-width: 2; fill: none; }
.sign { stroke: var(--card); stroke-width: 1.5; }
.c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); } .c4 { --c: var(--c4); }
.c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
.curve, .whisker { stroke: var(--c); }
.band, .bar, .dot, .sign, .stripe, .swatch { fill: var(--c); }
.ground { fill: var(--c); opacity: .16; } .stripe { opacity: .5; }
.w1 { fill: url(#waiting-1); } .w2 { fill: url(#waiting-2); } .w3 { fill: url(#waiting-3); }
.w4 { fill: url(#waiting-4); } .w5 { fill: url(#waiting-5); } .w6 { fill: url(#waiting-6); }
.load { fill: var(--quiet); }
.lane-ground { fill: var(--grid); }
.stage.s0 { fill: var(--chip); } .stage.s1 { fill: var(--line); }
.patterns { position: absolute; }
.hits rect { fill: transparent; } .hits rect.here { fill: var(--ink); opacity: .1; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 7px 12px 7px 0; border-top: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
thead th { border-top: 0; overflow-wrap: normal; color: var(--quiet); font-weight: 600; font-size: .8rem; }
tbody th { font-weight: 600; }
.figure { white-space: nowrap; overflow-wrap: normal; }
.card { padding: 10px 16px; margin-top: 14px; }
.stack { display: flex; height: 22px; border-radius: 6px; overflow: hidden; }
.outcomes { display: flex; flex-wrap: wrap; gap: 8px 22px; list-style: none; font-size: .95rem; }
.outcomes b { font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.outcomes .gain b { color: var(--good); } .outcomes .loss b { color: var(--bad); }
article { padding: 14px 16px; margin-top: 14px; }
article > header { margin-bottom: 12px; font-size: .9rem; }
section > h3 { margin: 26px 0 10px; }
.problem { font-size: .95rem; font-weight: 600; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 18px; }
.side { min-width: 0; }
.rollouts { list-style: none; display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 400px), 1fr)); gap: 4px 18px; }
.rollouts li { min-width: 0; }
details > summary { cursor: pointer; padding: 4px 0; }
.sizes { font-size: .8rem; color: var(--quiet); margin-left: 6px; }
.badge + .badge { margin-left: 5px; }
.transcript { padding: 4px 0 10px; }
.model, .tool { padding: 8px 12px; border-radius: 8px; margin-top: 6px; }
.model { background: var(--model-ground); border-left: 3px solid var(--accent); }
.tool { background: var(--tool-ground); border-left: 3px dashed var(--quiet); margin-left: 18px; }
.tool.failed { border-left-color: var(--bad); }
.who { font-size: .74rem; color: var(--quiet); margin-bottom: 2px; }
.tool.failed .who { color: var(--bad); }
.call { border: 1px solid var(--line); border-radius: 6px; padding: 6px 10px; margin: 4px 0; background: var(--card); }
.argument { font-size: .74rem; color: var(--quiet); }
footer { margin-top: 44px; font-size: .82rem; color: var(--quiet); max-width: 62em; }
.skip { position: absolute; left: -9999px; } .skip:focus { left: 12px; top: 8px; background: var(--card); padding: 4px 10px; }
@media (max-width: 760px) {
  body { padding: 18px 14px 40px; }
  .drawing.wide { display: none; } .drawing.narrow { display: block; }
  .sides { grid-template-columns: 1fr; }
  .optional { display: none; }
  figure { padding: 12px 12px 10px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 10px; }
  .tile { padding: 10px 12px; }
  .tool { margin-left: 8px; }
  h2 { margin-top: 34px; }
  th, td { padding-right: 8px; font-size: .85rem; }
  .stacking thead { display: none; }
  .stacking tr { display: grid; grid-template-columns: 1fr auto; }
  .stacking td { border: 0; padding-top: 0; } .stacking th { padding-bottom: 2px; }
  .stacking td:nth-child(2) { border-top: 1px solid var(--line); padding-top: 7px; }
  .stacking td:last-child { grid-column: 1 / -1; }
  .stacking td:nth-child(2)::before { content: "busy "; } .stacking td:last-child::before { content: "waited for "; }
}
@media print {
  :root { color-scheme: light; --page: #fff; --card: #fff; --ink: #000; --quiet: #444; --line: #bbb; --grid: #e4e4e4; --chip: #eee;
    --accent: #1f5fbf; --good: #1a7044; --good-ground: #fff; --bad: #ad3127; --bad-ground: #fff; --warn-ground: #fff;
    --model-ground: #fff; --tool-ground: #fff;
    --c1: #2267c9; --c2: #c2570c; --c3: #17805a; --c4: #7d4bc4; --c5: #a5771a; --c6: #78838c; --c7: #b0467e; }
  body { padding: 0; font-size: 11pt; }
  nav, output, .skip { display: none; }
  figure, .tile, section, tr { break-inside: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

SCRIPT = """
"use strict";
for (const figure of document.querySelectorAll("figure")) {
  const output = figure.querySelector("output");
  if (!output) continue;
  for (const drawing of figure.querySelectorAll("svg.drawing")) {
    const places = [...drawing.querySelectorAll(".hits rect")];
    if (!places.length) continue;
    const words = places.map((place) => {
      const title = place.querySelector("title");
      title.remove();  // it is shown below the chart instead
      return title.textContent;
    });
    let at = places.length - 1;
    const show = (index) => {
      places[at].classList.remove("here");
      at = Math.max(0, Math.min(places.length - 1, index));
      places[at].classList.add("here");
      output.textContent = words[at];
    };
    const point = (event) => {
      const target = document.elementFromPoint(event.clientX, event.clientY);
      const mark = target && target.closest(".mark");
      if (mark) output.textContent = mark.querySelector("title").textContent;
      else if (places.includes(target)) show(places.indexOf(target));
    };
    drawing.addEventListener("pointermove", point);
    drawing.addEventListener("pointerdown", point);
    drawing.addEventListener("pointerleave", () => places[at].classList.remove("here"));
    drawing.setAttribute("tabindex", "0");
    drawing.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: places.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      show(to);
    });
  }
}
"""
