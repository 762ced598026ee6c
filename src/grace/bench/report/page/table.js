"use strict";
// The table of the selection, and the few numbers above everything.

const sorting = { key: "quality", descending: null, all: false };
const ROWS = 200; // shown at once, unless all are asked for

function columns(groups) {
  const measured = (key, title, text, more = {}) => groups.some((group) => isThere(group[key])) && {
    key, title, value: (group) => group[key], cell: (group) => withRange(group, key, text), ...more,
  };
  const good = (key, title, more) => ({ key, title, down: task().higher, value: (group) => group[key.replace("quality", "final")],
    cell: (group) => (group.reference ? [NOTHING] : withRange(group, key.replace("quality", "final"), quality)), ...more });
  const target = task().target;
  return [
    { key: "method", title: "method", text: true, value: (group) => group.label, cell: (group) => el("span", {}, glyph(method(group)), group.label) },
    linksHere().length > 1 && state.link < 0 && { key: "link", title: "link", text: true, value: (group) => group.link, cell: (group) => [DATA.links[group.link]] },
    workersHere().length > 1 && { key: "workers", title: "workers", value: (group) => group.workers, cell: (group) => [String(group.workers)] },
    good("quality", `${task().metric}\nat the end`),
    target !== null && { key: "target", title: `time to\n${quality(target)}`, value: (group) => group.target_seconds, cell: timeToTarget },
    measured("throughput", "samples/s", number, { down: true, cell: (group) => withFront(group, "throughput", number) }),
    measured("step_ms", "step\nms", number),
    measured("sent", "sent\nper step", bytes, { cell: (group) => withFront(group, "sent", bytes) }),
    measured("relative", "of fp32", percent),
    measured("codec_ms", "codec\nms", number),
    measured("exposed_ms", "exposed\nms", number),
    measured("predicted_ms", "predicted\nms", number),
    measured("prediction_error", "prediction\nerror", signed),
    good("best", `best\n${task().metric}`, { detail: true }),
    measured("compute_ms", "compute\nms", number, { detail: true }),
    measured("exchange_ms", "exchange\nms", number, { detail: true }),
    measured("nic_sent", "interface\nper step", bytes, { detail: true }),
    measured("peak_bytes", "peak\nmemory", bytes, { detail: true }),
    { key: "family", title: "family", text: true, detail: true, value: (group) => DATA.families[group.family], cell: (group) => [DATA.families[group.family]] },
    { key: "seeds", title: "seeds", value: (group) => group.seeds, cell: (group) => [String(group.seeds)] },
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
  if (group.reference) return [NOTHING];
  const cell = isThere(group.target_seconds) ? withRange(group, "target_seconds", seconds) : ["not reached"];
  return group.reached < group.seeds && group.seeds > 1 ? [cell[0], el("small", {}, `${group.reached} of ${group.seeds} seeds`)] : cell;
}

function drawTable() {
  const groups = selected();
  const all = columns(groups);
  const column = all.find((one) => one.key === sorting.key) || all.find((one) => one.key === "quality");
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
}

function sortBy(column) {
  const now = document.querySelector(`#table th[data-key="${column.key}"]`).getAttribute("aria-sort");
  sorting.descending = now === "none" ? Boolean(column.down) : now === "ascending";
  sorting.key = column.key;
  drawTable();
  document.querySelector(`#table th[data-key="${column.key}"] button`).focus();
}

// ---- at a glance ----
function drawGlance() {
  const groups = selected().filter((group) => !group.reference && isThere(group.final));
  const fp32 = groups.find((group) => DATA.methods[group.method].name === "ddp-fp32") || groups.find((group) => DATA.methods[group.method].name === "none");
  const sign = task().higher ? 1 : -1;
  const best = (rows, value) => rows.filter((group) => value(group) !== null).reduce((a, b) => (a === null || value(b) > value(a) ? b : a), null);
  const than = (group, key, more) => (!fp32 || fp32 === group || !fp32[key] || !group[key] ? "" :
    `${number(more ? group[key] / fp32[key] : fp32[key] / group[key])} times ${fp32.label}`);
  const reached = groups.filter((group) => isThere(group.target_seconds));
  const goal = task().target === null ? "" : quality(task().target);
  const [top, soon, fast, small] = [
    best(groups, (group) => sign * group.final), best(reached, (group) => -group.target_seconds),
    best(groups, (group) => group.throughput), best(reached.length ? reached : [], (group) => -group.sent),
  ];
  const cards = [
    top && ["best quality at the end", quality(top.final), top, !fp32 || fp32 === top ? "" : `${fp32.label} ${quality(fp32.final)}`],
    soon && [`first to reach ${goal}`, seconds(soon.target_seconds), soon, !fp32 || fp32 === soon ? "" : fp32.target_seconds === null ? `${fp32.label} does not reach it` : `${fp32.label} ${seconds(fp32.target_seconds)}`],
    fast && ["highest throughput", `${number(fast.throughput)} samples/s`, fast, [than(fast, "throughput", true), `ends at ${quality(fast.final)}`].filter(Boolean).join(", ")],
    small && small.sent && [`fewest bytes of those that reach ${goal}`, `${bytes(small.sent)} per step`, small, small.relative === null ? "" : `${percent(small.relative)} of an fp32 all-reduce`],
  ].filter(Boolean);
  document.getElementById("glance").replaceChildren(...cards.map(([what, value, group, more]) => el("div", {},
    el("div", { class: "what" }, what), el("div", { class: "value" }, value), el("div", { class: "who" }, named(group)), el("div", { class: "than" }, more))));
}
