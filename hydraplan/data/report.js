"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const digits = (value) => String(Number(value.toPrecision(4)));
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  const shape = (name, attributes, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const row = (values, numeric) => {
    const made = document.createElement("tr");
    values.forEach((value, i) => {
      const cell = document.createElement(i ? "td" : "th");
      if (!i) cell.scope = "row";
      if (numeric[i]) cell.className = "num";
      cell.textContent = value;
      made.append(cell);
    });
    return made;
  };

  // Schedule. Times are parts of the axis; an op is
  // [kind, microbatch, chunk, start, end, idle, wait, first start, last end].
  const g = data.gantt;
  const step = g.lines * g.line + g.gap;
  const height = step * g.bands.length;
  const drawing = byId("gantt-drawing"), labels = byId("gantt-labels"), plot = byId("gantt-plot");
  const LEAST = g.parts / 4096, MOST_LABELS = 2000, MOST_ROWS = 500;
  let low = 0, high = g.parts, chosen = null, range = null;

  const lineOf = (kind) => (kind === 3 ? 1 : kind);
  const nameOf = (op) => g.kinds[op[0]] + op[1] + (g.chunks > 1 ? "." + op[2] : "");
  const s = (parts) => digits(parts * g.part_s);
  const reading = (band, op) =>
    `${g.kinds[op[0]]} of microbatch ${op[1]}` + (g.chunks > 1 ? `, chunk ${op[2]}` : "") +
    `, ${band.label}: ${s(op[3])} s to ${s(op[4])} s` +
    (op[3] > op[7] || op[4] < op[8] ? ` (over all lanes ${s(op[7])} s to ${s(op[8])} s)` : "") +
    `; idle before ${s(op[5])} s, waits inside ${s(op[6])} s`;
  const say = (text) => { byId("gantt-readout").textContent = text; };

  const words = labels.appendChild(shape("g", {})), marks = labels.appendChild(shape("g", {}));
  const scale = () => plot.clientWidth / (high - low);
  const paint = () => {
    const made = [];
    if (chosen) {
      const op = g.bands[chosen.band].ops[chosen.op];
      made.push(shape("rect", {
        class: "chosen", x: (op[3] - low) * scale(), width: Math.max(2, (op[4] - op[3]) * scale()),
        y: chosen.band * step + lineOf(op[0]) * g.line, height: g.line - 1,
      }));
    }
    if (range) {
      const [from, to] = range;
      made.push(shape("rect", {
        class: "range", x: (Math.min(from, to) - low) * scale(), y: 0,
        width: Math.abs(to - from) * scale(), height,
      }));
    }
    marks.replaceChildren(...made);
  };
  const write = () => {
    const wide = plot.clientWidth, made = [];
    g.bands.forEach((band, i) => {
      for (const op of band.ops) {
        if (made.length >= MOST_LABELS) break;
        if (op[4] < low || op[3] > high) continue;
        const x0 = Math.max(0, (op[3] - low) * scale()), x1 = Math.min(wide, (op[4] - low) * scale());
        const text = g.chunks > 1 ? op[1] + "." + op[2] : String(op[1]);
        if (x1 - x0 < 6 * text.length + 5) continue;
        const y = i * step + lineOf(op[0]) * g.line + g.line - 2;
        made.push(shape("text", { class: "plan" + band.plan, x: (x0 + x1) / 2, y }, text));
      }
    });
    words.replaceChildren(...made);
  };
  const listOps = () => {
    if (!byId("ops-details").open) return;
    const found = [];
    let all = 0;
    for (const band of g.bands) {
      for (const op of band.ops) {
        if (op[4] < low || op[3] > high) continue;
        all += 1;
        if (found.length < MOST_ROWS) {
          found.push(row([nameOf(op), band.label, ...op.slice(3).map(s)], [0, 0, 1, 1, 1, 1, 1, 1]));
        }
      }
    }
    byId("ops-caption").textContent = `Ops in view: ${found.length} of ${all}`;
    byId("ops").tBodies[0].replaceChildren(...found);
  };
  const show = (from, to) => {
    const size = clamp(to - from, LEAST, g.parts);
    low = clamp(from, 0, g.parts - size);
    high = low + size;
    drawing.setAttribute("viewBox", `${low} 0 ${size} ${height}`);
    [...byId("gantt-axis").children].forEach((mark, i) => {
      mark.textContent = s(low + (size * i) / 4) + " s";
    });
    write();
    paint();
    listOps();
  };
  const zoom = (factor, at) => show(at - (at - low) * factor, at + (high - at) * factor);
  const middle = () => {
    const op = chosen && g.bands[chosen.band].ops[chosen.op];
    return op && op[4] > low && op[3] < high ? (op[3] + op[4]) / 2 : (low + high) / 2;
  };
  const choose = (band, op) => {
    chosen = { band, op };
    const found = g.bands[band].ops[op];
    if (found[4] <= low || found[3] >= high) {
      const half = (high - low) / 2, at = (found[3] + found[4]) / 2;
      show(at - half, at + half);
    } else paint();
    say(reading(g.bands[band], found));
  };
  const nearest = (band, at) => {
    let best = 0, least = Infinity;
    g.bands[band].ops.forEach((op, i) => {
      const gap = Math.max(op[3] - at, at - op[4], 0);
      if (gap < least) [best, least] = [i, gap];
    });
    return best;
  };
  const timeAt = (event) => {
    const box = plot.getBoundingClientRect();
    return low + clamp((event.clientX - box.left) / box.width, 0, 1) * (high - low);
  };
  const point = (event) => {
    const at = timeAt(event), y = event.clientY - plot.getBoundingClientRect().top;
    const band = clamp(Math.floor(y / step), 0, g.bands.length - 1);
    const line = Math.floor((y - band * step) / g.line);
    const found = (from, to) => g.bands[band].ops.findIndex(
      (o) => lineOf(o[0]) === line && o[from] <= at && at <= o[to]);
    const mean = found(3, 4), op = mean < 0 ? found(7, 8) : mean;
    if (op >= 0) choose(band, op);
    else { chosen = null; paint(); say(`${g.bands[band].label}, ${s(at)} s: no op on this line`); }
  };

  plot.addEventListener("pointerdown", (event) => {
    if (event.button || event.pointerType === "touch") return;
    range = [timeAt(event), timeAt(event)];
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointermove", (event) => {
    if (range) { range[1] = timeAt(event); paint(); } else point(event);
  });
  plot.addEventListener("pointerup", (event) => {
    if (!range) { point(event); return; }
    const [from, to] = [Math.min(...range), Math.max(...range)];
    range = null;
    if (to - from > (high - low) / 200) show(from, to);
    else point(event);
  });
  plot.addEventListener("pointercancel", () => { range = null; paint(); });
  plot.addEventListener("dblclick", () => show(0, g.parts));
  plot.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1 / 1.5 : 1.5, timeAt(event));
  }, { passive: false });

  const keys = {
    "+": () => zoom(1 / 2, middle()), "=": () => zoom(1 / 2, middle()),
    "-": () => zoom(2, middle()), "0": () => show(0, g.parts),
    ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1),
    ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0),
    Home: () => choose(chosen ? chosen.band : 0, 0),
    End: () => { const b = chosen ? chosen.band : 0; choose(b, g.bands[b].ops.length - 1); },
  };
  const move = (down, right) => {
    if (!chosen) { choose(0, nearest(0, low)); return; }
    const band = clamp(chosen.band + down, 0, g.bands.length - 1);
    const from = g.bands[chosen.band].ops[chosen.op];
    const op = down ? nearest(band, (from[3] + from[4]) / 2)
      : clamp(chosen.op + right, 0, g.bands[band].ops.length - 1);
    choose(band, op);
  };
  byId("gantt").addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
  byId("zoom-in").addEventListener("click", keys["+"]);
  byId("zoom-out").addEventListener("click", keys["-"]);
  byId("zoom-all").addEventListener("click", keys["0"]);
  byId("ops-details").addEventListener("toggle", listOps);

  // Load of slots: a cell stands for lanes[y] .. lanes[y + 1] - 1, microbatches alike.
  const h = data.heat, heatPlot = byId("heat-plot");
  let cell = null;
  const span = (edges, i) =>
    edges[i + 1] - edges[i] > 1 ? `${edges[i]}-${edges[i + 1] - 1}` : String(edges[i]);
  const mark = () => {
    if (!cell) return;
    const rows = h.cells.length, columns = h.cells[0].length;
    const wide = heatPlot.clientWidth / columns, high = heatPlot.clientHeight / rows;
    byId("heat-mark").replaceChildren(shape("rect", {
      class: "chosen", x: cell[1] * wide, y: cell[0] * high, width: wide, height: high,
    }));
  };
  const read = (y, x) => {
    cell = [clamp(y, 0, h.cells.length - 1), clamp(x, 0, h.cells[0].length - 1)];
    mark();
    byId("heat-readout").textContent =
      `lane ${span(h.lanes, cell[0])}, microbatch ${span(h.microbatches, cell[1])}: ` +
      `${digits(h.cells[cell[0]][cell[1]] * h.part_s)} s`;
  };
  heatPlot.addEventListener("pointermove", (event) => {
    const box = heatPlot.getBoundingClientRect();
    read(Math.floor(((event.clientY - box.top) / box.height) * h.cells.length),
      Math.floor(((event.clientX - box.left) / box.width) * h.cells[0].length));
  });
  byId("heat").addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const by = moves[event.key];
    if (!by) return;
    event.preventDefault();
    if (cell) read(cell[0] + by[0], cell[1] + by[1]);
    else read(0, 0);
  });

  // Sequences: [id, tokens, degree, ulysses, ring, first rank, microbatch, microseconds a rank].
  const MOST_SEQUENCES = 50;
  const number = (id) => {
    const text = byId(id).value.trim();
    return text === "" ? null : /^[0-9]+$/.test(text) ? Number(text) : NaN;
  };
  const filter = () => {
    const [sequence, degree, microbatch, rank] =
      ["sequence", "degree", "microbatch", "rank"].map((name) => number("filter-" + name));
    const found = data.sequences.filter((q) =>
      (sequence === null || q[0] === sequence) && (degree === null || q[2] === degree) &&
      (microbatch === null || q[6] === microbatch) &&
      (rank === null || (q[5] <= rank && rank < q[5] + q[2])));
    byId("sequences").tBodies[0].replaceChildren(...found.slice(0, MOST_SEQUENCES).map((q) =>
      row([q[0], q[1].toLocaleString("en"), q[2], `${q[3]} x ${q[4]}`,
        q[2] > 1 ? `${q[5]}-${q[5] + q[2] - 1}` : q[5], q[6], (q[7] / 1000).toFixed(3)],
      [0, 1, 1, 0, 0, 1, 1])));
    byId("sequences-count").textContent =
      `${Math.min(found.length, MOST_SEQUENCES)} shown of ${found.length} that fit`;
  };
  byId("filters").addEventListener("input", filter);
  byId("filters").addEventListener("reset", () => setTimeout(filter));
  byId("filters").addEventListener("submit", (event) => event.preventDefault());

  // Tables wider than the window can be scrolled by keyboard, and say so; others are no stop.
  const reach = () => {
    for (const box of document.querySelectorAll(".scroll")) {
      const wide = box.scrollWidth > box.clientWidth;
      const own = { tabindex: "0", role: "region", "aria-labelledby": box.querySelector("caption").id };
      for (const [key, value] of Object.entries(own)) {
        if (wide) box.setAttribute(key, value);
        else box.removeAttribute(key);
      }
    }
  };

  addEventListener("resize", () => { write(); paint(); mark(); reach(); });
  show(0, g.parts);
  filter();
  reach();
})();
