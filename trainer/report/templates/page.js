// Reads a plot's numbers out under the pointer, or with the arrow keys when the plot has focus.
"use strict";
const SVG = document.querySelector("svg")?.namespaceURI;

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text; // never markup: names may come from a run
  return made;
}

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function read(curve, step) {
  if (!curve.x.length) return { value: curve.y[0], at: step };
  let found = -1;
  for (let i = 0; i < curve.x.length && curve.x[i] <= step; i++) found = i;
  return found < 0 ? null : { value: curve.y[found], at: curve.x[found] };
}

function text(value, curve, percent) {
  if (percent) return (100 * value).toFixed(1) + "%";
  return value.toLocaleString("en", { maximumFractionDigits: curve.digits });
}

function attach(plot) {
  const data = JSON.parse(plot.querySelector("script").textContent);
  const canvas = plot.querySelector(".canvas");
  const svg = canvas.querySelector("svg");
  const [left, top, right, bottom] = data.box;
  const [width, height] = [svg.viewBox.baseVal.width, svg.viewBox.baseVal.height];
  const steps = [...new Set(data.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  if (!steps.length) return;
  const toX = (step) => left + ((step - data.x[0]) / (data.x[1] - data.x[0])) * (right - left);
  const toY = (v) => bottom - ((v - data.y[0]) / (data.y[1] - data.y[0])) * (bottom - top);
  const layer = shape("g", { class: "hover" });
  const tip = element("div", "tip");
  tip.setAttribute("role", "status");
  svg.append(layer);
  canvas.append(tip);
  let index = -1;

  function show(next) {
    index = Math.min(steps.length - 1, Math.max(0, next));
    const step = steps[index];
    const x = toX(step);
    layer.replaceChildren(shape("line", { x1: x, x2: x, y1: top, y2: bottom }));
    tip.replaceChildren(element("b", "", "step " + step.toLocaleString("en")));
    for (const curve of data.curves) {
      const point = read(curve, step);
      if (!point) continue;
      const row = element("div", "row");
      const key = element("i", "key line");
      key.style.setProperty("--c", `var(--${curve.colour})`);
      const late = point.at === step ? "" : ` (step ${point.at})`;
      const value = text(point.value, curve, data.percent);
      row.append(key, element("span", "", curve.name + late), element("b", "", value));
      tip.append(row);
      if (!curve.area && curve.x.length && point.at === step) {
        const dot = shape("circle", { cx: x, cy: toY(point.value), r: 3 });
        dot.style.fill = `var(--${curve.colour})`;
        layer.append(dot);
      }
    }
    const share = x / width;
    tip.style.left = share < 0.5 ? `calc(${100 * share}% + 12px)` : "auto";
    tip.style.right = share < 0.5 ? "auto" : `calc(${100 * (1 - share)}% + 12px)`;
    tip.style.top = `${(100 * top) / height}%`;
    canvas.classList.add("active");
  }

  function hide() {
    canvas.classList.remove("active");
    layer.replaceChildren();
    index = -1;
  }

  canvas.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    const x = ((event.clientX - frame.left) / frame.width) * width;
    let nearest = 0;
    for (let i = 1; i < steps.length; i++) {
      if (Math.abs(toX(steps[i]) - x) < Math.abs(toX(steps[nearest]) - x)) nearest = i;
    }
    show(nearest);
  });
  canvas.addEventListener("pointerleave", hide);
  canvas.addEventListener("blur", hide);
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    show(index < 0 ? (move > 0 ? 0 : steps.length - 1) : index + move);
  });
}

document.querySelectorAll(".plot").forEach(attach);
document.documentElement.dataset.ready = "yes";
