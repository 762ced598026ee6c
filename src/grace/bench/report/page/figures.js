"use strict";
// The figures: each gives its note, and for the current selection its plots: traces, axes, height.

function axis(title, more = {}) {
  return {
    title: { text: title, standoff: 8, font: { size: state.printing ? 10 : 12, color: css("--quiet") } }, gridcolor: css("--grid"),
    linecolor: css("--line"), zeroline: false, automargin: true, tickfont: { size: state.printing ? 9 : 11, color: css("--quiet") }, ...more,
  };
}

// A logarithmic axis with ticks at 1, 2 and 5 in words
function logAxis(title, range, text) {
  if (!range) return axis(title, { type: "log" });
  const decades = (range[1] - range[0]) * (narrow() ? 2 : 1);
  const steps = decades > 3.6 ? [1] : decades > 1.8 ? [1, 3] : [1, 2, 5];
  const values = [];
  for (let power = Math.floor(range[0]); power <= Math.ceil(range[1]); power += 1) values.push(...steps.map((step) => step * 10 ** power));
  return axis(title, { type: "log", range, tickvals: values, ticktext: values.map(text) });
}

function qualityAxis(range, title) {
  const share = task().share;
  const text = title || `test ${task().metric}${task().higher ? "" : ", lower is better"}`;
  return axis(text, { range, ...(share ? { tickformat: ".3~%" } : {}) });
}

// Where methods differ: what lies far from every run's end is left out at first
function window_(groups) {
  const ends = groups.flatMap((group) => group.final).filter((value) => value !== null);
  if (!ends.length) return null;
  const [least, most] = [Math.min(...ends), Math.max(...ends)];
  const span = Math.max(most - least, 0.02 * Math.abs(most), 1e-9);
  const [bad, good] = [0.45 * span, 0.14 * span];
  const range = task().higher ? [least - bad, most + good] : [least - good, most + bad];
  return task().share ? [Math.max(range[0], 0), range[1]] : range;
}

function hoverOf(group) {
  const lines = [`<b>${plain(named(group))}</b>`];
  const seeds = group.seeds.length;
  lines.push(`${plain(task().metric)} ${ranged(group.final, (value) => quality(value, task()))}${seeds > 1 ? `, ${seeds} seeds` : ", 1 seed"}`);
  if (middle(group.throughput) !== null) lines.push(`${ranged(group.throughput, number)} samples/s`);
  if (middle(group.step_ms) !== null) lines.push(`step ${ranged(group.step_ms, number)} ms`);
  if (middle(group.sent) !== null) lines.push(`sends ${bytes(middle(group.sent))} per step${middle(group.relative) === null ? "" : `, ${percent(middle(group.relative))} of fp32`}`);
  if (task().target !== null && !group.reference) {
    const when = middle(group.target_seconds);
    lines.push(`${quality(task().target, task())}: ${when === null ? "not reached" : `after ${seconds(when)}`}${seeds > 1 ? ` (${group.reached} of ${seeds} seeds)` : ""}`);
  }
  if (group.adjusted) lines.push(plain(group.adjusted));
  return lines.join("<br>");
}

