"use strict";
// The figures: what is selected becomes the rows of the descriptions that the document carries, and Vega draws them.

const MOST = 80; // a figure of more lines than this cannot be read, and takes long to draw

// Those to draw of many: what is singled out, baselines, the fronts, then the best
function shown(groups) {
  if (groups.length <= MOST) return groups;
  const rank = (group) => (state.picked.has(group.method) ? 0 : group.baseline ? 1 : group.front_throughput || group.front_sent ? 2 : 3);
  const value = (group) => (isThere(group.final) ? (task().higher ? 1 : -1) * group.final : -Infinity);
  return [...groups].sort((a, b) => rank(a) - rank(b) || value(b) - value(a)).slice(0, MOST);
}

// What a pointer is told
function about(group) {
  const seeds = group.seeds > 1 ? `${group.seeds} seeds` : "1 seed";
  const told = { title: named(group), [task().metric]: `${ranged(group, "final", qualityOf(group))}, ${seeds}` };
  const say = (key, title, text) => { if (isThere(group[key])) told[title] = text; };
  say("throughput", "throughput", `${ranged(group, "throughput", number)} samples/s`);
  say("step_ms", "step", `${ranged(group, "step_ms", number)} ms`);
  say("sent", "sends", `${bytes(group.sent)} per step${isThere(group.relative) ? `, ${percent(group.relative)} of fp32` : ""}`);
  if (task().target !== null && group.measured) {
    const when = isThere(group.target_seconds) ? `after ${seconds(group.target_seconds)}` : "not reached";
    told[`target ${quality(task().target)}`] = when + (group.seeds > 1 ? ` (${group.reached} of ${seeds})` : "");
  }
  say("prediction_error", "predicted", `${ranged(group, "predicted_ms", number)} ms, error ${ranged(group, "prediction_error", signed)}`);
  if (group.adjusted) told.note = group.adjusted;
  if (group.front_throughput || group.front_sent) told["Pareto front"] = [group.front_throughput && "throughput", group.front_sent && "bytes"].filter(Boolean).join(", ");
  return told;
}

function rowOf(group, { links = false } = {}) {
  return { ...group, ...look(method(group)), name: named(group, { links }), network: DATA.links[group.link], about: about(group),
    opacity: isFaint(group) ? 0.13 : 1, singled: state.picked.has(group.method) };
}

// Each figure: its note, and what it shows of the selection: rows, plots, how many of how many
function ofGroups(name, { links = false } = {}) {
  const all = selected({ links }).filter((group) => group.figures.includes(name));
  const key = (group) => (links ? `${group.label} ${group.workers}` : group);
  const firsts = [...new Map(all.map((group) => [key(group), group])).values()];
  const drawn = shown(firsts);
  const kept = new Set(drawn.map(key));
  const rows = all.filter((group) => kept.has(key(group))).map((group) => rowOf(group, { links }));
  return { rows: links && linksHere().length < 2 ? [] : rows, plots: task().charts[name] || [], drawn: drawn.length, of: firsts.length };
}

const codec = { size: null, threads: null, unit: null };

function ofCodecs() {
  const rows = DATA.codecs.filter((row) => row.size === codec.size && row.threads === codec.threads && isThere(row[codec.unit]));
  const plural = codec.threads > 1 ? "s" : "";
  const told = (row) => ({
    title: row.name, operation: row.operation, size: `${number(row.size)} elements, ${row.threads} thread${plural}`,
    ...(isThere(row.time) ? { time: `${number(row.time)} \u00b5s` } : {}),
    ...(isThere(row.ratio) ? { "of y.add_(x)": `${number(row.ratio)} times, quartiles ${number(row.ratio_low)} to ${number(row.ratio_high)}` } : {}),
    ...(isThere(row.goal) ? { goal: number(row.goal) } : {}),
  });
  return { rows: rows.map((row) => ({ ...row, about: told(row) })), plots: DATA.codec_charts[codec.unit], drawn: rows.length, of: rows.length };
}

