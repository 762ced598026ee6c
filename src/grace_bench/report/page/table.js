"use strict";
// The table of the selection, and the few numbers above everything.

const sorting = { key: "quality", descending: null, all: false };
const ROWS = 200; // shown at once, unless all are asked for

function columns(groups) {
  const measured = (key, title, text, more = {}) => groups.some((group) => isThere(group[key])) && {
    key, title, value: (group) => group[key], cell: (group) => withRange(group, key, text), ...more,
  };
  const good = (key, title, more) => ({ key, title, down: task().higher, value: (group) => group[key.replace("quality", "final")],
    cell: (group) => (group.reference ? [NOTHING] : withRange(group, key.replace("quality", "final"), qualityOf(group))), ...more });
  const hasQuality = groups.some((group) => group.measured);
  const target = hasQuality ? task().target : null;
  return [
    { key: "method", title: "method", text: true, value: (group) => group.label, cell: (group) => el("span", {}, glyph(method(group)), group.label) },
    linksHere().length > 1 && state.link < 0 && { key: "link", title: "link", text: true, value: (group) => group.link, cell: (group) => [DATA.links[group.link]] },
    workersHere().length > 1 && { key: "workers", title: "workers", value: (group) => group.workers, cell: (group) => [String(group.workers)] },
    toolkitsHere().length > 1 && { key: "toolkit", title: "toolkit", text: true, value: (group) => group.toolkit, cell: (group) => [group.toolkit] },
    { key: "seeds", title: "seeds", value: (group) => group.seeds, cell: (group) => [String(group.seeds)] },
    hasQuality && good("quality", `${task().metric}\nlast`),
    target !== null && { key: "target", title: `time to\n${quality(target)}`, value: (group) => group.target_seconds, cell: timeToTarget },
    measured("throughput", "samples/s", number, { down: true, cell: (group) => withFront(group, "throughput", number) }),
    measured("step_ms", "step\nms", number),
    measured("over_limit", "of the\nlimit", (value) => `${number(value)}\u00d7`),
    measured("sent", "sent\nper step", bytes, { cell: (group) => withFront(group, "sent", bytes) }),
    measured("relative", "of fp32", percent),
    measured("codec_ms", "codec\nms", number),
    measured("exposed_ms", "exposed\nms", number),
    measured("predicted_ms", "predicted\nms", number),
    measured("prediction_error", "prediction\nerror", signed),
    hasQuality && good("best", `${task().metric}\nbest ever`, { detail: true }),
    measured("compute_ms", "compute\nms", number, { detail: true }),
    measured("cpu_ms", "processor\nms", number, { detail: true }),
    measured("exchange_ms", "exchange\nms", number, { detail: true }),
    measured("nic_sent", "interface\nper step", bytes, { detail: true }),
    measured("peak_bytes", "peak\nmemory", bytes, { detail: true }),
    { key: "family", title: "family", text: true, detail: true, value: (group) => DATA.families[group.family], cell: (group) => [DATA.families[group.family]] },
  ].filter(Boolean);
}

function withRange(group, key, text) {
  const over = range(group, key, text);
  return [text(group[key]), ...(over ? [el("small", {}, over)] : [])];
}

function withFront(group, key, text) {
  const cell = withRange(group, key, text);
  return group[`front_${key}`] ? [el("span", { class: "front", title: "on the Pareto front of quality against this" }, "\u25c6"), ...cell] : cell;
}

function timeToTarget(group) {
  if (group.reference || !group.measured) return [NOTHING];
  const cell = isThere(group.target_seconds) ? withRange(group, "target_seconds", seconds) : ["not reached"];
  return group.reached < group.seeds && group.seeds > 1 ? [cell[0], el("small", {}, `${group.reached} of ${group.seeds} seeds`)] : cell;
}

function drawTable() {
  const groups = selected();
  const all = columns(groups);
  const column = all.find((one) => one.key === sorting.key) || all.find((one) => one.key === "quality") || all[0];
  const down = sorting.descending ?? Boolean(column.down);
  const rank = (group) => column.value(group);
  const ordered = [...groups].sort((a, b) => {
    const [left, right] = [rank(a), rank(b)];
    if (left === null || right === null) return (left === null) - (right === null); // what is not there comes last, both ways
    const order = typeof left === "string" ? left.localeCompare(right) : left - right;
    return down ? -order : order;
  });
  const head = el("tr", {}, ...all.map((one) => el("th", {
    scope: "col", class: `${one.text ? "text" : ""} ${one.detail ? "detail" : ""}`, "data-key": one.key,
    "aria-sort": one.key === column.key ? (down ? "descending" : "ascending") : "none",
  }, el("button", { type: "button", onclick: () => { sortBy(one); } }, one.title))));
  const rows = ordered.slice(0, sorting.all ? undefined : ROWS).map((group) => el("tr", { class: `${group.baseline ? "baseline" : ""} ${isFaint(group) ? "faint" : ""}` },
    ...all.map((one) => {
      const cell = one.cell(group);
      return el("td", { class: `${one.text ? "text" : ""} ${one.detail ? "detail" : ""}`, "data-key": one.key }, ...(Array.isArray(cell) ? cell : [cell]));
    })));
  document.getElementById("table").replaceChildren(el("thead", {}, head), el("tbody", {}, ...rows));
  document.getElementById("more").replaceChildren(...(rows.length < ordered.length ? [`The first ${ROWS} of ${ordered.length.toLocaleString("en")} rows. `,
    el("button", { type: "button", class: "plain", onclick: () => { sorting.all = true; drawTable(); } }, "show all")] : []));
  fitTable();
}

