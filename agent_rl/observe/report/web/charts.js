// Charts with uPlot. `smoothing` is the weight of the past in the mean that is drawn over a curve, 0 for none.

import { el, style, clock } from "./base.js";

const drawings = new Map();  // by place: a function that draws a chart once its place is on the page
const plots = new Map();  // by place
export const settings = { smoothing: 0 };
const colour = (number, alpha = "") => style(`--c${number}`) + alpha;
const pixels = (length) => length * devicePixelRatio;
const FONT = "11px system-ui, sans-serif";
const font = () => FONT.replace("11", pixels(11));
const HIDDEN = { show: true, width: 0, points: { show: false } };
const WHOLE = [0, 1, 2, 3, 4, 5, 6].flatMap((zeros) => [1, 2, 5].map((digit) => digit * 10 ** zeros));
const CLOCK = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

export const swatch = (number, kind) => el(`i.swatch.${kind}.c${number}`, [], { "aria-hidden": "true" });
const legend = (items) =>
  el("ul.legend", items.map(([label, number, kind]) => el("li", [swatch(number, kind), label])));

/** A figure whose words follow pointers, fingers and arrow keys. `over` gives other words at a point, or nothing. */
function figure(shown, items, height, options, data, over = () => null) {
  const place = el("div.plot", [], { tabindex: "0", role: "img", "aria-label": shown.alt });
  const output = el("output", shown.words.at(-1) ?? "");
  let at = data[0].length - 1;
  const wordsAt = (index) => {  // other runs may have places of their own between those with words
    const more = shown.x && data[0].length !== shown.x.length;
    const own = more ? shown.x.findLastIndex((x) => x <= data[0][index]) : index;
    return shown.words[own] ?? "";
  };
  drawings.set(place, () => {
    const plot = new uPlot({
      ...options,
      width: place.clientWidth,
      height,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      hooks: {
        ...options.hooks,
        setCursor: [(plot) => {
          if (!(plot.cursor.left >= 0) || !shown.words.length) return;
          at = plot.cursor.idx ?? at;
          output.textContent = over(plot) ?? wordsAt(at);
        }],
      },
    }, data, place);
    plot.over.addEventListener("pointerdown", (event) =>
      plot.setCursor({ left: event.offsetX, top: event.offsetY }));
    place.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: data[0].length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = Math.max(0, Math.min(data[0].length - 1, to));
      plot.setCursor({ left: plot.valToPos(data[0][next], "x"), top: -10 });
    });
    new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height })).observe(place);
    plots.set(place, plot);
  });
  return el("figure", [el("h3", shown.title), legend(items), place, output, el("p", shown.note)]);
}

const axis = (more) => ({
  stroke: () => style("--quiet"), font: FONT, ticks: { show: false },
  grid: { stroke: () => style("--grid"), width: 1 }, ...more,
});

/** Means that forget: each is the last one's `weight`, and the rest of the new value. Gaps stay gaps. */
function smoothed(values, weight) {
  let sum = 0, whole = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    sum = weight * sum + (1 - weight) * value;
    whole = weight * whole + (1 - weight);
    return sum / whole;
  });
}