// ---- figure 1 ----
function curves(key, title) {
  const all = selected().filter((group) => !group.reference && group.curve.quality.length > 1);
  const groups = shown(all);
  const traces = [];
  for (const group of groups) {
    const one = method(group);
    const { quality: values, low: lows, high: highs } = group.curve;
    if (lows && opacity(group) === 1) {
      const known = values.map((_, k) => k).filter((k) => lows[k] !== null && highs[k] !== null);
      const xs = known.map((k) => group.curve[key][k]);
      traces.push({
        type: "scatter", mode: "lines", x: [...xs, ...[...xs].reverse()], hoverinfo: "skip", showlegend: false,
        y: [...known.map((k) => highs[k]), ...known.map((k) => lows[k]).reverse()], fill: "toself",
        fillcolor: faded(colour(one), state.picked.size ? 0.22 : 0.1), line: { width: 0 },
      });
    }
    const about = hoverOf(group);
    traces.push({
      type: "scatter", mode: "lines+markers", x: group.curve[key], y: values, name: plain(named(group)), opacity: opacity(group),
      line: { color: colour(one), width: group.baseline ? 2.4 : 1.6, dash: DASHES[one.dash] },
      marker: { symbol: symbol(one), size: values.map((_, k) => (k === values.length - 1 ? 8 : 0.1)), opacity: 1, color: colour(one) },
      text: values.map((value, k) => `${about}<br><br>here ${quality(value, task())}, epoch ${number(group.curve.epoch[k])}, ${seconds(group.curve.seconds[k])}`),
      hovertemplate: "%{text}<extra></extra>",
    });
  }
  return { traces, layout: { xaxis: axis(title, { rangemode: "tozero" }), yaxis: qualityAxis(window_(groups)), ...target() }, height: 380, groups, of: all.length };
}

function target() {
  if (task().target === null) return {};
  return {
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: task().target, y1: task().target, layer: "below", line: { color: css("--quiet"), width: 1.3, dash: "5px,4px" } }],
    annotations: [{ text: `target ${quality(task().target, task())}`, xref: "paper", x: 0.005, xanchor: "left", y: task().target, yanchor: "middle", showarrow: false,
      font: { size: 10, color: css("--quiet") }, bgcolor: css("--card"), borderpad: 2 }],
  };
}

// ---- figures 6 and 7 ----
function tradeoff(measure, title, log) {
  const all = selected().filter((group) => !group.reference && middle(group.final) !== null && middle(group[measure]) > 0);
  const groups = shown(all);
  const front = groups.filter((group) => group.front[measure]);
  const traces = [];
  if (unique(groups.map((group) => `${group.link} ${group.workers}`)).length === 1 && front.length > 1) {
    const ordered = [...front].sort((a, b) => middle(a[measure]) - middle(b[measure]) || middle(a.final) - middle(b.final));
    traces.push({
      type: "scatter", mode: "lines", x: ordered.map((group) => middle(group[measure])), y: ordered.map((group) => middle(group.final)),
      line: { color: faded(css("--accent"), 0.45), width: 7, shape: "linear" }, hoverinfo: "skip", name: "Pareto front",
    });
  }
  const yRange = spanOf(groups.flatMap((group) => group.final), 0.1, false);
  const xRange = spanOf(groups.flatMap((group) => group[measure]), 0.1, log);
  const places = labels(groups, measure, xRange, yRange, log);
  for (const [k, group] of groups.entries()) {
    const one = method(group);
    const errors = (spread) => ({
      type: "data", visible: spread.length > 1, symmetric: false, array: [high(spread) === null ? 0 : high(spread) - middle(spread)], thickness: 1, width: 2,
      arrayminus: [low(spread) === null ? 0 : middle(spread) - low(spread)], color: faded(colour(one), 0.55),
    });
    traces.push({
      type: "scatter", mode: places[k] ? "markers+text" : "markers", x: [middle(group[measure])], y: [middle(group.final)],
      error_x: errors(group[measure]), error_y: errors(group.final), name: plain(named(group)), opacity: opacity(group),
      marker: { symbol: symbol(one), size: group.baseline ? 13 : 11, color: colour(one), line: { width: group.baseline ? 2 : 0.5, color: group.baseline ? colour(one) : css("--card") } },
      text: [plain(named(group))], textposition: places[k] || "top center", textfont: { size: 11, color: css("--ink") },
      hovertext: hoverOf(group) + (group.front[measure] ? "<br><i>on the Pareto front</i>" : ""), hovertemplate: "%{hovertext}<extra></extra>",
    });
  }
  const x = log ? logAxis(title, xRange, bytes) : axis(title, { range: xRange });
  return { traces, layout: { xaxis: x, yaxis: qualityAxis(yRange, `final test ${task().metric}${task().higher ? "" : ", lower is better"}`) }, height: 440, groups, of: all.length };
}

