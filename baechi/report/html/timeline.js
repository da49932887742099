// Devices and links by time. All timelines, and the memory below, show the same window of time.

const GUTTER = 128;
const COMPUTE = 22;
const LINK = 9;
const AXIS = 20;
const MANY = 16; // devices that are shown at first
const PHASES = ["forward", "backward", "other"];
const [ROW, NAME, START, END, PHASE, BYTES, CRITICAL, WHERE, CAUSE, WAITS] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
const [COLOUR, LABEL] = [10, 11]; // of a pipeline's spans: what they are told apart by
const TURN = 3; // of CAUSE: backward begins when forward has ended

/** The window of time that is shown, and who draws it. */
const view = {
  end: Math.max(1e-3, ...DATA.timelines.map((timeline) => timeline.end)),
  from: 0,
  to: 0,
  paper: 0, // width of a page while it is printed
  chosen: -1, // the layer that was searched for
  all: false, // whether devices are shown that do less than others
  drawers: [],
  set(from, to) {
    const width = Math.min(this.end, Math.max(this.end / 1e6, to - from));
    this.from = Math.max(0, Math.min(this.end - width, from));
    this.to = this.from + width;
    this.draw();
  },
  zoom(factor, at = (this.from + this.to) / 2) {
    if (!factor) this.set(0, this.end);
    else this.set(at - (at - this.from) / factor, at + (this.to - at) / factor);
  },
  draw() {
    for (const draw of this.drawers) draw();
  },
};
// At first what belongs to the model; an optimizer's step may take longer than all of it.
view.to = view.end / 20;
for (const timeline of DATA.timelines) {
  for (const span of timeline.spans) if (span[PHASE] < 2) view.to = Math.max(view.to, span[END]);
}

class TimelinePicture {
  constructor(timeline, parent) {
    this.timeline = timeline;
    this.parent = parent;
    this.rows = timeline.rows.map((row) => ({ ...row, spans: [] }));
    for (const span of timeline.spans) this.rows[span[ROW]].spans.push(span);
    this.svg = svg("svg", { role: "img", "aria-label": `${timeline.name} timeline`, tabindex: 0 }, parent);
    this.follow();
  }

  /** Put the rows below each other: those of devices that do something, of many devices the busiest. */
  place() {
    const busy = DATA.devices.map(() => 0);
    for (const row of this.rows) {
      if (row.device >= 0) for (const span of row.spans) busy[row.device] += span[END] - span[START];
    }
    const shown = most(busy, view.all || this.timeline.lanes ? Infinity : MANY);
    let top = AXIS;
    for (const row of this.rows) {
      row.hidden = !this.timeline.lanes && row.device >= 0 && !shown.has(row.device);
      if (row.hidden) {
        Object.assign(row, { top: -1, height: 0 });
        continue;
      }
      row.height = row.what ? LINK : COMPUTE;
      row.top = top + (top > AXIS && (!row.what || row.device < 0) ? 6 : 1);
      top = row.top + row.height;
    }
    this.height = top + 4;
  }

  x(us) {
    return GUTTER + ((us - view.from) / (view.to - view.from)) * (this.width - GUTTER);
  }

  us(x) {
    return view.from + ((x - GUTTER) / (this.width - GUTTER)) * (view.to - view.from);
  }

  draw() {
    this.place();
    this.width = view.paper || Math.max(320, this.parent.clientWidth);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.replaceChildren();
    this.axis();
    for (const row of this.rows) if (!row.hidden) this.row(row);
    this.found = svg("rect", { class: "found", visibility: "hidden", rx: 2 }, this.svg);
  }

  axis() {
    const marks = ticks(view.from, view.to, Math.max(2, (this.width - GUTTER) / 110));
    for (const tick of marks) {
      const x = this.x(tick);
      svg("line", { class: "axis", x1: x, x2: x, y1: AXIS - 4, y2: this.height }, this.svg);
      if (x < this.width - 40) {
        svg("text", { class: "soft", x: x + 3, y: AXIS - 7 }, this.svg, tickTime(tick, marks[1] - marks[0] || tick));
      }
    }
  }