/** A chart; `others`: those of other runs with the same title, as { name, chart }, drawn thin over it. */
export function chart(shown, wide, others = []) {
  let data = [shown.x];
  const series = [{}], bands = [];
  const add = (values, more) => { data.push(values); series.push({ ...HIDDEN, ...more }); };
  const heights = shown.x.map(() => 0);
  const bars = shown.lines.map((line) => line.values.map((value, i) => heights[i] += value ?? 0));
  const entries = [...shown.lines.entries()];
  for (const [index, line] of shown.stacked ? entries.reverse() : entries) {
    const ink = { stroke: () => colour(line.colour) };
    if (shown.stacked) {  // the tallest first, behind the others
      add(bars[index], { ...ink, fill: ink.stroke, paths: uPlot.paths.bars({ size: [0.92, 40] }) });
      continue;
    }
    if (line.low) {
      bands.push({ series: [data.length, data.length + 1], fill: () => colour(line.colour, "2b") });
      add(line.high, {});
      add(line.low, {});
    }
    const dash = line.colour === 2 ? [5, 4] : [];
    const smooth = settings.smoothing > 0 && shown.x.length > 2;
    if (smooth) add(line.values, { stroke: () => colour(line.colour, "55"), width: 1 });
    const points = { size: 5, fill: ink.stroke, show: smooth ? false : undefined };
    add(smooth ? smoothed(line.values, settings.smoothing) : line.values,
        { ...ink, width: 2, dash, points });
  }
  const items = [];
  if (!shown.stacked && others.length) {
    const tables = [data];
    for (const other of others) {
      other.chart.lines.forEach((line) => {
        const number = (items.length + shown.lines.length) % 7 + 1;
        const values = settings.smoothing > 0 ? smoothed(line.values, settings.smoothing) : line.values;
        tables.push([other.chart.x, values]);
        series.push({ ...HIDDEN, stroke: () => colour(number), width: 1.5, dash: [3, 3], spanGaps: true });
        items.push([`${other.name}: ${line.label}`, number, "dashed"]);
      });
    }
    data = uPlot.join(tables, tables.map((table) => table.map(() => 1)));
  }
  const marks = shown.marks ?? [];
  const unit = shown.share ? "\u202f%" : "";
  const number = (value) => (shown.share ? 100 * value : value).toLocaleString("en", { maximumSignificantDigits: 4 });
  const side = (mark) => (mark.colour === 2 ? -5 : 5);  // those of the same step stand beside each other
  const room = marks.length ? 0.02 * (shown.x_high ?? 1) : shown.stacked ? 0.5 : 0;
  const range = (plot, low, high) =>
    shown.span ?? (low === null ? [0, 1] : uPlot.rangeNum(Math.min(0, low), Math.max(0, high) || 1, 0.05, true));
  const options = {
    series, bands,
    scales: {
      x: {
        time: false,
        range: (plot, low, high) => [Math.min(0, low ?? 0) - room, (shown.x_high ?? high ?? 1) + room],
      },
      y: { range },
    },
    axes: [
      axis({
        label: shown.x_label, labelSize: 16, labelGap: 0, labelFont: FONT, size: 26, incrs: WHOLE,
        grid: { show: false },
      }),
      axis({ size: (plot, labels) => 14 + 6.5 * Math.max(2, ...(labels ?? []).map((each) => each.length)),
             values: (plot, marks) => marks.map((mark) => number(mark) + unit) }),
    ],
    hooks: { draw: [(plot) => {
      const { ctx, bbox } = plot;
      const [x, y] = ["x", "y"].map((scale) => (value) => plot.valToPos(value, scale, true));
      ctx.save();
      ctx.font = font();
      ctx.textAlign = "left";
      ctx.textBaseline = "alphabetic";
      for (const [from, label] of shown.boundaries ?? []) {
        ctx.fillStyle = style("--quiet");
        ctx.fillRect(x(from), bbox.top, pixels(1), bbox.height);
        ctx.fillText(label, x(from) + pixels(4), bbox.top + pixels(11));
      }
      const alone = shown.lines.filter((line) => line.low && shown.x.length === 1);  // a band needs two places
      const whiskers = alone.map((line) =>
        ({ ...line, x: shown.x[0], low: line.low[0], high: line.high[0], bare: true }));
      for (const mark of [...whiskers, ...marks]) {
        const left = x(mark.x) + (mark.bare ? 0 : pixels(side(mark)));
        ctx.fillStyle = colour(mark.colour);
        ctx.fillRect(left - pixels(1), y(mark.high), pixels(2), y(mark.low) - y(mark.high));
        if (mark.bare) continue;
        ctx.beginPath();
        if (mark.colour === 2) ctx.arc(left, y(mark.value), pixels(5), 0, 7);
        else ctx.rect(left - pixels(4.5), y(mark.value) - pixels(4.5), pixels(9), pixels(9));
        ctx.fill();
        ctx.strokeStyle = style("--card");
        ctx.lineWidth = pixels(1.5);
        ctx.stroke();
      }
      ctx.restore();
    }] },
  };
  const nearest = (plot) => marks.find((mark) =>
    Math.hypot(plot.valToPos(mark.x, "x") + side(mark) - plot.cursor.left,
               plot.valToPos(mark.value, "y") - plot.cursor.top) < 9)?.words;
  const kind = (line) => (shown.stacked ? "area" : line.colour === 2 ? "dashed" : "line");
  items.unshift(...shown.lines.map((line) => [line.label, line.colour, kind(line)]));
  const sign = ({ label, colour }) => [label, [label, colour, colour === 2 ? "circle" : "area"]];
  const signs = new Map(marks.map(sign));  // one for each label
  return figure(shown, [...items, ...signs.values()], wide ? 320 : 190, options, data, nearest);
}

