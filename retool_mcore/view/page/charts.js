// Curves and areas over steps, as SVG. Colours: Okabe and Ito's, which the colour-blind tell apart.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a", "#b8a800"];
const DASHES = [null, "6 3", "2 3", "8 3 2 3"];
const WIDTH = 380, HEIGHT = 190, BOX = { left: 46, right: 8, top: 8, bottom: 30 };
const DOTS = 60; // up to so many points they are drawn one by one

// About `count` round numbers from low to high.
function ticks(low, high, count = 4) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high + step * 1e-9; n++) found.push(n * step);
  return found;
}

// Of all values. Over more than three powers of ten it is logarithmic: a spike would leave nothing else to see.
function scale(values, from, to) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low > 0 && high / low > 1000) {
    const place = scale([Math.log10(low), Math.log10(high)], from, to);
    const powers = ticks(Math.log10(low), Math.log10(high)).filter(Number.isInteger);
    return { at: (value) => place.at(Math.log10(value)), marks: powers.map((p) => [10 ** p, `1e${p}`]) };
  }
  if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  return evenly(low, high, from, to);
}

const evenly = (low, high, from, to) => ({
  at: (value) => from + ((value - low) / (high - low)) * (to - from), marks: ticks(low, high).map((value) => [value, short(value)]),
});

const bySteps = (curve) => curve.points || (curve.points = new Map(curve.steps.map((step, i) => [step, i])));

