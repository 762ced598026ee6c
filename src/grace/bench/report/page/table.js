"use strict";
// The table of the selection, and the few numbers above everything.

const sorting = { key: "quality", descending: null, all: false };
const ROWS = 200; // shown at once, unless all are asked for

function columns(groups) {
  const measured = (key, title, text, more = {}) => groups.some((group) => middle(group[key]) !== null) && {
    key, title, value: (group) => middle(group[key]), cell: (group) => withRange(group[key], text), ...more,
  };
  const target = task().target;
  return [
    { key: "method", title: "method", text: true, value: (group) => group.label, cell: (group) => el("span", {}, glyph(method(group)), group.label) },
    linksHere().length > 1 && state.link < 0 && { key: "link", title: "link", text: true, value: (group) => group.link, cell: (group) => [DATA.links[group.link]] },
    workersHere().length > 1 && { key: "workers", title: "workers", value: (group) => group.workers, cell: (group) => [String(group.workers)] },
    { key: "quality", title: `${task().metric}\nat the end`, down: task().higher, value: (group) => middle(group.final), cell: (group) => (group.reference ? [NOTHING] : withRange(group.final, (value) => quality(value, task()))) },
    target !== null && { key: "target", title: `time to\n${quality(target, task())}`, value: (group) => middle(group.target_seconds), cell: timeToTarget },
    measured("throughput", "samples/s", number, { down: true, cell: (group) => withFront(group, "throughput", number) }),
    measured("step_ms", "step\nms", number),
    measured("sent", "sent\nper step", bytes, { cell: (group) => withFront(group, "sent", bytes) }),
    measured("relative", "of fp32", percent),
    measured("codec_ms", "codec\nms", number),
    measured("exposed_ms", "exposed\nms", number),
    measured("predicted_ms", "predicted\nms", number),
    measured("prediction_error", "prediction\nerror", signed),
    { key: "best", title: `best\n${task().metric}`, detail: true, down: task().higher, value: (group) => middle(group.best), cell: (group) => (group.reference ? [NOTHING] : withRange(group.best, (value) => quality(value, task()))) },
    measured("compute_ms", "compute\nms", number, { detail: true }),
    measured("exchange_ms", "exchange\nms", number, { detail: true }),
    measured("nic_sent", "interface\nper step", bytes, { detail: true }),
    measured("peak_bytes", "peak\nmemory", bytes, { detail: true }),
    { key: "family", title: "family", text: true, detail: true, value: (group) => DATA.families[group.family], cell: (group) => [DATA.families[group.family]] },
    { key: "seeds", title: "seeds", value: (group) => group.seeds.length, cell: (group) => [String(group.seeds.length)] },
  ].filter(Boolean);
}

function withRange(spread, text) {
  const cell = [text(middle(spread))];
  const [least, most] = [low(spread), high(spread)].map((value) => text(value));
  if (spread.length > 1 && least !== most) cell.push(el("small", {}, between(least, most)));
  return cell;
}

// "91.7 to 93.1 %": a unit that both have is said once
function between(least, most) {
  const [first, unit] = least.split("\u00a0");
  return `${unit && most.endsWith(`\u00a0${unit}`) ? first : least}\u2009\u2013\u2009${most}`;
}

function withFront(group, key, text) {
  const cell = withRange(group[key], text);
  return group.front[key] ? [el("span", { class: "front", title: "on the Pareto front of quality against this" }, "\u25c6"), ...cell] : cell;
}

function timeToTarget(group) {
  if (group.reference) return [NOTHING];
  const count = group.seeds.length;
  const when = middle(group.target_seconds);
  const cell = [when === null ? "not reached" : seconds(when)];
  if (count > 1 && group.reached < count) cell.push(el("small", {}, `${group.reached} of ${count} seeds`));
  else if (count > 1) cell.push(...withRange(group.target_seconds, seconds).slice(1));
  return cell;
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
  const groups = selected().filter((group) => !group.reference && middle(group.final) !== null);
  const fp32 = groups.find((group) => DATA.methods[group.method].name === "ddp-fp32") || groups.find((group) => DATA.methods[group.method].name === "none");
  const sign = task().higher ? 1 : -1;
  const best = (rows, value) => rows.filter((group) => value(group) !== null).reduce((a, b) => (a === null || value(b) > value(a) ? b : a), null);
  const than = (group, key, more) => (!fp32 || fp32 === group || !middle(fp32[key]) || !middle(group[key]) ? "" :
    `${number(more ? middle(group[key]) / middle(fp32[key]) : middle(fp32[key]) / middle(group[key]))} times ${fp32.label}`);
  const reached = groups.filter((group) => middle(group.target_seconds) !== null);
  const goal = task().target === null ? "" : quality(task().target, task());
  const [top, soon, fast, small] = [
    best(groups, (group) => sign * middle(group.final)), best(reached, (group) => -middle(group.target_seconds)),
    best(groups, (group) => middle(group.throughput)), best(reached.length ? reached : [], (group) => -middle(group.sent)),
  ];
  const cards = [
    top && ["best quality at the end", quality(middle(top.final), task()), top, !fp32 || fp32 === top ? "" : `${fp32.label} ${quality(middle(fp32.final), task())}`],
    soon && [`first to reach ${goal}`, seconds(middle(soon.target_seconds)), soon, !fp32 || fp32 === soon ? "" : middle(fp32.target_seconds) === null ? `${fp32.label} does not reach it` : `${fp32.label} ${seconds(middle(fp32.target_seconds))}`],
    fast && ["highest throughput", `${number(middle(fast.throughput))} samples/s`, fast, [than(fast, "throughput", true), `ends at ${quality(middle(fast.final), task())}`].filter(Boolean).join(", ")],
    small && middle(small.sent) && [`fewest bytes of those that reach ${goal}`, `${bytes(middle(small.sent))} per step`, small, middle(small.relative) === null ? "" : `${percent(middle(small.relative))} of an fp32 all-reduce`],
  ].filter(Boolean);
  document.getElementById("glance").replaceChildren(...cards.map(([what, value, group, more]) => el("div", {},
    el("div", { class: "what" }, what), el("div", { class: "value" }, value), el("div", { class: "who" }, named(group)), el("div", { class: "than" }, more))));
}