function spanOf(values, margin, log) {
  const there = values.filter((value) => value !== null && (!log || value > 0)).map((value) => (log ? Math.log10(value) : value));
  if (!there.length) return null;
  const [least, most] = [Math.min(...there), Math.max(...there)];
  const pad = Math.max(margin * (most - least), log ? 0.15 : 0.01 * Math.abs(most), 1e-9);
  return [least - pad, most + pad];
}

// Names beside points where there is room: the front and the baselines first, then as many as fit
function labels(groups, measure, xRange, yRange, log) {
  const width = (state.printing ? 600 : Math.min(window.innerWidth, 1180) - 110) * 0.95;
  const height = state.printing ? 190 : narrow() ? 270 : 340;
  const at = groups.map((group) => {
    const x = log ? Math.log10(middle(group[measure])) : middle(group[measure]);
    return [width * (x - xRange[0]) / (xRange[1] - xRange[0]), height * (1 - (middle(group.final) - yRange[0]) / (yRange[1] - yRange[0]))];
  });
  const taken = at.map(([x, y]) => [x - 7, y - 7, x + 7, y + 7]);
  const rank = (group) => (state.picked.has(group.method) ? 0 : group.front[measure] ? 1 : group.baseline ? 2 : 3);
  const order = groups.map((_, k) => k).sort((a, b) => rank(groups[a]) - rank(groups[b]));
  const chosen = groups.map(() => null);
  for (const k of order) {
    if (isFaint(groups[k])) continue;
    const [x, y] = at[k];
    const size = 6.4 * named(groups[k]).length;
    const boxes = {
      "top center": [x - size / 2, y - 22, x + size / 2, y - 8], "bottom center": [x - size / 2, y + 8, x + size / 2, y + 22],
      "middle right": [x + 9, y - 7, x + 9 + size, y + 7], "middle left": [x - 9 - size, y - 7, x - 9, y + 7],
    };
    for (const [name, box] of Object.entries(boxes)) {
      const inside = box[0] > 0 && box[2] < width && box[1] > 0 && box[3] < height;
      if (inside && !taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) {
        chosen[k] = name;
        taken.push(box);
        break;
      }
    }
  }
  return chosen;
}

// ---- the time of a step ----
const PARTS = [["compute_ms", "compute", 0, ""], ["codec_ms", "codec", 5, "/"], ["exposed_ms", "other exposed communication", 1, "x"]];

// Exposed communication contains the codec's time, of which some may hide behind the backward pass: parts add up to the step.
function part(group, name) {
  const exposed = middle(group.exposed_ms), codec = middle(group.codec_ms);
  if (exposed === null || name === "compute_ms") return middle(group[name]);
  const seen = codec === null ? null : Math.min(codec, exposed);
  return name === "codec_ms" ? seen : exposed - (seen ?? 0);
}