// {title, what, curves: [{label, steps, values, errors?, run, colour, dash, faint?}], areas?: the same, from the bottom up,
// bands?: [{colour, steps, low, high}], marks: [{step, kind, text}], steps: those of the stage,
// pick: (step, run) => …}
function chart({ title, what, curves, areas = [], bands = [], marks = [], steps: whole = [], pick }) {
  const drawn = areas.length ? stacked(areas) : curves, all = [...drawn, ...bands];
  const steps = [...new Set(drawn.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  const shown = [...steps, ...whole], [first, last] = [Math.min(...shown), Math.max(...shown)];
  const x = evenly(first, last > first ? last : first + 1, BOX.left, WIDTH - BOX.right);
  const values = all.flatMap((curve) => [curve.values, curve.low, curve.high, ...spread(curve)].flat()).filter((v) => v !== null && v !== undefined);
  const y = scale(areas.length ? [0, ...values] : values, HEIGHT - BOX.bottom, BOX.top);
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", tabindex: 0, role: "img", "aria-label": `${title}: ${what}` });
  picture.append(...axes(x, y, steps));
  for (const band of bands) picture.append(svg("path", { d: `${path(band.steps, band.high, x, y)} ${path([...band.steps].reverse(), [...band.low].reverse(), x, y, "L")} Z`, fill: band.colour, opacity: 0.2 }));
  for (const curve of drawn) picture.append(...(areas.length ? [area(curve, x, y)] : line(curve, x, y)));
  picture.append(...marks.map((mark) => sign(mark, x)));
  const cursor = svg("line", { class: "cursor", y1: BOX.top, y2: HEIGHT - BOX.bottom, visibility: "hidden" });
  picture.append(cursor);
  const said = element("figcaption", { class: "note" });
  const tell = (step) => {
    cursor.setAttribute("visibility", step === null ? "hidden" : "visible");
    if (step === null) { said.textContent = what; return; }
    cursor.setAttribute("x1", x.at(step));
    cursor.setAttribute("x2", x.at(step));
    const found = (areas.length ? areas : curves).filter((c) => bySteps(c).has(step) && !c.faint);
    const texts = found.map((c) => `${c.label ? `${c.label} ` : ""}${short(c.values[bySteps(c).get(step)])}${c.errors ? ` ± ${short(c.errors[bySteps(c).get(step)])}` : ""}`);
    said.textContent = visible([`step ${step}: ${texts.join(", ")}`, ...marks.filter((m) => m.step === step).map((m) => m.text)].join("; "));
  };
  choose(picture, { drawn, steps, x, y, tell, pick });
  tell(null);
  return element("figure", {}, element("h3", {}, title), picture, said);
}

const spread = (curve) => (curve.errors ? ["-", "+"].map((sign) => curve.values.map((v, i) => (v === null ? null : v + Number(`${sign}1`) * (curve.errors[i] || 0)))) : []);

function axes(x, y, steps) {
  const floor = HEIGHT - BOX.bottom;
  return [
    ...y.marks.map(([value]) => svg("line", { class: "grid", x1: BOX.left, x2: WIDTH - BOX.right, y1: y.at(value), y2: y.at(value) })),
    ...y.marks.map(([value, text]) => svg("text", { x: BOX.left - 5, y: y.at(value) + 3, "text-anchor": "end" }, text)),
    ...x.marks.filter(([value]) => Number.isInteger(value) && value >= steps[0]).map(([value, text]) => svg("text", { x: x.at(value), y: floor + 22, "text-anchor": "middle" }, text)),
    svg("line", { class: "axis", x1: BOX.left, x2: WIDTH - BOX.right, y1: floor, y2: floor }),
  ];
}

function path(steps, values, x, y, begin = "M") {
  let pen = begin;
  const parts = [];
  steps.forEach((step, i) => {
    if (values[i] === null) return;
    parts.push(`${pen}${x.at(step).toFixed(1)} ${y.at(values[i]).toFixed(1)}`);
    pen = "L";
  });
  return parts.join("");
}

function line(curve, x, y) {
  const { steps, values, errors, colour, dash, faint } = curve, style = { stroke: colour, opacity: faint ? 0.45 : 1 };
  const found = [svg("path", { d: path(steps, values, x, y), class: "curve", "stroke-dasharray": dash, "stroke-width": faint ? 1 : 1.8, ...style })];
  const places = steps.map((step, i) => [step, i]).filter(([, i]) => values[i] !== null);
  if (errors) found.push(...places.map(([step, i]) => svg("line", { x1: x.at(step), x2: x.at(step), y1: y.at(values[i] - (errors[i] || 0)), y2: y.at(values[i] + (errors[i] || 0)), ...style })));
  if (places.length <= DOTS && !faint) found.push(...places.map(([step, i]) => svg("circle", { cx: x.at(step), cy: y.at(values[i]), r: 2.2, fill: colour })));
  return found;
}

// Every area upon those before it: `values` is its upper edge, `floor` the lower one.
function stacked(areas) {
  const sums = new Map();
  return areas.map((own) => {
    const floor = own.steps.map((step) => sums.get(step) || 0), values = floor.map((low, i) => low + (own.values[i] || 0));
    own.steps.forEach((step, i) => sums.set(step, values[i]));
    return { ...own, floor, values, points: null };
  });
}

const area = ({ steps, values, floor, colour, label }, x, y) => svg("path", {
  d: `${path(steps, values, x, y)}${path([...steps].reverse(), [...floor].reverse(), x, y, "L")}Z`, fill: colour, class: "area",
}, svg("title", {}, label));

// A triangle for an alarm, a dashed line for a restart, an arrow where the run went back.
function sign({ step, kind, text }, x) {
  const at = x.at(step), floor = HEIGHT - BOX.bottom, title = svg("title", {}, text);
  if (kind === "restart") return svg("line", { class: "restart", x1: at, x2: at, y1: BOX.top, y2: floor + 10 }, title);
  const shape = kind === "alarm" ? `M${at - 5} ${floor + 10}L${at + 5} ${floor + 10}L${at} ${floor + 1}Z` : `M${at + 4} ${floor + 1}L${at + 4} ${floor + 11}L${at - 5} ${floor + 6}Z`;
  return svg("path", { class: kind, d: shape }, title);
}

// Mouse and keys: the nearest step is told of, a click or Enter opens it.
function choose(picture, { drawn, steps, x, y, tell, pick }) {
  let chosen = null;
  const show = (step) => { chosen = step; tell(step); };
  const nearest = (event) => {
    const box = picture.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * WIDTH;
    return steps.reduce((best, step) => (Math.abs(x.at(step) - at) < Math.abs(x.at(best) - at) ? step : best), steps[0]);
  };
  const open = (height) => {
    const own = drawn.filter((curve) => bySteps(curve).has(chosen));
    const gap = (curve) => Math.abs(y.at(curve.values[bySteps(curve).get(chosen)]) - height);
    if (own.length && pick) pick(chosen, own.reduce((best, curve) => (gap(curve) < gap(best) ? curve : best)).run);
  };
  picture.addEventListener("mousemove", (event) => show(nearest(event)));
  picture.addEventListener("mouseleave", () => show(null));
  picture.addEventListener("blur", () => show(null));
  picture.addEventListener("click", (event) => {
    show(nearest(event));
    const box = picture.getBoundingClientRect();
    open(((event.clientY - box.top) / box.height) * HEIGHT);
  });
  picture.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) {
      const place = chosen === null ? (move > 0 ? 0 : steps.length - 1) : steps.indexOf(chosen) + move;
      show(steps[Math.max(0, Math.min(steps.length - 1, place))]);
    } else if (event.key === "Enter" && chosen !== null) open(0);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}

const legend = (items) => element("div", { class: "legend" }, ...items.map(([label, colour, dash]) => element("span", {},
  svg("svg", { viewBox: "0 0 22 8", width: 22, height: 8, "aria-hidden": "true" }, svg("line", { x1: 0, x2: 22, y1: 4, y2: 4, stroke: colour, "stroke-width": 3, "stroke-dasharray": dash })), label)));
