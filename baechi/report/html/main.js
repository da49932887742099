// Draw everything, and listen to the buttons.

/** The search: layers whose names contain what is typed; Enter goes to the next one. */
function follow(graph) {
  const field = document.getElementById("find");
  const count = document.getElementById("count");
  let [found, place] = [[], 0];
  const show = () => {
    const leaf = found.length ? found[place] : null;
    view.chosen = leaf ?? -1;
    graph.choose(leaf);
    view.draw();
    count.textContent = field.value ? `${found.length ? place + 1 : 0} of ${found.length}` : "";
  };
  field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase();
    const named = [...DATA.nodes.keys()].filter((node) => DATA.names[node].toLowerCase().includes(wanted));
    [found, place] = [wanted ? named : [], 0];
    show();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      field.value = "";
      found = [];
    } else if (event.key === "Enter" && found.length) {
      place = (place + (event.shiftKey ? found.length - 1 : 1)) % found.length;
    } else return;
    show();
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target === field) return;
    event.preventDefault();
    field.focus();
  });
}

/** Leave out of a legend what there is none of. */
function legendOf(legend) {
  const phases = new Set(DATA.timelines.flatMap((one) => one.spans.map((span) => (span[WHERE] ? "transfer" : PHASES[span[PHASE]]))));
  for (const key of legend.querySelectorAll(".key")) {
    const what = [...PHASES, "transfer"].find((phase) => key.classList.contains(phase));
    if (what && !phases.has(what)) key.parentElement.hidden = true;
  }
}

function main() {
  const part = (name) => document.querySelector(`#${name} .pictures`);
  if (DATA.timelines.length > 1) document.body.classList.add("measured");
  drawTimelines(part("timeline"));
  drawMemory(part("memory"));
  const graph = part("graph") && new GraphPicture(part("graph"), document.querySelector("#graph .legend"));
  legendOf(document.querySelector("#timeline .legend"));
  for (const button of document.querySelectorAll("button")) {
    const { zoom, fold, scale, all } = button.dataset;
    if (all) button.hidden = DATA.devices.length <= MANY;
    button.addEventListener("click", () => {
      if (zoom) view.zoom(Number(zoom));
      if (fold) graph.fold(fold);
      if (all) {
        view.all = !view.all;
        button.textContent = view.all ? "fewer devices" : "all devices";
        view.draw();
      }
      if (scale) graph.resize(Number(scale));
    });
  }
  if (graph) follow(graph);
  view.draw();
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) view.draw();
    width = innerWidth;
  });
  for (const [event, paper] of [["beforeprint", 760], ["afterprint", 0]]) {
    addEventListener(event, () => {
      view.paper = paper;
      view.draw();
    });
  }
}

main();
