// The layer graph, coloured by device, folded by module.

const MOST = 1500; // nodes that a browser lays out while one waits

class GraphPicture {
  constructor(parent, legend) {
    this.parent = parent;
    this.scale = 0;
    this.chosen = null;
    this.branchOf = [];
    this.prepare(DATA.tree, null);
    this.legend(legend);
    this.svg = svg("svg", { role: "img", "aria-label": "layer graph" }, parent);
    this.draw();
  }

  /** Note of each branch its parent, its layers, and whether it is open at first. */
  prepare(branch, parent) {
    branch.parent = parent;
    branch.first = Boolean(branch.open);
    if (branch.leaf !== undefined) {
      branch.leaves = [branch.leaf];
      this.branchOf[branch.leaf] = branch;
    } else branch.leaves = branch.children.flatMap((child) => this.prepare(child, branch));
    return branch.leaves;
  }

  legend(parent) {
    const layers = DATA.devices.map((_, number) => DATA.nodes.filter((node) => node.device === number).length);
    const shown = most(layers, MANY);
    DATA.devices.forEach((device, number) => {
      if (!shown.has(number)) return;
      const item = html("span", {}, parent);
      html("i", { class: `key swatch ${deviceClass(number)}` }, item);
      item.append(cut(device.name, 24));
    });
    const rest = layers.filter((count) => count).length - shown.size;
    if (rest > 0) html("span", {}, parent, `and ${rest} more devices`);
    const item = html("span", {}, parent);
    html("i", { class: "key critical" }, item);
    item.append("between devices");
  }

  fold(how) {
    const set = (branch) => {
      if (branch.leaf !== undefined) return;
      branch.open = how === "first" ? branch.first : how === "none" || branch === DATA.tree;
      branch.children.forEach(set);
    };
    if (how === "none" && DATA.nodes.length > MOST) this.openSome();
    else set(DATA.tree);
    this.draw();
    this.fitWidth(how === "none" ? 0.1 : 0.55);
  }

  /** As large as the width allows, though no smaller than some scale. */
  fitWidth(smallest) {
    const room = (this.parent.clientWidth || 800) - 4;
    this.scale = Math.max(smallest, Math.min(1, room / this.laid.width));
    this.resize();
    this.parent.scrollTo(0, 0);
  }

  /** Open what a layer is folded in, mark it, and bring it to the middle. */
  choose(leaf) {
    this.chosen = leaf === null ? null : this.branchOf[leaf];
    for (let outer = this.chosen && this.chosen.parent; outer; outer = outer.parent) outer.open = true;
    this.draw();
    const drawn = this.svg.querySelector(".node.chosen");
    if (!drawn) return;
    const [box, around] = [drawn.getBoundingClientRect(), this.parent.getBoundingClientRect()];
    const by = [(box.left + box.right - around.left - around.right) / 2, (box.top + box.bottom - around.top - around.bottom) / 2];
    this.parent.scrollBy(...by);
  }

  /** Open as much as can be laid out: level by level. */
  openSome() {
    let shown = 1;
    const closed = [DATA.tree];
    while (closed.length) {
      const branch = closed.shift();
      if (branch.leaf !== undefined || shown + branch.children.length > MOST) continue;
      branch.open = true;
      shown += branch.children.length - 1;
      closed.push(...branch.children);
    }
  }

  /** The branches that are shown: layers, and modules that are folded. */
  shown(branch = DATA.tree) {
    if (branch.leaf !== undefined || !branch.open) return [branch];
    return branch.children.flatMap((child) => this.shown(child));
  }

  draw() {
    const branches = this.shown().sort((a, b) => Math.min(...a.leaves) - Math.min(...b.leaves));
    const nodes = branches.map((branch) => this.node(branch));
    const home = new Map();
    nodes.forEach((node, number) => node.branch.leaves.forEach((leaf) => home.set(leaf, number)));
    this.nodes = nodes;
    this.links = this.linksBetween(home);
    this.laid = layout(nodes, this.links);
    const { width, height } = this.laid;
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.resize();
    this.lines = this.laid.segments.map((segment) => this.line(segment));
    nodes.forEach((node, number) => this.box(node, number));
  }

  resize(factor = 1) {
    const room = (this.parent.clientWidth || 800) - 4;
    if (!this.scale) this.scale = Math.max(0.55, Math.min(1, room / this.laid.width));
    this.scale = Math.max(0.1, Math.min(4, this.scale * factor));
    this.svg.style.width = `${this.laid.width * this.scale}px`;
  }

  node(branch) {
    const { leaf } = branch;
    const kind = leaf === undefined ? "module" : DATA.nodes[leaf].kind;
    let label = cut(branch.label, 30);
    const layers = branch.leaves.filter((one) => DATA.nodes[one].kind === "layer").length;
    if (kind === "module") label = `▸ ${cut(branch.path || "model", 30)} (${layers || branch.leaves.length})`;
    else if (kind === "layer") label = cut(branch.path, 30);
    return { branch, kind, label, width: Math.max(26, label.length * 6.3 + 16), parts: shares(branch.leaves) };
  }

  /** Links between what is shown: all edges between two of them as one. */
  linksBetween(home) {
    const found = new Map();
    for (const [source, target, size] of DATA.edges) {
      const [from, to] = [home.get(source), home.get(target)];
      if (from === to) continue;
      const key = `${from} ${to}`;
      if (!found.has(key)) found.set(key, { from, to, bytes: 0, cut: false, order: true });
      const link = found.get(key);
      if (size < 0) continue;
      const ends = [DATA.nodes[source].device, DATA.nodes[target].device];
      link.bytes += size;
      link.order = false;
      link.cut ||= ends[0] !== ends[1] && ends[0] >= 0;
    }
    return [...found.values()];
  }

