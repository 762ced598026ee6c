"use strict";
// Filters, legend, theme, printing; all figures are drawn at once, those in view first: what is printed or photographed is whole.

const cards = []; // the elements of the figures; data-fresh says whether one shows what is selected
let ready = false; // Vega is there
let filling = false; // figures out of view are being drawn

const isStale = (card) => card.dataset.fresh === "false";
const isNear = (card) => {
  const box = card.getBoundingClientRect();
  return box.bottom > -300 && box.top < window.innerHeight + 300;
};
const idle = () => new Promise((go) => (window.requestIdleCallback ? requestIdleCallback(go, { timeout: 200 }) : setTimeout(go)));

function draw(card) {
  card.dataset.fresh = "soon";
  return drawFigure(card);
}

async function drawFigures() {
  if (!ready) return;
  for (const card of cards) if (isStale(card) && (state.printing || isNear(card))) draw(card);
  if (filling) return;
  filling = true;
  try {
    for (let card; (card = cards.find(isStale)); ) { // the others, one after another
      await idle();
      if (isStale(card)) await draw(card);
    }
  } finally { filling = false; }
}

// What depends on the selection, other than the figures
function drawTexts() {
  if (!DATA.groups.length) return;
  drawGlance();
  drawLegend();
  drawTable();
  drawSelection();
}

function drawAll() {
  drawTexts();
  for (const card of cards) card.dataset.fresh = "false";
  drawFigures();
}

// ---- filters ----
function drawFilters() {
  const pick = (label, id, options, chosen, change) => options.length < 2 ? null : el("label", {}, label,
    el("select", { id, onchange: (event) => { change(options[event.target.selectedIndex][0]); settle(); } },
      ...options.map(([value, text]) => el("option", { selected: value === chosen }, text))));
  const links = linksHere();
  const workers = workersHere();
  const toolkits = toolkitsHere();
  const bar = [
    pick("Task", "task", DATA.tasks.map((one, k) => [k, one.name]), state.task, (value) => { state.task = value; start(); }),
    pick("Link", "link", [...links.map((k) => [k, DATA.links[k]]), ...(links.length > 1 ? [[-1, "all links"]] : [])], state.link, (value) => { state.link = value; }),
    pick("Toolkit", "toolkit", [...toolkits.map((name) => [name, name]), ...(toolkits.length > 1 ? [["", "all"]] : [])], state.toolkit, (value) => { state.toolkit = value; }),
    pick("Workers", "workers", [...workers.map((count) => [count, String(count)]), ...(workers.length > 1 ? [[0, "all"]] : [])], state.workers, (value) => { state.workers = value; }),
  ].filter(Boolean);
  const place = document.getElementById("filters");
  place.replaceChildren(...bar);
  place.hidden = !bar.length;
}

function settle() {
  drawFilters();
  drawAll();
}

// The link and the number of workers that most methods of the task ran with; of several, the slowest and the largest
function start() {
  const most = (values, choices) => choices.reduce((a, b) => (values.filter((v) => v === b).length > values.filter((v) => v === a).length ? b : a), choices[0]);
  state.toolkit = most(ofTask().map((group) => group.toolkit), toolkitsHere().reverse());
  const ofToolkit = ofTask().filter((group) => group.toolkit === state.toolkit);
  state.workers = most(ofToolkit.map((group) => group.workers), workersHere().reverse());
  state.link = most(ofToolkit.filter((group) => group.workers === state.workers).map((group) => group.link), linksHere());
}