function codecControls(redraw) {
  const choices = (key) => unique(DATA.codecs.map((row) => row[key])).sort((a, b) => a - b);
  const units = ["time", "ratio"].filter((unit) => DATA.codecs.some((row) => isThere(row[unit])));
  [codec.size, codec.threads, codec.unit] = [choices("size").at(-1), choices("threads")[0], units[0]];
  const select = (label, key, values, text) => values.length < 2 ? null : el("label", {}, label,
    el("select", { "data-codec": key, onchange: (event) => { codec[key] = values[event.target.selectedIndex]; redraw(); } },
      ...values.map((value) => el("option", { selected: value === codec[key] }, text(value)))));
  return el("div", { class: "controls no-print" },
    select("elements", "size", choices("size"), (value) => value.toLocaleString("en")), select("threads", "threads", choices("threads"), String),
    select("unit", "unit", units, (unit) => (unit === "ratio" ? "relative to a sum" : "time")));
}

const hint = (text) => (canHover && !state.printing ? text : "");
const moving = () => hint(" Drag to move, Ctrl and the wheel to zoom, double-click to return.");
const over = (rows) => (rows.some(isRepeated) ? `the range over ${repeatsOf(rows)}` : "the quartiles of a run\u2019s steps (one run each)");
const lines = (rows) => {
  const names = unique(rows.filter((row) => row.line).sort((a, b) => a.step_ms - b.step_ms).map((row) => row.line));
  return names.length ? ` Lines: ${names.join(", ")}.` : "";
};
const front = (rows, key, much) => {
  const [on, repeated] = [rows.filter((row) => row[`front_${key}`]), rows.filter((row) => row.seeds > 1)];
  if (rows.length && !repeated.length) return " One run each: no Pareto front, which takes several seeds.";
  if (!on.length || unique(rows.map((row) => `${row.link} ${row.workers} ${row.toolkit}`)).length > 1) return "";
  const left = repeated.length < rows.length ? ` of several seeds (${rows.length - repeated.length} with one run take no part)` : "";
  return ` On the broad line, the Pareto front, ${on.length === 1 ? "is 1" : `are ${on.length}`} of ${repeated.length}${left}: no other is clearly ${much} with a quality within its range, or clearly better within its range of this.`;
};

// Over each link: how many are clearly faster than fp32
function paying(rows) {
  const told = unique(rows.map((row) => row.link)).sort((a, b) => a - b).map((link) => {
    const pairs = rows.filter((row) => row.link === link && !row.baseline).map((row) =>
      [row, rows.find((one) => one.fp32 && one.link === link && one.workers === row.workers && one.toolkit === row.toolkit)]).filter(([, plain]) => plain);
    return pairs.length ? `${pairs.filter(([row, plain]) => isAhead(row, plain, "throughput", true)).length} of ${pairs.length} over ${DATA.links[link]}` : "";
  }).filter(Boolean);
  return told.length ? ` Clearly faster than fp32: ${told.join(", ")}.` : "";
}

function foretold(rows) {
  const errors = rows.map((row) => Math.abs(row.prediction_error)).sort((a, b) => a - b);
  return errors.length ? ` ${errors.filter((error) => error <= 0.15).length} of ${errors.length} are within it; the median error is ${percent(errors[Math.floor(errors.length / 2)])}.` : "";
}

// What the drawn rows say; nothing here is asserted that they could deny
const FIGURES = {
  "quality-epoch-time": (rows) => `The same runs twice: against epochs, and against seconds.${rows.some(isRepeated) ? ` Bands are ${over(rows)}.` : " One run each."} Marks are the last evaluation${hint("; double-click shows only where methods end")}.`,
  "quality-epoch-bytes": (rows) => `The same runs twice: against epochs, and against the bytes that a worker sent.${rows.some(isRepeated) ? ` Bands are ${over(rows)}.` : " One run each."} Marks are the last evaluation${hint("; double-click shows only where methods end")}.`,
  "quality-throughput": (rows) => `To the right is faster.${front(rows, "throughput", "faster")} Bars are ${over(rows)}.${moving()}`,
  "quality-bytes": (rows) => `Bytes that the collectives moved, not the size of the payload. To the left is less.${front(rows, "sent", "smaller")}${moving()}`,
  "codec-latency": () => `Time to compress and to decompress one tensor of ${codec.size.toLocaleString("en")} elements with ${codec.threads} thread${codec.threads > 1 ? "s" : ""}. Boxes span the quartiles.`,
  "step-time": (rows) => `${task().steps ? "One outlier would flatten all others, so the axis is logarithmic: bars reach from compute to the whole step." : "Parts add up to the step: of the codec\u2019s time, only what does not hide behind the backward pass is shown. The tick is the measured step."} Thin bars are ${over(rows)}.${lines(rows)}`,
  links: (rows) => `The same methods over every link, whatever is selected above.${paying(rows)}`,
  prediction: (rows) => `On the diagonal the link model predicts the step that was measured; the band is \u00b1 15 %.${foretold(rows)}${moving()}`,
};
const content = (name) => (name === "codec-latency" ? ofCodecs() : ofGroups(name, { links: name === "links" }));