function stepTime() {
  const all = selected().filter((group) => middle(group.step_ms) !== null);
  const groups = shown(all);
  groups.sort((a, b) => middle(b.step_ms) - middle(a.step_ms));
  const rows = groups.map((group) => plain(named(group)));
  const parts = PARTS.map(([name, title, tint, pattern]) => [name === "exposed_ms" && !groups.some((group) => middle(group[name]) !== null)
    ? "exchange_ms" : name, name === "exposed_ms" && !groups.some((group) => middle(group[name]) !== null) ? "exchange" : title, tint, pattern]);
  const traces = parts.filter(([name]) => groups.some((group) => middle(group[name]) !== null)).map(([name, title, tint, pattern]) => ({
    type: "bar", orientation: "h", name: title, y: rows, x: groups.map((group) => part(group, name)),
    marker: { color: DATA.palette[state.theme][tint], opacity: groups.map(opacity), pattern: { shape: pattern, size: 6, solidity: 0.3, fillmode: "overlay", fgcolor: css("--card") } },
    hovertemplate: `<b>%{y}</b><br>${title} %{x:.3~g} ms<extra></extra>`, showlegend: true,
  }));
  traces.push({
    type: "scatter", mode: "markers", name: "measured step", y: rows, x: groups.map((group) => middle(group.step_ms)), showlegend: true,
    marker: { symbol: "line-ns", size: 15, line: { width: 2.5, color: css("--ink") }, color: css("--ink"), opacity: groups.map(opacity) },
    error_x: { type: "data", visible: groups.some((group) => group.seeds.length > 1), symmetric: false, array: groups.map((group) => high(group.step_ms) - middle(group.step_ms)), thickness: 1, width: 3,
      arrayminus: groups.map((group) => middle(group.step_ms) - low(group.step_ms)), color: css("--quiet") },
    hovertext: groups.map(hoverOf), hovertemplate: "%{hovertext}<extra></extra>",
  });
  const limit = groups.find((group) => group.reference);
  const shapes = limit ? [{ type: "line", yref: "paper", y0: 0, y1: 1, x0: middle(limit.step_ms), x1: middle(limit.step_ms), line: { color: css("--quiet"), width: 1, dash: "3px,3px" } }] : [];
  return {
    traces, groups, of: all.length, rows: true, height: 110 + (state.printing ? 18 : 24) * rows.length,
    layout: { barmode: "stack", bargap: 0.3, shapes, xaxis: axis("milliseconds of a step", { rangemode: "tozero" }), yaxis: axis("", { type: "category", ticklabelstandoff: 4 }),
      legend: { orientation: "h", y: 1, yanchor: "bottom", x: 0, font: { size: 11 }, traceorder: "normal" }, showlegend: true },
  };
}

// ---- figures 9 and 10 ----
function links() {
  const groups = selected({ links: true }).filter((group) => middle(group.throughput) !== null);
  const order = linksHere();
  const lines = new Map();
  for (const group of groups) {
    const key = `${group.method} ${group.label} ${group.workers}`;
    if (!lines.has(key)) lines.set(key, []);
    lines.get(key).push(group);
  }
  const drawn = new Set(shown([...lines.values()].map((members) => members[0])));
  const traces = [...lines.values()].filter((members) => drawn.has(members[0])).map((members) => {
    members.sort((a, b) => a.link - b.link);
    const one = method(members[0]);
    return {
      type: "scatter", mode: "lines+markers", name: plain(members[0].label), opacity: opacity(members[0]),
      x: members.map((group) => plain(DATA.links[group.link])), y: members.map((group) => middle(group.throughput)),
      error_y: { type: "data", visible: members[0].seeds.length > 1, symmetric: false, array: members.map((group) => high(group.throughput) - middle(group.throughput)), thickness: 1, width: 2,
        arrayminus: members.map((group) => middle(group.throughput) - low(group.throughput)), color: faded(colour(one), 0.55) },
      line: { color: colour(one), width: members[0].baseline ? 2.4 : 1.6, dash: DASHES[one.dash] },
      marker: { symbol: symbol(one), size: 8, color: colour(one), line: { width: members[0].baseline ? 2 : 0 } },
      hovertext: members.map((group) => `${hoverOf(group)}<br>over ${plain(DATA.links[group.link])}`), hovertemplate: "%{hovertext}<extra></extra>",
    };
  });
  const several = order.length > 1 ? traces : [];
  return { traces: several, groups, of: lines.size, drawn: drawn.size, height: 440, layout: {
    xaxis: axis("link, slow to fast", { type: "category", categoryorder: "array", categoryarray: order.map((k) => plain(DATA.links[k])) }),
    yaxis: axis("samples per second, all workers", { rangemode: "tozero" }) } };
}