export function lanes(shown) {
  const [lane, gap, top] = [30, 22, 24];
  const rows = [...shown.lanes, { name: "all processors", words: shown.cores.words, colour: 6, waits: [],
                                  busy: shown.cores.values.map((value) => value / shown.cores.full) }];
  const height = top + rows.length * (lane + gap) + 26;
  const end = shown.spans.at(-1)[1];
  const data = [shown.spans.map(([from, to]) => (from + to) / 2), shown.spans.map(() => null)];
  const draw = (plot) => {
    const { ctx } = plot;
    const x = (value) => Math.round(plot.valToPos(value, "x", true));
    const box = (from, to, y, tall) => ctx.fillRect(x(from), y, x(to) - x(from), tall);
    ctx.save();
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.font = font();
    shown.stages.forEach(([name, from, to], index) => {
      ctx.fillStyle = style(index % 2 ? "--line" : "--chip");
      box(from, to, 0, pixels(18));
      ctx.fillStyle = style("--quiet");
      const fits = ctx.measureText(name).width + pixels(8) < x(to) - x(from);
      if (fits) ctx.fillText(name, x(from) + pixels(5), pixels(13));
    });
    rows.forEach((row, index) => {
      const bottom = pixels(top + (index + 1) * (lane + gap));
      ctx.fillStyle = style("--ink");
      ctx.fillText(`${row.name}  ${row.words}`, x(0), bottom - pixels(lane + 6));
      ctx.fillStyle = style("--grid");
      box(0, end, bottom - pixels(lane), pixels(lane));
      shown.spans.forEach(([from, to], place) => {
        let y = bottom;
        for (const [number, share, alpha] of
             [[row.colour, row.busy[place], ""], ...row.waits.map(([role, shares]) => [role, shares[place], "70"])]) {
          const tall = Math.min(1, share) * pixels(lane);
          ctx.fillStyle = colour(number, alpha);
          if (tall > 0) box(from, to, y -= tall, tall);
        }
      });
    });
    ctx.strokeStyle = style("--quiet");
    ctx.setLineDash([pixels(2), pixels(3)]);
    for (const at of shown.gaps) {
      ctx.beginPath();
      ctx.moveTo(x(at), pixels(top));
      ctx.lineTo(x(at), pixels(height - 26));
      ctx.stroke();
    }
    ctx.restore();
  };
  const options = {
    series: [{}, HIDDEN],
    padding: [0, 16, 0, 16],
    scales: { x: { time: false, range: [0, end] }, y: { range: [0, 1] } },
    axes: [
      axis({ size: 26, grid: { show: false }, incrs: CLOCK, values: (plot, marks) => marks.map(clock) }),
      { show: false },
    ],
    hooks: { draw: [draw] },
  };
  return figure(shown, shown.legend, height, options, data);
}

/** Draw the charts that are on the page now, and let go of those that have left it. */
export function drawAll() {
  for (const [place, plot] of plots) {
    if (place.isConnected) continue;
    plot.destroy();
    plots.delete(place);
  }
  for (const [place, draw] of drawings) if (place.isConnected) draw();
  drawings.clear();
}

export function redraw() {
  for (const plot of plots.values()) plot.redraw(false, true);
}
