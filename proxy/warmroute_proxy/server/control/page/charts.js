// Two charts over time, as SVG. What they show stands in a table beneath, too.

import { el, percent, usd } from "./dom.js";

const HEIGHT = 190, LEFT = 64, RIGHT = 8, TOP = 8, BOTTOM = 22;

const STEPS = { minute: 60e3, hour: 3600e3, day: 86400e3 }, LEAST = { minute: 60, hour: 24, day: 24 };

/** All buckets up to now, at least as many as `LEAST`, so that hours without turns show as such. `groups`: of an answer. */
export function buckets(groups, by) {
  const step = STEPS[by];
  const known = new Map(groups.map((group) => [start(group.key, by), group]));
  const times = [...known.keys()].sort((a, b) => a - b);
  const last = Math.floor(Date.now() / step) * step, found = [];
  for (let now = Math.min(times[0], last - (LEAST[by] - 1) * step); now <= last && found.length < 1000; now += step) {
    found.push({ at: now, group: known.get(now) ?? null });
  }
  return found;
}

const REST = { minute: "Z", hour: ":00Z", day: "T00:00Z" };
export const start = (key, by) => Date.parse(key + REST[by]);

export function label(at, by) {
  const when = new Date(at);
  if (by === "minute") return when.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return by === "hour"
    ? when.toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" })
    : when.toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
}

function frame(width, ticks, format, spoken) {
  const svg = el("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": spoken });
  for (const share of [0, 0.5, 1]) {
    const y = HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
    svg.append(el("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }));
    svg.append(el("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, format(share * ticks)));
  }
  return svg;
}

function times(svg, width, all, by) {
  const room = (width - LEFT - RIGHT) / all.length;
  const every = Math.ceil(all.length / Math.max(1, Math.floor((width - LEFT) / 110)));
  all.forEach((bucket, at) => {
    if (at % every) return;
    const x = LEFT + room * (at + 0.5);
    const anchor = x < LEFT + 40 ? "start" : x > width - 50 ? "end" : "middle";
    svg.append(el("text", { x: anchor === "start" ? LEFT : anchor === "end" ? width - RIGHT : x, y: HEIGHT - 6, "text-anchor": anchor }, label(bucket.at, by)));
  });
}

export function hitRatio(all, by, width, total) {
  const svg = frame(width, 1, (value) => `${value * 100} %`, `Hit ratio over time; in all ${percent(total.hit_ratio)}`);
  const room = (width - LEFT - RIGHT) / all.length;
  const height = HEIGHT - TOP - BOTTOM;
  let path = "", down = false;
  const dots = [];
  all.forEach(({ at, group }, number) => {
    if (!group || group.hit_ratio === null) return (down = false);
    const x = LEFT + room * (number + 0.5), y = HEIGHT - BOTTOM - group.hit_ratio * height;
    path += `${down ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    down = true;
    dots.push(el("circle", { class: "dot", cx: x, cy: y, r: all.length > 60 ? 1.5 : 3.5 },
      el("title", {}, `${label(at, by)}: ${percent(group.hit_ratio)}`)));
  });
  svg.append(el("path", { class: "ratio", d: path }), ...dots);
  times(svg, width, all, by);
  return svg;
}

/** The hit ratio of an engine in each minute of the last hour, as bars without axes. `minutes`: of its sums. */
export function trend(name, minutes) {
  const width = 120, height = 26, step = width / minutes.length;
  const bar = ({ prompt_tokens: prompt, cached_tokens: cached }, number) => (prompt
    ? el("rect", { class: "c-cached", x: step * number, y: (height - 2) * (1 - cached / prompt), width: step, height: Math.max(1, (height - 2) * (cached / prompt)) }) : null);
  return el("svg", { class: "trend", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Hit ratio of ${name} by minute` },
    el("line", { class: "grid", x1: 0, x2: width, y1: height - 1, y2: height - 1 }), minutes.map(bar));
}

export function money(all, by, width, total) {
  const most = Math.max(1, ...all.map(({ group }) => (group ? Math.max(group.list_nanousd, group.price_nanousd) : 0)));
  const spoken = `Money over time; in all ${usd(total.price_nanousd)} USD paid, ${usd(total.saved_nanousd)} USD saved`;
  const svg = frame(width, most, usd, spoken);
  const room = (width - LEFT - RIGHT) / all.length, bar = Math.max(1, Math.min(46, room * 0.8));
  const height = HEIGHT - TOP - BOTTOM;
  all.forEach(({ at, group }, number) => {
    if (!group) return;
    const x = LEFT + room * (number + 0.5) - bar / 2;
    const paid = (group.price_nanousd / most) * height, saved = (Math.max(0, group.saved_nanousd) / most) * height;
    const base = HEIGHT - BOTTOM;
    svg.append(el("g", {},
      el("title", {}, `${label(at, by)}: ${usd(group.price_nanousd)} USD paid, ${usd(group.saved_nanousd)} USD saved`),
      el("rect", { class: "c-paid", x, y: base - paid, width: bar, height: paid }),
      el("rect", { class: "c-saved", x, y: base - paid - saved, width: bar, height: saved })));
  });
  times(svg, width, all, by);
  return svg;
}
