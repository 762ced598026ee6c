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
  const told = { title: named(group), [task().metric]: `${ranged(group, "final", quality)}, ${seeds}` };
  const say = (key, title, text) => { if (isThere(group[key])) told[title] = text; };
  say("throughput", "throughput", `${ranged(group, "throughput", number)} samples/s`);
  say("step_ms", "step", `${ranged(group, "step_ms", number)} ms`);
  say("sent", "sends", `${bytes(group.sent)} per step${isThere(group.relative) ? `, ${percent(group.relative)} of fp32` : ""}`);
  if (task().target !== null && !group.reference) {
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
const limit = () => (selected().some((group) => group.reference) ? " The dashed line is the step without any communication, the limit." : "");
const FIGURES = {
  "quality-epoch-time": () => "The same runs twice: what compression loses per epoch, and what it gains per second. Bands are the range over seeds. The axis starts where methods differ" + hint("; double-click shows all") + ".",
  "quality-throughput": () => `To the right is faster, the better quality is better. The broad line joins the Pareto front: no method at this place is both faster and better. Bars are the range over seeds.${moving()}`,
  "quality-bytes": () => `Bytes that the collectives moved, not the size of the payload. To the left is less; the broad line joins the Pareto front.${moving()}`,
  "codec-latency": () => `Time to compress and to decompress one tensor of ${codec.size.toLocaleString("en")} elements with ${codec.threads} thread${codec.threads > 1 ? "s" : ""}. Boxes span the quartiles.`,
  "step-time": () => `Parts add up to the step: of the codec's time, only what does not hide behind the backward pass is shown. The tick is the measured step, with its range over seeds.${limit()}`,
  links: () => "The same methods over every link, whatever is selected above: compression pays where the network is slow.",
  prediction: () => `On the diagonal the link model predicts the step that was measured; the band is \u00b1 15 %.${moving()}`,
};
const content = (name) => (name === "codec-latency" ? ofCodecs() : ofGroups(name, { links: name === "links" }));

// Names go where there is room, which Vega can and Vega-Lite has no word for
function placeLabels(vega) {
  for (const mark of vega.marks.filter((one) => one.name === "labels_marks")) {
    mark.transform = [{ type: "label", size: { signal: "[width, height]" }, anchor: ["top", "right", "left", "bottom"], offset: [8],
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
  card.querySelector(".note").textContent = FIGURES[name]() + (of > drawn
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
