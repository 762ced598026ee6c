"use strict";
// What all parts share: the data, what is selected, numbers as text, colours.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SYMBOLS = {
  o: "circle", s: "square", D: "diamond", "^": "triangle-up", v: "triangle-down",
  P: "cross", X: "x", "*": "star", "<": "triangle-left", ">": "triangle-right",
};
const DASHES = ["solid", "9px,4px", "2px,3px"];
const NOTHING = "\u2013";

const state = { task: 0, link: -1, workers: 0, off: new Set(), picked: new Set(), theme: "light", printing: false };

// ---- elements: text is only ever set as text, so no name in a result can become markup ----
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Plotly reads a few tags in its texts; names are not to be read so.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

// ---- numbers ----
function number(value, digits = 3, fixed = false) {
  if (value === null || value === undefined) return NOTHING;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-4) return value.toExponential(digits - 1);
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return value.toLocaleString("en", { minimumFractionDigits: fixed ? Math.min(decimals, 8) : 0, maximumFractionDigits: Math.min(decimals, 8) });
}

function quality(value, task) {
  if (value === null || value === undefined) return "diverged";
  return task.share ? `${(100 * value).toFixed(1)}\u00a0%` : number(value, 4, true);
}

function bytes(value) {
  if (value === null || value === undefined) return NOTHING;
  let size = value;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (size < 999.5 || unit === "TB") return `${number(size)}\u00a0${unit}`;
    size /= 1000;
  }
  return NOTHING;
}

function seconds(value) {
  if (value === null || value === undefined) return NOTHING;
  return value < 300 ? `${number(value)}\u00a0s` : value < 36000 ? `${number(value / 60)}\u00a0min` : `${number(value / 3600)}\u00a0h`;
}

const number1 = (value) => number(value); // for lists, which pass an index too

function microseconds(value) {
  return value < 1000 ? `${number(value)}\u00a0\u00b5s` : value < 1e6 ? `${number(value / 1000)}\u00a0ms` : `${number(value / 1e6)}\u00a0s`;
}

const percent = (value) => (value === null || value === undefined ? NOTHING : `${number(100 * value)}\u00a0%`);
function signed(value) {
  if (value === null || value === undefined) return NOTHING;
  const text = Math.abs(100 * value).toFixed(1);
  return `${text === "0.0" ? "" : value > 0 ? "+" : "\u2212"}${text}\u00a0%`;
}


const middle = (spread) => (spread ? spread[0] : null);
const low = (spread) => (spread && spread.length > 1 ? spread[1] : middle(spread));
const high = (spread) => (spread && spread.length > 1 ? spread[2] : middle(spread));

// "92.1 % (91.8 % to 92.4 %)", the range only where there are several seeds
function ranged(spread, text) {
  const [said, least, most] = [middle(spread), low(spread), high(spread)].map((value) => text(value));
  return spread.length > 1 && least !== most ? `${said} (${least} to ${most})` : said;
}

// ---- colours and signs ----
function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function colour(method) {
  return method.colour < 0 ? css("--ink") : DATA.palette[state.theme][method.colour];
}

function faded(hex, alpha) {
  const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${parts.join(",")},${alpha})`;
}

function symbol(method) {
  const name = SYMBOLS[DATA.palette.markers[method.marker]];
  return method.colour < 0 ? `${name}-open` : name;
}

const SHAPES = {
  circle: "M18 7m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", square: "M14.5 3.5h7v7h-7z", diamond: "M18 2l5 5l-5 5l-5 -5z",
  "triangle-up": "M18 2.5l4.6 8h-9.2z", "triangle-down": "M18 11.5l4.6 -8h-9.2z",
  cross: "M16.5 2.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z", x: "M15 2.6l3 3l3 -3l1.4 1.4l-3 3l3 3l-1.4 1.4l-3 -3l-3 3l-1.4 -1.4l3 -3l-3 -3z",
  star: "M18 2l1.4 3.4l3.7 .2l-2.8 2.4l.9 3.6l-3.2 -2l-3.2 2l.9 -3.6l-2.8 -2.4l3.7 -.2z",
  "triangle-left": "M13 7l8 -4.6v9.2z", "triangle-right": "M23 7l-8 -4.6v9.2z",
};

// The line and marker of a method, as they are drawn in the figures
function glyph(method) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const paint = colour(method);
  svg.setAttribute("width", 36);
  svg.setAttribute("height", 14);
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(space, "path");
  const shape = document.createElementNS(space, "path");
  line.setAttribute("d", "M0 7H36");
  line.setAttribute("stroke", paint);
  line.setAttribute("stroke-width", method.colour < 0 ? 2.2 : 1.8);
  if (method.dash) line.setAttribute("stroke-dasharray", method.dash === 1 ? "7 3" : "2 2.5");
  shape.setAttribute("d", SHAPES[SYMBOLS[DATA.palette.markers[method.marker]]]);
  shape.setAttribute("stroke", paint);
  shape.setAttribute("fill", method.colour < 0 ? css("--card") : paint);
  svg.append(line, shape);
  return svg;
}

// ---- the selection ----
const NO_TASK = { name: "codecs", metric: "", share: false, higher: true, target: null, data: "", procedural: false, row: "", parameters: [] }; // codecs alone

function task() {
  return DATA.tasks[state.task] || NO_TASK;
}

const families = (group) => !state.off.has(group.family);
const here = (group) => group.task === state.task && (!state.workers || group.workers === state.workers);
const onLink = (group) => state.link < 0 || group.link === state.link;

// Groups of the selected task; `links`: of all links
function selected({ links = false } = {}) {
  return DATA.groups.filter((group) => here(group) && families(group) && (links || onLink(group)));
}

// A figure of more lines than this cannot be read, and takes long to draw
const MOST = 80;

// Those to draw of many: what is singled out, baselines, the fronts, then the best
function shown(groups) {
  if (groups.length <= MOST) return groups;
  const rank = (group) => (state.picked.has(group.method) ? 0 : group.baseline ? 1 : group.front.throughput || group.front.sent ? 2 : 3);
  const value = (group) => (middle(group.final) === null ? -Infinity : (task().higher ? 1 : -1) * middle(group.final));
  return [...groups].sort((a, b) => rank(a) - rank(b) || value(b) - value(a)).slice(0, MOST);
}

// A group's name, with what tells it apart in this selection
function named(group) {
  const parts = [group.label];
  if (state.link < 0 && linksHere().length > 1) parts.push(DATA.links[group.link]);
  if (!state.workers && workersHere().length > 1) parts.push(`${group.workers} workers`);
  return parts.join(" \u00b7 ");
}

const unique = (values) => [...new Set(values)];
const ofTask = () => DATA.groups.filter((group) => group.task === state.task);
const linksHere = () => unique(ofTask().map((group) => group.link)).sort((a, b) => a - b);
const workersHere = () => unique(ofTask().map((group) => group.workers)).sort((a, b) => a - b);

const method = (group) => DATA.methods[group.method];
const isFaint = (group) => state.picked.size > 0 && !state.picked.has(group.method);
const opacity = (group) => (isFaint(group) ? 0.13 : 1);
const narrow = () => !state.printing && window.innerWidth <= 720;