// ---- the link model ----
function prediction() {
  const all = selected().filter((group) => middle(group.prediction_error) !== null);
  const groups = shown(all);
  const range = spanOf(groups.flatMap((group) => [middle(group.step_ms), middle(group.predicted_ms)]), 0.08, true);
  const traces = [];
  if (range) {
    const ends = range.map((value) => 10 ** value);
    traces.push({ type: "scatter", mode: "lines", x: [...ends, ends[1], ends[0]], y: [1.15 * ends[0], 1.15 * ends[1], 0.85 * ends[1], 0.85 * ends[0]],
      fill: "toself", fillcolor: faded(css("--accent"), 0.12), line: { width: 0 }, hoverinfo: "skip" });
    traces.push({ type: "scatter", mode: "lines", x: ends, y: ends, line: { color: css("--quiet"), width: 1 }, hoverinfo: "skip" });
  }
  for (const group of groups) {
    const one = method(group);
    traces.push({
      type: "scatter", mode: "markers", x: [middle(group.step_ms)], y: [middle(group.predicted_ms)], name: plain(named(group)), opacity: opacity(group),
      marker: { symbol: symbol(one), size: 11, color: colour(one), line: { width: group.baseline ? 2 : 0.5, color: group.baseline ? colour(one) : css("--card") } },
      hovertext: `<b>${plain(named(group))}</b><br>over ${plain(DATA.links[group.link])}<br>measured ${ranged(group.step_ms, number)} ms<br>predicted ${ranged(group.predicted_ms, number)} ms<br>error ${ranged(group.prediction_error, signed)}`,
      hovertemplate: "%{hovertext}<extra></extra>",
    });
  }
  return { traces, groups, of: all.length, height: 440, layout: { xaxis: logAxis("measured step, ms", range, number1), yaxis: logAxis("predicted step, ms", range, number1) } };
}

// ---- figure 8 ----
const codec = { size: null, threads: null, unit: "microseconds" };

function codecLatency() {
  const rows = DATA.codecs.filter((row) => row.size === codec.size && row.threads === codec.threads && row[codec.unit] !== null);
  const name = (row) => plain(row.method || row.operation);
  const total = new Map();
  for (const row of rows) total.set(name(row), (total.get(name(row)) || 0) + row[codec.unit]);
  const order = [...total.keys()].sort((a, b) => total.get(b) - total.get(a));
  const operations = unique(rows.map((row) => (row.method ? row.operation : "kernel")));
  const traces = operations.map((operation, k) => {
    const own = rows.filter((row) => (row.method ? row.operation : "kernel") === operation);
    const scale = (row, value) => (codec.unit === "ratio" || !row.ratio ? value : (value / row.ratio) * row.microseconds);
    const edge = (row, side) => (row[side] === null || row.ratio === null ? row[codec.unit] : scale(row, row[side]));
    const paint = DATA.palette[state.theme][[0, 7, 2, 3, 5][k % 5]];
    return {
      type: "box", orientation: "h", name: plain(operation), y: own.map(name), median: own.map((row) => row[codec.unit]), q1: own.map((row) => edge(row, "low")), q3: own.map((row) => edge(row, "high")),
      lowerfence: own.map((row) => edge(row, "low")), upperfence: own.map((row) => edge(row, "high")), line: { color: paint, width: 2 }, fillcolor: faded(paint, 0.35),
      hoverinfo: "skip", showlegend: true, whiskerwidth: 0,
    };
  });
  traces.push({
    type: "scatter", mode: "markers", x: rows.map((row) => row[codec.unit]), y: rows.map(name), marker: { size: 16, opacity: 0 }, showlegend: false,
    hovertext: rows.map((row) => `<b>${name(row)}</b> ${plain(row.operation)}<br>${number(row.size)} elements, ${row.threads} thread${row.threads > 1 ? "s" : ""}<br>${row.microseconds === null ? "" : `${number(row.microseconds)} \u00b5s<br>`}${row.ratio === null ? "" : `${number(row.ratio)} times y.add_(x)`}${row.low === null ? "" : `, quartiles ${number(row.low)} to ${number(row.high)}`}${row.goal === null ? "" : `<br>goal ${number(row.goal)}`}`),
    hovertemplate: "%{hovertext}<extra></extra>",
  });
  const span = spanOf(traces.slice(0, -1).flatMap((trace) => [...trace.q1, ...trace.q3]), 0.04, true);
  return { traces, groups: [], rows: true, height: 120 + (state.printing ? 22 : 30) * order.length, empty: !rows.length, layout: {
    boxmode: "group", boxgap: 0.25, boxgroupgap: 0.15, showlegend: true, legend: { orientation: "h", y: 1, yanchor: "bottom", x: 0, font: { size: 11 } },
    xaxis: logAxis(codec.unit === "ratio" ? "time relative to torch's y.add_(x) of the same size" : "time of one tensor", span, codec.unit === "ratio" ? number1 : microseconds),
    yaxis: axis("", { type: "category", categoryorder: "array", categoryarray: order }) } };
}

