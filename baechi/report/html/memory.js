// How full each device is, by time: a small picture for each device, as high as what it holds.

const HIGH = 110;
const LEFT = 8;
const NEAR = 1.6; // a limit up to so many times the peak is drawn

class MemoryPicture {
  constructor(number, parent) {
    this.device = DATA.devices[number];
    this.number = number;
    this.live = DATA.timelines[0].live[number];
    this.peak = DATA.timelines[0].peaks[number];
    this.measured = DATA.timelines[1] && DATA.timelines[1].peaks[number];
    const most = Math.max(this.peak, this.measured || 0, 1);
    const near = this.device.limit <= NEAR * most; // else the limit is far above what there is to see
    this.top = near ? Math.max(this.device.limit, most) * 1.12 : most * 1.3; // room for the limit's name
    this.parent = html("div", {}, parent);
    this.svg = svg("svg", { role: "img", "aria-label": `memory of ${this.device.name}` }, this.parent);
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => {
      hideTip();
      this.cursor.setAttribute("visibility", "hidden");
    });
  }

  x(us) {
    return LEFT + ((us - view.from) / (view.to - view.from)) * (this.width - LEFT);
  }

  y(size) {
    return 22 + (1 - size / this.top) * (HIGH - 24);
  }

  draw() {
    this.width = view.paper / 2 || Math.max(240, this.parent.clientWidth);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HIGH}`);
    this.svg.replaceChildren();
    const share = this.device.limit > 0 ? ` (${((100 * this.peak) / this.device.limit).toFixed(0)} %)` : "";
    const title = svg("text", { x: LEFT, y: 12 }, this.svg);
    svg("tspan", { "font-weight": 600 }, title, fit(this.device.name, this.width / 3));
    const what = ` peak ${bytes(this.peak)} of ${bytes(this.device.limit)}${share}`;
    svg("tspan", { class: "soft" }, title, what);
    svg("rect", { class: "row", x: LEFT, y: 22, width: this.width - LEFT, height: HIGH - 24 }, this.svg);
    svg("path", { class: `area ${deviceClass(this.number)}`, d: this.path() }, this.svg);
    this.scale();
    if (this.device.limit <= this.top) this.level("limit", this.device.limit);
    else svg("text", { class: "soft above", x: this.width - 4, y: 32, "text-anchor": "end" }, this.svg, `limit ${bytes(this.device.limit)} ↑`);
    if (this.measured !== undefined) this.level("measured", this.measured);
    this.cursor = svg("line", { class: "cursor", y1: 22, y2: HIGH - 2, visibility: "hidden" }, this.svg);
  }

  /** Lines at round sizes. */
  scale() {
    if (!this.peak && !this.measured) return; // nothing is there
    const unit = 1024 ** Math.max(0, Math.floor(Math.log2(this.top / 2) / 10));
    for (const tick of ticks(0, this.top / unit, 3).slice(1)) {
      const y = this.y(tick * unit);
      if (y < 40) continue; // room for the title
      svg("line", { class: "axis", x1: LEFT, x2: this.width, y1: y, y2: y }, this.svg);
      svg("text", { class: "soft scale", x: LEFT + 3, y: y - 2, "font-size": 9 }, this.svg, bytes(tick * unit).replace(/\.0+ /, " "));
    }
  }

  level(kind, size) {
    const y = this.y(size);
    svg("line", { class: kind, x1: LEFT, x2: this.width, y1: y, y2: y }, this.svg);
  }

  /** The window in columns of a pixel, each as high as the most held in it, closed at the bottom. */
  path() {
    const bottom = this.y(0);
    const columns = Math.floor(this.width - LEFT);
    const each = (view.to - view.from) / columns;
    let step = this.live.findLastIndex(([us]) => us <= view.from);
    let last = null;
    let path = `M${LEFT} ${bottom}`;
    for (let column = 0; column < columns; column += 1) {
      let most = step < 0 ? 0 : this.live[step][1];
      const until = view.from + (column + 1) * each;
      while (step + 1 < this.live.length && this.live[step + 1][0] <= until) {
        step += 1;
        most = Math.max(most, this.live[step][1]);
      }
      if (most !== last) path += `L${LEFT + column} ${this.y(last ?? most).toFixed(1)}V${this.y(most).toFixed(1)}`;
      last = most;
    }
    return `${path}H${this.width}V${bottom}Z`;
  }

  /** What the device holds at a time. */
  at(us) {
    let held = 0;
    for (const [from, size] of this.live) {
      if (from > us) break;
      held = size;
    }
    return held;
  }

  hover(event) {
    const box = this.svg.getBoundingClientRect();
    const x = Math.max(LEFT, (event.clientX - box.left) * (this.width / box.width));
    const us = view.from + ((x - LEFT) / (this.width - LEFT)) * (view.to - view.from);
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, x);
    this.cursor.setAttribute("visibility", "visible");
    const lines = [`${this.device.name}: ${bytes(this.at(us))} at ${time(us)}`, `limit ${bytes(this.device.limit)}`];
    if (this.measured !== undefined) lines.push(`measured peak ${bytes(this.measured)}`);
    const number = DATA.timelines[0].rows.findIndex((row) => row.device === this.number && !row.what);
    const running = DATA.timelines[0].spans.find((s) => s[ROW] === number && s[START] <= us && us < s[END]);
    if (running) lines.push(`while ${DATA.names[running[NAME]]} runs ${PHASES[running[PHASE]]}`);
    showTip(event, lines);
  }
}

/** A picture for each device that does or holds something; of many devices, for the fullest. */
function drawMemory(parent) {
  const held = DATA.devices.map((_, number) => Math.max(...DATA.timelines.map((one) => one.peaks[number])));
  const used = new Set(DATA.timelines.flatMap((one) => one.spans.map((span) => one.rows[span[ROW]].device)));
  const shares = held.map((peak, number) => (used.has(number) ? 1e-9 : 0) + peak / Math.max(1, DATA.devices[number].limit));
  const shown = most(shares, MANY);
  DATA.devices.forEach((device, number) => {
    if (!shares[number]) return;
    const picture = new MemoryPicture(number, parent);
    view.drawers.push(() => {
      picture.parent.hidden = !view.all && !shown.has(number);
      if (!picture.parent.hidden) picture.draw();
    });
  });
}
