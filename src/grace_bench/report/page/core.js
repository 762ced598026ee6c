"use strict";
// What all parts share: the data, what is selected, numbers as text, the signs of methods.

const DATA = JSON.parse(document.getElementById("data").textContent);
const NOTHING = "\u2013";
const state = { task: 0, link: -1, workers: 0, toolkit: "", off: new Set(), picked: new Set(), theme: "light", printing: false };

// ---- elements: text is only ever set as text, so no name in a result can become markup ----
function el(tag, attributes = {}, ...children) {
  const svg = tag === "svg" || tag === "path";
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// ---- numbers ----
const isThere = (value) => value !== null && value !== undefined;

function number(value, digits = 3, fixed = false) {
  if (!isThere(value)) return NOTHING;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-4) return value.toExponential(digits - 1);
  const decimals = Math.min(8, Math.max(0, digits - 1 - Math.floor(Math.log10(size))));
  return value.toLocaleString("en", { minimumFractionDigits: fixed ? decimals : 0, maximumFractionDigits: decimals });
}

// Of a group: a quality that nobody measured is no divergence
const qualityOf = (group) => (value) => (isThere(value) || group.measured ? quality(value) : "not measured");

function quality(value) {
  if (!isThere(value)) return "diverged";
  return task().share ? `${(100 * value).toFixed(1)}\u00a0%` : number(value, 4, true);
}

function bytes(value) {
  if (!isThere(value)) return NOTHING;
  const power = Math.min(4, Math.max(0, Math.floor(Math.log10(value / 0.9995) / 3)));
  return `${number(value / 1000 ** power)}\u00a0${["B", "kB", "MB", "GB", "TB"][power]}`;
}

function seconds(value) {
  if (!isThere(value)) return NOTHING;
  return value < 300 ? `${number(value)}\u00a0s` : value < 36000 ? `${number(value / 60)}\u00a0min` : `${number(value / 3600)}\u00a0h`;
}

const percent = (value) => (isThere(value) ? `${number(100 * value)}\u00a0%` : NOTHING);

function signed(value) {
  if (!isThere(value)) return NOTHING;
  const text = Math.abs(100 * value).toFixed(1);
  return `${text === "0.0" ? "" : value > 0 ? "+" : "\u2212"}${text}\u00a0%`;
}

// "91.7 – 93.1 %", only where seeds differ: a unit that both ends have is said once
function range(group, key, text) {
  if (!(`${key}_low` in group)) return "";
  const [least, most] = ["low", "high"].map((end) => text(group[`${key}_${end}`]));
  const [first, unit] = least.split("\u00a0");
  return least === most ? "" : `${unit && most.endsWith(`\u00a0${unit}`) ? first : least}\u2009\u2013\u2009${most}`;
}

function ranged(group, key, text) {
  const over = range(group, key, text);
  return text(group[key]) + (over && ` (${over})`);
}

// ---- what is better ----
// The range of a measure; what has diverged or was missed is the worst there is
function ends(group, key, higher) {
  const worst = higher ? -Infinity : Infinity;
  return ["low", "high"].map((end) => (`${key}_${end}` in group ? group[`${key}_${end}`] : group[key]) ?? worst);
}

// Of one run these have no range, and say nothing of another seed
const OF_A_SEED = ["final", "best", "target_seconds"];
const isUnsure = (group, key) => OF_A_SEED.includes(key) && group.seeds === 1;

// Whether all of a's range is better than all of b's: ranges that touch tell nothing apart, nor does one seed
function isAhead(a, b, key, higher) {
  if (isUnsure(a, key) || isUnsure(b, key)) return false;
  const [[low, high], [least, most]] = [ends(a, key, higher), ends(b, key, higher)];
  return higher ? low > most : high < least;
}

// The best by its median, and those that it is not ahead of
function best(groups, key, higher) {
  const there = groups.filter((group) => isThere(group[key])).sort((a, b) => (higher ? b[key] - a[key] : a[key] - b[key]));
  return there.length ? [there[0], ...there.slice(1).filter((group) => !isAhead(there[0], group, key, higher))] : [];
}

const isRepeated = (group) => group.seeds > 1 || group.rounds > 1;
const seedsOf = (groups) => unique(groups.map((group) => group.seeds)).sort((a, b) => a - b).join(" or ");
const repeatsOf = (groups) => {
  const rounds = unique(groups.map((group) => group.rounds ?? 1)).sort((a, b) => a - b).join(" or ");
  return rounds === "1" ? `${seedsOf(groups)} seeds` : `${rounds} rounds${seedsOf(groups) === "1" ? "" : ` of ${seedsOf(groups)} seeds`}`;
};
const fp32Of = (groups) => groups.find((group) => group.fp32) ?? null;

// ---- signs ----
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const look = (method) => ({ shape: method.shape, dash: method.dash, width: method.width, ...method[state.theme] });

// The line and marker of a method, as they are drawn in the figures
function glyph(method) {
  const { stroke, fill, shape, dash, width } = look(method);
  return el("svg", { width: 36, height: 14, viewBox: "-18 -7 36 14", "aria-hidden": "true" },
    el("path", { d: "M-18 0H18", stroke, "stroke-width": width, "stroke-dasharray": dash.length ? dash.join(" ") : null }),
    el("path", { d: shape, stroke, fill, "stroke-width": 0.35, transform: "scale(4.4)" }));
}

// ---- the selection ----
const NO_TASK = { name: "codecs", metric: "", share: false, higher: true, target: null, data: "", parameters: [], charts: {} };
const task = () => DATA.tasks[state.task] || NO_TASK;
const method = (group) => DATA.methods[group.method];
const here = (group) => group.task === state.task && (!state.workers || group.workers === state.workers) && (!state.toolkit || group.toolkit === state.toolkit);
const onLink = (group) => state.link < 0 || group.link === state.link;

// Groups of the selected task; `links`: of all links
function selected({ links = false } = {}) {
  return DATA.groups.filter((group) => here(group) && !state.off.has(group.family) && (links || onLink(group)));
}

// A group's name, with what tells it apart in this selection
function named(group, { links = false } = {}) {
  const parts = [group.label];
  if (state.link < 0 && linksHere().length > 1 && !links) parts.push(DATA.links[group.link]);
  if (!state.workers && workersHere().length > 1) parts.push(`${group.workers} workers`);
  if (!state.toolkit && toolkitsHere().length > 1) parts.push(group.toolkit);
  return parts.join(" \u00b7 ");
}

const unique = (values) => [...new Set(values)];
const ofTask = () => DATA.groups.filter((group) => group.task === state.task);
const linksHere = () => unique(ofTask().map((group) => group.link)).sort((a, b) => a - b);
const workersHere = () => unique(ofTask().map((group) => group.workers)).sort((a, b) => a - b);
const toolkitsHere = () => unique(ofTask().map((group) => group.toolkit)).sort();
const isFaint = (group) => state.picked.size > 0 && !state.picked.has(group.method);
const canHover = window.matchMedia("(hover: hover)").matches;
