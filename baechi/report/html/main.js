// Draw everything, and listen to the buttons.

function main() {
  const part = (name) => document.querySelector(`#${name} .pictures`);
  if (DATA.timelines.length > 1) document.body.classList.add("measured");
  drawTimelines(part("timeline"));
  drawMemory(part("memory"));
  const graph = new GraphPicture(part("graph"), document.querySelector("#graph .legend"));
  for (const button of document.querySelectorAll("button")) {
    const { zoom, fold, scale } = button.dataset;
    button.addEventListener("click", () => {
      if (zoom) view.zoom(Number(zoom));
      if (fold) graph.fold(fold);
      if (scale) graph.resize(Number(scale));
    });
  }
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