function sortBy(column) {
  const now = document.querySelector(`#table th[data-key="${column.key}"]`).getAttribute("aria-sort");
  sorting.descending = now === "none" ? Boolean(column.down) : now === "ascending";
  sorting.key = column.key;
  drawTable();
  document.querySelector(`#table th[data-key="${column.key}"] button`).focus();
}

// ---- as many columns as fit, the most important first; a button shows all ----
const KEEP = ["method", "quality", "throughput", "step_ms", "over_limit", "relative", "seeds", "target", "link", "workers", "toolkit", "sent", "exposed_ms", "codec_ms", "best",
  "prediction_error", "predicted_ms", "compute_ms", "nic_sent", "cpu_ms", "exchange_ms", "peak_bytes", "family"];

function fitTable() {
  const table = document.getElementById("table");
  const place = document.getElementById("columns");
  const cells = (key) => table.querySelectorAll(`[data-key="${key}"]`);
  const keys = [...table.querySelectorAll("th")].map((one) => one.dataset.key).sort((a, b) => KEEP.indexOf(a) - KEEP.indexOf(b));
  const hide = (key, on) => { for (const cell of cells(key)) cell.classList.toggle("gone", on); };
  const all = sorting.wide || state.printing;
  for (const key of keys) hide(key, !all);
  const scroll = table.parentElement;
  const gone = all ? [] : keys.filter((key) => {
    hide(key, false);
    const over = !["method", "quality"].includes(key) && scroll.scrollWidth > scroll.clientWidth;
    hide(key, over);
    return over;
  });
  place.replaceChildren(...(gone.length || sorting.wide ? [el("button", { type: "button", class: "plain no-print", id: "wide", "aria-pressed": String(Boolean(sorting.wide)),
    onclick: () => { sorting.wide = !sorting.wide; fitTable(); document.getElementById("wide")?.focus(); } }, sorting.wide ? "Only the columns that fit" : `${gone.length} more columns`)] : []));
}

// ---- at a glance ----
// A winner is named only where it is clearly ahead: what lies within each other's ranges is not told apart
function drawGlance() {
  const groups = selected().filter((group) => !group.reference && isThere(group.final));
  const places = unique(groups.map((group) => `${group.link} ${group.workers} ${group.toolkit}`)).length;
  const fp32 = places > 1 ? null : fp32Of(groups);
  const than = (group, key, more) => (!fp32 || fp32 === group || !fp32[key] || !group[key] ? "" :
    `${number(more ? group[key] / fp32[key] : fp32[key] / group[key])} times ${fp32.label}`);
  const goal = task().target === null ? "" : quality(task().target);
  const reached = groups.filter((group) => isThere(group.target_seconds));
  const tile = (what, rows, key, higher, text, more) => {
    const [top, ...near] = best(rows, key, higher);
    if (!top) return null;
    const names = near.slice(0, 2).map((group) => named(group));
    const who = near.length ? `no clear first: ${[named(top), ...names].join(", ")}${near.length > 2 ? ` and ${near.length - 2} more` : ""}` : named(top);
    const unsure = rows.filter((group) => isUnsure(group, key)).length;
    const tied = unsure ? `${unsure === rows.length ? "one run each" : `${unsure} of ${rows.length} have one run`}: no ranking, which takes several seeds` : "within each other\u2019s ranges";
    const how = near.length ? tied : more(top);
    return el("div", { "data-clear": String(!near.length) }, el("div", { class: "what" }, what), el("div", { class: "value" }, text(top)), el("div", { class: "who" }, who),
      el("div", { class: "than" }, [how, near.length && unsure === rows.length ? "" : `${seedsOf(rows)} ${seedsOf(rows) === "1" ? "run" : "seeds"} each`].filter(Boolean).join("; ")));
  };
  const cards = [
    tile(`best ${task().metric} at the last evaluation`, groups, "final", task().higher, (one) => ranged(one, "final", quality),
      (one) => (!fp32 || fp32 === one ? "" : `${fp32.label} ${quality(fp32.final)}`)),
    tile(`first to reach ${goal}`, reached, "target_seconds", false, (one) => seconds(one.target_seconds),
      (one) => (!fp32 || fp32 === one ? "" : fp32.target_seconds === null ? `${fp32.label} does not reach it` : `${fp32.label} ${seconds(fp32.target_seconds)}`)),
    tile("highest throughput", groups, "throughput", true, (one) => `${number(one.throughput)} samples/s`,
      (one) => [than(one, "throughput", true), `ends at ${quality(one.final)}`].filter(Boolean).join(", ")),
    tile(`fewest bytes of those that reach ${goal}`, reached.filter((group) => group.sent), "sent", false, (one) => `${bytes(one.sent)} per step`,
      (one) => (one.relative === null ? "" : `${percent(one.relative)} of an fp32 all-reduce`)),
  ].filter(Boolean);
  document.getElementById("glance").replaceChildren(...cards);
}