function drawSelection() {
  const parts = [`Task: ${task().name}`, `link: ${state.link < 0 ? "all" : DATA.links[state.link]}`, `workers: ${state.workers || "all"}`];
  if (toolkitsHere().length > 1) parts.push(`toolkit: ${state.toolkit || "all"}`);
  if (state.off.size) parts.push(`without ${[...state.off].map((k) => DATA.families[k]).join(", ")}`);
  document.getElementById("selection").textContent = parts.join("; ");
  const model = task().parameters.map((count) => count.toLocaleString("en")).join(" and ");
  const said = [`${DATA.runs} runs of ${unique(DATA.groups.map((group) => group.method)).length} methods`, `${task().name}: ${model} parameters`];
  if (DATA.measured < DATA.runs) said.splice(1, 0, `${DATA.measured} of ${DATA.runs} runs measured quality`);
  if (task().row) said.push(task().row);
  if (task().data) said.push(`data: ${task().data}${task().procedural ? " (procedural)" : ""}`);
  document.getElementById("subtitle").textContent = said.join(" \u00b7 ");
  const groups = selected();
  const all = (key, text) => unique(groups.map((group) => group[key])).sort((a, b) => (a > b ? 1 : -1)).map(text).join(", ");
  const count = (value) => value.toLocaleString("en");
  const facts = { toolkit: all("toolkit", String), workers: all("workers", count), link: all("link", (k) => DATA.links[k]), transport: all("transport", String),
    steps: all("steps", count), "batch of each worker": all("batch", count), seeds: all("seeds", count), machine: all("machine", (k) => DATA.machines[k]) };
  document.getElementById("facts").replaceChildren(...Object.entries(facts).map(([term, text]) =>
    el("div", {}, el("dt", {}, term), el("dd", {}, text || NOTHING))));
}

// ---- the legend, which is also the filter of families ----
function drawLegend() {
  const groups = DATA.groups.filter((group) => here(group) && onLink(group));
  const rows = unique(groups.map((group) => group.family)).sort((a, b) => a - b).map((family) => {
    const on = !state.off.has(family);
    const members = unique(groups.filter((group) => group.family === family).map((group) => group.method)).sort((a, b) => a - b);
    return el("div", { class: on ? "family" : "family off" },
      el("label", {}, el("input", { type: "checkbox", checked: on, "data-family": DATA.families[family], onchange: () => { toggle(state.off, family, `input[data-family="${CSS.escape(DATA.families[family])}"]`); } }), DATA.families[family]),
      ...members.map((index) => el("button", {
        type: "button", class: "chip", "aria-pressed": String(state.picked.has(index)), "data-method": index,
        onclick: () => { toggle(state.picked, index, `.chip[data-method="${index}"]`); },
      }, glyph(DATA.methods[index]), DATA.methods[index].name)));
  });
  const hint = el("p", { class: "note no-print" }, "Tap methods to single them out. ", state.picked.size
    ? el("button", { type: "button", class: "plain", onclick: () => { state.picked.clear(); drawAll(); } }, "show all alike") : null);
  document.getElementById("legend").replaceChildren(el("div", { class: "rows" }, ...rows), hint);
}

function toggle(set, value, focus) {
  if (!set.delete(value)) set.add(value);
  drawAll();
  document.querySelector(focus)?.focus();
}

// ---- the rest of the page ----
function card(title, note, ...children) {
  return el("section", { class: "card" }, el("h2", {}, title), note ? el("p", { class: "note" }, note) : null, ...children);
}