  row(row) {
    svg("rect", { class: "row", x: GUTTER, y: row.top, width: this.width - GUTTER, height: row.height }, this.svg);
    if (row.what) {
      const what = row.device < 0 ? `${row.name} ${row.what}` : row.what;
      svg("text", { class: "soft", x: 10, y: row.top + 8, "font-size": 9 }, this.svg, fit(what, GUTTER - 20, 5));
    } else svg("text", { x: 0, y: row.top + 15 }, this.svg, fit(row.name, GUTTER - 12));
    for (const drawn of this.merged(row)) this.rect(row, drawn);
  }

  /** The spans that can be seen; neighbours of one kind that are smaller than a pixel as one. */
  merged(row) {
    const found = [];
    for (const span of row.spans) {
      if (span[END] < view.from || span[START] > view.to) continue;
      const left = Math.max(GUTTER, this.x(span[START]));
      const right = Math.min(this.width, this.x(span[END]));
      const last = found[found.length - 1];
      const same = (one) => [one[PHASE], one[CRITICAL], one[COLOUR], one[NAME] === view.chosen].join();
      const like = last && same(last.span) === same(span);
      if (like && right - left < 1 && left - last.right < 0.5) {
        last.right = Math.max(last.right, right);
        last.many = true;
      } else found.push({ span, left, right, many: false });
    }
    return found;
  }

  rect(row, { span, left, right, many }) {
    const kind = row.what ? "transfer" : PHASES[span[PHASE]];
    const width = Math.max(0.6, right - left - (right - left > 3 ? 0.6 : 0));
    const place = { x: left.toFixed(2), y: row.top, width: width.toFixed(2), height: row.height };
    svg("rect", { class: `span ${kind} ${span[COLOUR] || deviceClass(row.device)}`, ...place }, this.svg);
    if (span[CRITICAL]) {
      svg("rect", { class: "critical", ...place, y: row.top + row.height - 2.5, height: 2.5 }, this.svg);
    }
    if (span[NAME] === view.chosen) svg("rect", { class: "chosen", ...place }, this.svg);
    if (row.what || many) return;
    const text = fit(span[LABEL] || DATA.names[span[NAME]], width - (span[LABEL] ? 2 : 8));
    svg("text", { class: kind === "forward" ? "on" : "in", x: left + (span[LABEL] ? 2 : 4), y: row.top + 14 }, this.svg, text);
  }

  /** The row and span at a place of the picture. */
  at(x, y) {
    const row = this.rows.find((one) => y >= one.top && y < one.top + one.height);
    if (!row || x < GUTTER) return {};
    const us = this.us(x);
    const near = ((view.to - view.from) / (this.width - GUTTER)) * 1.5;
    let best = null;
    for (const span of row.spans) {
      const off = Math.max(span[START] - us, us - span[END], 0);
      if (off <= near && (!best || off < best.off)) best = { span, off };
    }
    return { row, span: best && best.span, us };
  }

  lines(row, span) {
    const kind = row.what ? "transfer" : PHASES[span[PHASE]];
    const phase = row.what ? `, ${PHASES[span[PHASE]]}` : "";
    const lane = span[COLOUR] && span[COLOUR][0] === "d"; // the row is a microbatch's
    const label = span[COLOUR] ? [lane ? `on ${span[LABEL]}` : `microbatch ${span[LABEL]}`] : [];
    const lines = [DATA.names[span[NAME]], `${kind}${phase} ${lane ? "of" : "on"} ${row.what ? span[WHERE] : row.name}`, ...label];
    lines.push(`${time(span[END] - span[START])}, from ${time(span[START])} to ${time(span[END])}`);
    if (row.what) lines.push(bytes(span[BYTES]));
    const node = DATA.nodes[span[NAME]];
    if (!row.what && node) lines.push(...nodeBytes(node));
    if (span[CRITICAL]) lines.push("on the critical path");
    return lines;
  }