// Names go where there is room, which Vega can and Vega-Lite has no word for
function placeLabels(vega) {
  for (const mark of vega.marks.filter((one) => one.name === "labels_marks")) {
    mark.transform = [{ type: "label", size: { signal: "[width, height]" }, offset: [8],
      anchor: vega.marks.some((one) => one.name === "hover_marks") ? ["right", "top-right", "bottom-right"] : ["top", "right", "left", "bottom"],
      avoidMarks: ["points_marks"], sort: { field: "datum.rank" } }];
  }
  return vega;
}

const narrow = () => !state.printing && window.innerWidth <= 720;

function styled() {
  const config = { ...DATA.config[state.theme], font: getComputedStyle(document.body).fontFamily };
  if (!narrow()) return config;
  return { ...config, axis: { ...config.axis, labelLimit: 110 }, legend: { ...config.legend, direction: "vertical" } };
}

function fitted(plot, rows, width, mark) {
  const layer = plot.layer.map((one) => ({ ...one }));
  const points = layer.find((one) => one.name === "points" && one.mark.type === "point");
  if (points && canHover && !state.printing) {
    points.params = [{ name: "zoom", bind: "scales", select: { type: "interval", zoom: "wheel![event.ctrlKey || event.metaKey]",
      encodings: points.encoding.x.type === "quantitative" ? ["x", "y"] : ["y"] } }];
  }
  const { step } = plot.height; // of plots with a line of text for each row
  const height = step ? (state.printing ? 0.75 : 1) * step * unique(rows.map((row) => row.name)).length : state.printing ? 210 : narrow() ? Math.min(plot.height, 320) : plot.height;
  const title = mark && { text: mark, anchor: "end", color: css("--note"), fontSize: 10, fontWeight: "normal" };
  return { ...plot, layer, width, height, autosize: { type: "fit-x", contains: "padding" }, background: "transparent",
    data: { name: "rows", values: rows }, ...(title ? { title } : {}) };
}

async function drawFigure(card) {
  const name = card.dataset.figure;
  const turn = card.turn = (card.turn || 0) + 1; // a later drawing of this card makes this one void
  const area = card.querySelector(".plots");
  const { rows, plots, drawn, of } = content(name);
  const isLate = () => turn !== card.turn;
  card.querySelector(".note").textContent = FIGURES[name](rows) + (of > drawn
    ? ` Drawn are ${drawn} of ${of.toLocaleString("en")}: what is singled out, baselines, the Pareto fronts, and then the best.` : "");
  const badge = card.querySelector(".procedural");
  badge.hidden = !rows.some((row) => row.procedural);
  badge.textContent = `procedural data${task().data ? `: ${task().data}` : ""}`;
  const places = rows.length ? plots.map(() => el("div", { class: "plot" })) : [el("p", { class: "empty" }, "Nothing in this selection has the data for this figure.")];
  for (const old of area.children) old.close?.();
  area.style.minHeight = `${area.clientHeight}px`; // the page does not jump meanwhile
  area.replaceChildren(...places);
  for (const [k, plot] of rows.length ? plots.entries() : []) {
    const width = state.printing ? (plots.length > 1 ? 314 : 640) : places[k].clientWidth; // of A4; the browser lays out for paper only after this
    const done = await vegaEmbed(places[k], fitted(plot, rows, width, badge.hidden ? "" : badge.textContent), {
      renderer: "svg", ast: true, logLevel: 1 /* no warnings of empty layers */, config: styled(), patch: placeLabels, tooltip: { theme: state.theme }, downloadFileName: `${task().name}-${name}`,
      actions: canHover && !state.printing && { export: true, source: false, compiled: false, editor: false },
    });
    if (isLate()) return done.finalize();
    places[k].close = done.finalize;
    places[k].view = done.view;
    if (plot.params) places[k].addEventListener("dblclick", () => done.view.signal("whole", !done.view.signal("whole")).runAsync());
  }
  area.style.minHeight = "";
  card.dataset.fresh = "true";
}