  line(segment) {
    const [from, to] = [this.laid.points[segment.from], this.laid.points[segment.to]];
    const links = segment.ways.map((way) => this.links[way]);
    const [top, bottom] = [from.y + NODE_HEIGHT / 2, to.y - NODE_HEIGHT / 2];
    const middle = (top + bottom) / 2;
    const cut = links.some((link) => link.cut) ? " cut" : "";
    const dashed = links.every((link) => link.order || this.laid.back.has(link)) ? " order" : "";
    const most = Math.max(...links.map((link) => link.bytes), 1);
    const on = to.node < 0 ? `V${to.y + NODE_HEIGHT / 2}` : ""; // past the boxes of its rank
    const d = `M${from.x} ${top}C${from.x} ${middle} ${to.x} ${middle} ${to.x} ${bottom}${on}`;
    const width = Math.max(1, Math.min(4, Math.log10(most) / 2.2 - 0.8)).toFixed(1);
    const drawn = svg("path", { class: `link${cut}${dashed}`, d, "stroke-width": width }, this.svg);
    return { drawn, links };
  }

  box(node, number) {
    const { x, y } = this.laid.points[number];
    const left = x - node.width / 2;
    const top = y - NODE_HEIGHT / 2;
    const name = node.branch.path || node.branch.label;
    const chosen = node.branch === this.chosen ? " chosen" : "";
    const group = svg("g", { class: `node ${node.kind}${chosen}`, "data-name": name, tabindex: 0, role: "button", "aria-label": name }, this.svg);
    const round = node.kind === "layer" || node.kind === "module" ? 5 : NODE_HEIGHT / 2;
    const clip = svg("clipPath", { id: `box${number}` }, group);
    const place = { x: left, y: top, width: node.width, height: NODE_HEIGHT, rx: round };
    svg("rect", place, clip);
    svg("rect", { ...place, class: "part none" }, group);
    let from = left;
    for (const [device, share] of node.parts) {
      const part = { x: from, y: top, width: node.width * share, height: NODE_HEIGHT };
      svg("rect", { class: `part ${deviceClass(device)}`, ...part, "clip-path": `url(#box${number})` }, group);
      from += node.width * share;
    }
    svg("rect", { ...place, class: "edge" }, group);
    svg("text", { x, y: y + 4, "text-anchor": "middle" }, group, node.label);
    group.addEventListener("pointermove", (event) => showTip(event, describe(node)));
    group.addEventListener("pointerenter", () => this.mark(number, true));
    group.addEventListener("focus", (event) => {
      this.mark(number, true);
      showTip(event, describe(node));
    });
    for (const over of ["pointerleave", "blur"]) {
      group.addEventListener(over, () => {
        this.mark(number, false);
        hideTip();
      });
    }
    group.addEventListener("click", () => this.toggle(node.branch));
    group.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      const kept = this.toggle(node.branch);
      this.svg.querySelector(`[data-name="${CSS.escape(kept.path)}"]`)?.focus();
    });
  }

  /** Mark the lines that lead to a node and away from it. */
  mark(number, on) {
    for (const { drawn, links } of this.lines) {
      if (links.some((link) => link.from === number || link.to === number)) drawn.classList.toggle("near", on);
    }
  }

  /** Open a module, or fold that of a layer. Returns what is shown in its place. */
  toggle(branch) {
    hideTip();
    if (branch.leaf !== undefined && !branch.parent.parent) return branch;
    const shown = branch.leaf === undefined ? branch : branch.parent;
    shown.open = branch.leaf === undefined;
    this.draw();
    return this.shown(shown)[0];
  }
}

/** By device, its part of the time of some layers; of their number, if they take none. */
function shares(leaves) {
  const sums = new Map();
  const works = leaves.filter((leaf) => DATA.nodes[leaf].device >= 0);
  const total = works.reduce((sum, leaf) => sum + seconds(DATA.nodes[leaf]), 0);
  for (const leaf of works) {
    const node = DATA.nodes[leaf];
    const part = total ? seconds(node) / total : 1 / works.length;
    sums.set(node.device, (sums.get(node.device) || 0) + part);
  }
  return [...sums].sort((a, b) => a[0] - b[0]);
}

function seconds(node) {
  return (node.forward || 0) + (node.backward || 0);
}

/** What the tip says of a node. */
function describe({ branch, kind, parts }) {
  const own = branch.leaves.map((leaf) => DATA.nodes[leaf]);
  const sum = (name) => own.reduce((total, node) => total + (node[name] || 0), 0);
  const lines = [kind === "module" ? branch.path || "the model" : DATA.names[branch.leaf]];
  if (kind === "module") {
    const layers = own.filter((node) => node.kind === "layer").length;
    lines.push(`${layers} layers, ${own.filter((node) => node.kind === "glue").length} functional ops`);
  } else if (own[0].type) lines.push(own[0].type);
  if (kind === "input") return [...lines, "comes from the caller"];
  const where = parts.map(([device, share]) => `${DATA.devices[device].name} ${(100 * share).toFixed(0)} %`);
  lines.push(parts.length > 1 ? where.join(", ") : where.join("").replace(" 100 %", ""));
  lines.push(`forward ${time(sum("forward"))}${sum("backward") ? `, backward ${time(sum("backward"))}` : ""}`);
  lines.push(...nodeBytes(kind === "module" ? { weights: sum("weights") } : own[0]));
  return lines;
}
