// Elements from data. Text from a server goes into text nodes and attributes alone, never into markup.

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = new Set(["svg", "g", "rect", "path", "line", "circle", "text", "title"]);

/** An element. `class`, `onclick` and other `on...` are set as such, all else as attributes. Strings become text. */
export function el(tag, attributes = {}, ...children) {
  const made = SHAPES.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** A part of a bar: its share of the length, in percent. */
export function part(className, share, side = "width", title = null) {
  const made = el("span", { class: `part c-${className}`, title });
  made.style[side] = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return made;
}

/** A table in a box that scrolls alone. `columns`: {name, number, text}, `text` of those with sentences; a cell is a text
 * or an element. `stacked`: on a phone each row is a block of its own, with the names of its columns. */
export function table(caption, columns, rows, stacked = false) {
  const of = (column) => ({ class: column.number ? "number" : column.text ? "text" : null });
  const cells = (row) => row.map((cell, at) => el("td", { ...of(columns[at]), "data-name": columns[at].name }, cell ?? ""));
  const head = columns.map((column) => el("th", { scope: "col", ...of(column) }, column.name));
  const body = rows.length
    ? rows.map((row) => el("tr", {}, cells(row)))
    : [el("tr", {}, el("td", { colspan: columns.length, class: "quiet" }, "Nothing here."))];
  return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    el("table", { class: stacked ? "stacked" : null }, el("caption", {}, caption), el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}

/** What stands in a cell: a bar of how much of a limit is used, and the number under it. */
export function used(label, amount, limit, text) {
  const share = limit > 0 ? amount / limit : 0;
  const bar = el("span", { class: "bar", role: "img", "aria-label": `${label}: ${text}` }, part("new", share));
  if (share > 0.9) bar.firstChild.classList.add("full");
  return el("div", { class: "used" }, bar, el("span", {}, text));
}

/** A labelled bar of how much of a limit is used. */
export function meter(label, used, limit, text) {
  const share = limit > 0 ? used / limit : 0;
  const bar = el("span", { class: "bar", role: "img", "aria-label": `${label}: ${text}` }, part("new", share));
  if (share > 0.9) bar.firstChild.classList.add("full");
  return el("div", { class: "meter" }, el("span", {}, label), bar, el("span", {}, text));
}

export function legend(classes) {
  return el("ul", { class: "legend" }, classes.map((name) => el("li", { class: `c-${name}` }, words(name))));
}

export const words = (name) => name.replace(/_s$/, "").replaceAll("_", " ");
export const count = (value) => Math.round(value).toLocaleString("en-US");
export const percent = (share) => (share === null ? "–" : `${(share * 100).toFixed(1)} %`);

/** Nanodollars as USD, with enough digits to tell small amounts apart. */
export function usd(nano) {
  const value = nano / 1e9;
  const digits = value === 0 || Math.abs(value) >= 100 ? 2 : Math.min(9, Math.max(2, 2 - Math.floor(Math.log10(Math.abs(value)))));
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export const seconds = (value) => (value === 0 ? "0 s" : value < 1 ? `${(value * 1000).toFixed(1)} ms` : `${value.toFixed(2)} s`);

export const turns = (number) => `${count(number)} ${number === 1 ? "turn" : "turns"}`;

export function time(unix) {
  const at = new Date(unix * 1000);
  const today = at.toDateString() === new Date().toDateString();
  return today ? at.toLocaleTimeString("en-GB") : at.toLocaleString("en-GB", { dateStyle: "short", timeStyle: "medium" });
}