function drawRest() {
  const figures = document.getElementById("figures");
  for (const { name, title, survey } of DATA.figures) {
    const made = el("section", { class: "card figure", id: `figure-${name}`, "data-figure": name, "data-fresh": "false" },
      el("h2", {}, title, survey ? el("span", { class: "tag" }, `survey, figure ${survey}`) : null, el("span", { class: "tag procedural", hidden: true })),
      el("p", { class: "note" }, "\u00a0"));
    if (name === "codec-latency") made.append(codecControls(() => draw(made)));
    made.append(el("div", { class: name.startsWith("quality-epoch-") ? "plots two waiting" : "plots waiting" }));
    figures.append(made);
    cards.push(made);
  }
  const appendix = document.getElementById("appendix");
  const list = (items) => el("dl", {}, ...items.flatMap(([term, ...texts]) => [el("dt", {}, term), ...texts.filter(Boolean).map((text) => el("dd", {}, text))]));
  if (DATA.failed.length) {
    appendix.append(Object.assign(card(`Runs that failed: ${DATA.failed.length}`, "", list(DATA.failed.map((run) => [
      `${run.method} \u00b7 ${run.task} \u00b7 ${run.workers} workers \u00b7 link ${run.link} \u00b7 seed ${run.seed}`, run.error, run.command]))), { id: "failed" }));
  }
  const notes = unique(DATA.groups.filter((group) => group.adjusted).map((group) => `${DATA.tasks[group.task].name}, ${group.label}: ${group.adjusted}`));
  const split = unique(DATA.groups.filter((group) => group.disagree && !group.reference).map((group) => `${group.label}: replicas differ at the end in ${group.disagree} of ${group.seeds} runs`));
  if (notes.length + split.length) {
    appendix.append(Object.assign(card("Notes on methods", "Learning rate or momentum is not the task's own, or workers did not stay equal.", el("ul", { class: "quiet" }, ...[...split, ...notes].map((text) => el("li", {}, text)))), { id: "notes" }));
  }
  if (DATA.missing.length) {
    appendix.append(Object.assign(card("Figures without data", "They are left out. These commands make what they need.", ...DATA.missing.map((one) => el("div", {},
      el("p", {}, `${one.title}${one.survey ? ` (survey, figure ${one.survey})` : ""}: needs ${one.needs}.`), el("pre", {}, one.command)))), { id: "missing" }));
  }
  if (DATA.skipped.length) {
    appendix.append(Object.assign(card(`Files left out: ${DATA.skipped.length}`, "", list(DATA.skipped.map((one) => [one.file, one.why]))), { id: "skipped" }));
  }
  if (DATA.machines.length > 1) {
    document.getElementById("notices").append(el("p", { class: "alert" }, `These runs come from ${DATA.machines.length} different machines or versions: compare times only within one. ${DATA.machines.join(" | ")}`));
  }
  document.getElementById("footer").textContent = `Written by Grace ${DATA.grace} on ${DATA.written.replace("T", " ").slice(0, 16)} UTC from ${DATA.directory}. ${DATA.machines.join(" | ")}`;
  document.title = `Grace: ${DATA.directory}`;
}

// ---- light and dark ----
const preferred = window.matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
try { chosenTheme = localStorage.getItem("grace-theme"); } catch { /* a page from a file may be denied its storage */ }

function applyTheme() {
  state.theme = state.printing ? "light" : chosenTheme || (preferred.matches ? "dark" : "light");
  document.documentElement.dataset.theme = state.theme;
  document.getElementById("theme").textContent = state.theme === "dark" ? "Light" : "Dark";
}

document.getElementById("theme").addEventListener("click", () => {
  chosenTheme = state.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("grace-theme", chosenTheme); } catch { /* then it lasts as long as the page */ }
  applyTheme();
  drawAll();
});
preferred.addEventListener("change", () => { applyTheme(); drawAll(); });

// ---- a window of another width ----
let [width, later] = [window.innerWidth, null];
window.addEventListener("resize", () => {
  if (window.innerWidth === width || state.printing) return;
  width = window.innerWidth;
  clearTimeout(later);
  later = setTimeout(drawAll, 150);
});

// ---- paper ----
function printing(on) {
  if (state.printing === on) return;
  state.printing = on;
  applyTheme();
  drawAll();
}
window.addEventListener("beforeprint", () => printing(true));
window.addEventListener("afterprint", () => printing(false));
document.getElementById("print").addEventListener("click", () => window.print());

// ---- go ----
applyTheme();
drawRest();
if (DATA.groups.length) {
  start();
  drawFilters();
  drawTexts();
} else {
  for (const id of ["glance", "legend", "table-card", "filters", "facts"]) document.getElementById(id).remove();
}
document.addEventListener("DOMContentLoaded", () => {
  ready = true;
  drawFigures();
  document.documentElement.dataset.ready = "true";
});