  hover(event) {
    const box = this.svg.getBoundingClientRect();
    const scale = this.width / box.width;
    const { row, span, us } = this.at((event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
    const next = row && !span && row.spans.find((one) => one[START] > us);
    this.frame(span || (next && this.timeline.spans[next[WAITS]]));
    if (!row) return hideTip();
    return showTip(event, span ? this.lines(row, span) : this.idle(row, us, next));
  }

  /** Draw a frame around a span; around none without one. */
  frame(span) {
    const shown = span && span[END] > view.from && span[START] < view.to && !this.rows[span[ROW]].hidden;
    this.found.setAttribute("visibility", shown ? "visible" : "hidden");
    if (!shown) return;
    const row = this.rows[span[ROW]];
    const left = Math.max(GUTTER, this.x(span[START]));
    const right = Math.min(this.width, this.x(span[END]));
    const place = { x: left, y: row.top, width: Math.max(1, right - left), height: row.height };
    for (const [name, value] of Object.entries(place)) this.found.setAttribute(name, value);
  }

  /** Why nothing runs in a row at a time: what its next span waits for. */
  idle(row, us, next) {
    const lines = [`${row.name} ${row.what}`.trim(), `idle at ${time(us)}`];
    if (!next) return [...lines, "nothing more runs here in this step"];
    lines.push(`${DATA.names[next[NAME]]} is next, in ${time(next[START] - us)}`);
    if (next[PHASE] === 2) return [...lines, "it is work around the model"];
    const before = this.timeline.spans[next[WAITS]];
    if (!before) return [...lines, "it waits for the host, which has not issued it yet"];
    const what = `${DATA.names[before[NAME]]} (${before[WHERE] || this.rows[before[ROW]].name}, ${PHASES[before[PHASE]]})`;
    if (before[END] > us) return [...lines, `it waits for ${what}, which ends at ${time(before[END])}`];
    const after = `${what} has ended`;
    if (next[CAUSE] === TURN) return [...lines, `${after}: it waits for the loss and the host`];
    return [...lines, `${after}: it waits for the host to issue it`];
  }

  follow() {
    let grabbed = null;
    this.svg.addEventListener("pointerdown", (event) => {
      grabbed = { x: event.clientX, from: view.from, to: view.to };
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointerup", () => (grabbed = null));
    this.svg.addEventListener("pointerleave", () => {
      this.frame(null);
      hideTip();
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (!grabbed) return this.hover(event);
      const each = (grabbed.to - grabbed.from) / (this.svg.getBoundingClientRect().width - GUTTER);
      const by = (grabbed.x - event.clientX) * each;
      return view.set(grabbed.from + by, grabbed.to + by);
    });
    this.svg.addEventListener("dblclick", () => view.zoom(0));
    this.svg.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = this.svg.getBoundingClientRect();
    view.zoom(event.deltaY < 0 ? 1.3 : 1 / 1.3, this.us((event.clientX - box.left) * (this.width / box.width)));
  }

  key(event) {
    const by = (view.to - view.from) / 4;
    if (event.key === "0") view.zoom(0);
    else if (event.key === "+") view.zoom(2);
    else if (event.key === "-") view.zoom(0.5);
    else if (event.key === "ArrowLeft") view.set(view.from - by, view.to - by);
    else if (event.key === "ArrowRight") view.set(view.from + by, view.to + by);
    else return;
    event.preventDefault();
  }
}

/** What a node of the graph weighs. */
function nodeBytes(node) {
  const lines = [];
  if (node.weights) lines.push(`weights ${bytes(node.weights)}`);
  if (node.output) lines.push(`output ${bytes(node.output)}`);
  return lines;
}

function drawTimelines(parent) {
  for (const lane of DATA.lanes || []) lane.lanes = true; // rows are microbatches
  for (const timeline of [...DATA.timelines, ...(DATA.lanes || [])]) {
    html("h3", {}, parent, `${timeline.name}: ${time(timeline.step)}`);
    const picture = new TimelinePicture(timeline, html("div", {}, parent));
    view.drawers.push(() => picture.draw());
  }
}