function codecControls(redraw) {
  const choices = (key) => unique(DATA.codecs.map((row) => row[key])).sort((a, b) => a - b);
  codec.size ??= choices("size").at(-1);
  codec.threads ??= choices("threads")[0];
  if (!DATA.codecs.some((row) => row.microseconds !== null)) codec.unit = "ratio";
  const select = (label, key, values, text) => values.length < 2 ? null : el("label", {}, label,
    el("select", { "data-codec": key, onchange: (event) => { codec[key] = values[event.target.selectedIndex]; redraw(); } },
      ...values.map((value) => el("option", { selected: value === codec[key] }, text(value)))));
  const units = ["microseconds", "ratio"].filter((unit) => DATA.codecs.some((row) => row[unit] !== null));
  return el("div", { class: "controls no-print" },
    select("elements", "size", choices("size"), (value) => value.toLocaleString("en")), select("threads", "threads", choices("threads"), String),
    select("unit", "unit", units, (unit) => (unit === "ratio" ? "relative to a sum" : "time")));
}

const limits = () => (selected({ links: true }).some((group) => group.reference) ? " The dotted line is the step without any communication, the limit." : "");
const FIGURES = {
  "quality-epoch-time": { plots: [() => curves("epoch", "epochs"), () => curves("seconds", "seconds of training")],
    note: () => "The same runs twice: what compression loses per epoch, and what it gains per second. Bands are the range over seeds. The axis starts where methods differ" + (canHover && !state.printing ? "; double-click shows all." : ".") },
  "quality-throughput": { plots: [() => tradeoff("throughput", "samples per second, all workers", false)],
    note: () => "To the right is faster, the better quality is better. The broad line joins the Pareto front: no method at this place is both faster and better. Bars are the range over seeds." },
  "quality-bytes": { plots: [() => tradeoff("sent", "bytes sent by each worker and step", true)],
    note: () => "Bytes that the collectives moved, not the size of the payload. To the left is less; the broad line joins the Pareto front." },
  "codec-latency": { plots: [codecLatency], controls: codecControls,
    note: () => `Time to compress and to decompress one tensor of ${codec.size === null ? "" : codec.size.toLocaleString("en")} elements with ${codec.threads} thread${codec.threads > 1 ? "s" : ""}. Boxes span the quartiles.` },
  "step-time": { plots: [stepTime], note: () => `Parts that overlap in time add up to more than the step; the tick is the measured step, with its range over seeds.${limits()}` },
  links: { plots: [links], note: () => "The same methods over every link, whatever is selected above: compression pays where the network is slow." },
  prediction: { plots: [prediction], note: () => "On the diagonal the link model predicts the step that was measured; the band is \u00b1 15 %." },
};
