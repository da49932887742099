"use strict";
// What all pictures use: the data, elements, units, the lines about what is pointed at.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

/** An SVG element. Text goes in as text, never as markup. */
function svg(tag, attributes = {}, parent = null, text = null) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

/** An HTML element. */
function html(tag, attributes = {}, parent = null, text = null) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

/** Microseconds for a person. */
function time(us) {
  if (us >= 1e6) return `${(us / 1e6).toFixed(2)} s`;
  if (us >= 1e3) return `${(us / 1e3).toFixed(2)} ms`;
  return `${us.toFixed(1)} µs`;
}

/** Bytes for a person. */
function bytes(size) {
  let value = size;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return unit === "B" ? `${value.toFixed(0)} B` : `${value.toFixed(2)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(2)} TiB`;
}

/** The class that gives an element its device's colour. */
function deviceClass(number) {
  return number < 0 ? "none" : `d${number}`;
}

/** Round numbers for an axis: about `count` of them from `low` to `high`. */
function ticks(low, high, count) {
  const rough = (high - low) / count;
  if (!(rough > 0)) return [];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const found = [];
  for (let tick = Math.ceil(low / step); tick * step <= high; tick += 1) found.push(tick * step);
  return found;
}

/** A tick's time: as many decimals as the ticks are apart. */
function tickTime(us, apart) {
  const [unit, size] = us >= 1e6 || apart >= 1e5 ? ["s", 1e6] : us >= 1e3 || apart >= 100 ? ["ms", 1e3] : ["µs", 1];
  const decimals = Math.max(0, Math.ceil(-Math.log10(apart / size) - 1e-9));
  return `${(us / size).toFixed(Math.min(decimals, 6))} ${unit}`;
}

/** A text of so many letters at most, cut in the middle: the beginning says where, the end which layer. */
function cut(text, letters) {
  if (text.length <= letters) return text;
  const head = Math.floor((letters - 1) / 2);
  return `${text.slice(0, head)}…${text.slice(text.length - (letters - 1 - head))}`;
}

/** As much of a text as fits. */
function fit(text, width, each = 6.2) {
  const room = Math.floor(width / each);
  return text.length > room && room < 9 ? "" : cut(text, room);
}

/** The numbers of the devices with most of something, and at most so many; those with none are left out. */
function most(weights, count) {
  const some = [...weights.keys()].filter((number) => weights[number] > 0);
  return new Set(some.sort((a, b) => weights[b] - weights[a] || a - b).slice(0, count));
}

const tip = document.getElementById("tip");

/** Show lines in the place of the picture's section that is kept free for them, the first one bold. */
function showTip(event, lines) {
  tip.replaceChildren();
  lines.forEach((line, number) => html(number ? "div" : "b", {}, tip, line));
  event.currentTarget.closest("section").querySelector(".info").append(tip);
  tip.hidden = false;
}

function hideTip() {
  tip.hidden = true;
}
