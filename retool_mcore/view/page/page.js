"use strict";
// The index is columns: {step: [...], uid: [...], ...}; a trajectory's address is its step and its row in that step's file.
const $ = (id) => document.getElementById(id);
const embedded = window.EMBEDDED || null;
const ROW_HEIGHT = 30;
const state = { index: null, details: new Map(), filters: {}, sort: ["order", 1], picked: null, shade: "none" };

const api = {
  index: async () => (embedded ? embedded.index : decoded(JSON.parse($("index").textContent))),
  detail: async (step, row) => {
    const key = `${step}/${row}`;
    if (!state.details.has(key)) {
      state.details.set(key, embedded ? embedded.details[key] : await get(`api/trajectory/${key}`));
    }
    return state.details.get(key);
  },
};

// Columns of texts are sent as their distinct words and the place of every value in them.
function decoded(index) {
  for (const [name, values] of Object.entries(index)) if (values.codes) index[name] = values.codes.map((code) => values.words[code]);
  return index;
}

async function get(path) {
  const reply = await fetch(path);
  if (!reply.ok) throw new Error(await reply.text());
  return reply.json();
}

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const fixed = (value, digits = 2) => (value === null || value === undefined ? "–" : Number(value).toFixed(digits));
const column = (name, order) => state.index[name][order];
const address = (order) => `${column("step", order)}/${column("row", order)}`;
const problem = (order) => `${column("data_source", order)} #${column("index", order)}`;
const right = (order) => column("acc", order) > 0;

// ---- list

const COLUMNS = [
  ["", null], ["step", "step"], ["problem", "index"], ["reward", "score"], ["answer", "acc"], ["turns", "turns"],
  ["calls", "calls"], ["finish", "finish"], ["tokens", "tokens"], ["seconds", "seconds"],
];

function matching() {
  const { step, source, reward, turns, status, answer, problem: wanted } = state.filters;
  const index = state.index, found = [];
  for (let order = 0; order < index.step.length; order++) {
    if (step && index.step[order] !== Number(step)) continue;
    if (source && index.data_source[order] !== source) continue;
    if (reward !== undefined && reward !== "" && index.score[order] < Number(reward)) continue;
    if (turns && index.turns[order] < Number(turns)) continue;
    if (answer && (index.acc[order] > 0) !== (answer === "right")) continue;
    if (status && index.finish[order] !== status && !index.statuses[order].includes(status)) continue;
    if (wanted && problem(order) !== wanted) continue;
    if (state.texts && !state.texts.has(problem(order))) continue;
    found.push(order);
  }
  const [by, direction] = state.sort;
  if (by !== "order") {
    const values = index[by];
    found.sort((a, b) => direction * (values[a] < values[b] ? -1 : values[a] > values[b] ? 1 : a - b));
  } else if (direction < 0) found.reverse();
  return found;
}

function select(name, label, values) {
  const options = [element("option", { value: "" }, "all"), ...values.map((v) => element("option", { value: v }, String(v)))];
  const node = element("select", { onchange: (event) => filter(name, event.target.value) }, ...options);
  node.value = state.filters[name] || "";
  return element("label", {}, label, node);
}

function number(name, label) {
  const node = element("input", { type: "number", step: "any", oninput: (event) => filter(name, event.target.value) });
  node.value = state.filters[name] || "";
  return element("label", {}, label, node);
}

// Prompts are not in the index: the server looks for the text, in each problem once.
function textFilter() {
  const node = element("input", { type: "search", placeholder: "Enter to search", onchange: async (event) => {
    const text = event.target.value.trim();
    state.text = text;
    state.texts = text ? new Set(await get(`api/problems?text=${encodeURIComponent(text)}`)) : null;
    draw();
  } });
  node.value = state.text || "";
  return embedded ? null : element("label", {}, "problem contains", node);
}

function filter(name, value) {
  state.filters[name] = value;
  draw();
}

let draw = () => {};

function showList() {
  const index = state.index, distinct = (values) => [...new Set(values)].sort((a, b) => (a < b ? -1 : 1));
  const count = element("span", { class: "count" }), body = element("div", { class: "body" });
  const table = element("div", { class: "table", onscroll: () => paint() }, heads(), body);
  const filters = element("div", { class: "filters" },
    select("step", "step", distinct(index.step)), select("source", "data source", distinct(index.data_source)),
    select("answer", "answer", ["right", "wrong"]), number("reward", "reward at least"), number("turns", "turns at least"),
    select("status", "finish or call status", distinct([...index.finish, ...[...new Set(index.statuses)].flat()])), textFilter(),
    state.filters.problem ? element("button", { onclick: () => { location.hash = "#/"; } }, `${state.filters.problem} ✕`) : null,
    count);
  let found = [];
  const paint = (beyond = 10) => {
    const first = Math.max(0, Math.floor(table.scrollTop / ROW_HEIGHT) - beyond);
    const last = Math.min(found.length, first + Math.ceil(table.clientHeight / ROW_HEIGHT) + 2 * beyond);
    body.replaceChildren(...found.slice(first, last).map((order, i) => listRow(order, first + i)));
  };
  draw = () => {
    found = matching();
    count.textContent = `${found.length.toLocaleString("en")} of ${index.step.length.toLocaleString("en")} trajectories`;
    body.style.height = `${found.length * ROW_HEIGHT}px`;
    paint(0);
    setTimeout(paint, 100); // the rows beyond the edge, for scrolling, once those within are seen
  };
  $("main").replaceChildren(filters, ...(state.filters.problem ? [curve(matching())] : []), table);
  draw();
}

function heads() {
  const sortBy = (by) => () => {
    state.sort = state.sort[0] === by ? [by, -state.sort[1]] : [by, 1];
    draw();
  };
  return element("div", { class: "row head" }, ...COLUMNS.map(([label, by]) =>
    by ? element("button", { onclick: sortBy(by), title: `sort by ${label}` }, label) : element("span")));
}

function listRow(order, position) {
  const here = state.picked === order;
  const compare = element("button", {
    title: here ? "compare with another: pick it" : "compare", "aria-pressed": String(here),
    onclick: (event) => { event.preventDefault(); pick(order); },
  }, "⇄");
  const statuses = column("statuses", order);
  return element("a", { class: "row", href: `#/t/${address(order)}`, style: `top:${position * ROW_HEIGHT}px` },
    element("span", {}, compare), element("span", {}, String(column("step", order))), element("span", {}, problem(order)),
    element("span", {}, fixed(column("score", order))),
    element("span", { class: right(order) ? "good" : "bad" }, right(order) ? "right" : "wrong"),
    element("span", {}, String(column("turns", order))),
    element("span", {}, ...statuses.slice(0, 6).map(statusChip), statuses.length > 6 ? `+${statuses.length - 6}` : null),
    element("span", {}, column("finish", order)), element("span", {}, column("tokens", order).toLocaleString("en")),
    element("span", {}, fixed(column("seconds", order))));
}

const isGood = (status) => status === "success" || status === "output";
const statusChip = (status) => element("span", { class: `chip ${isGood(status) ? "good" : "bad"}` }, status);

function pick(order) {
  if (state.picked === null || state.picked === order) {
    state.picked = state.picked === order ? null : order;
    draw();
  } else {
    const first = state.picked;
    state.picked = null;
    location.hash = `#/c/${address(first)}/${address(order)}`;
  }
}

// The mean answer of one problem over the training steps.
function curve(found) {
  const sums = new Map();
  for (const order of found) {
    const [sum, count] = sums.get(column("step", order)) || [0, 0];
    sums.set(column("step", order), [sum + Number(right(order)), count + 1]);
  }
  const steps = [...sums.keys()].sort((a, b) => a - b);
  const span = Math.max(1, steps[steps.length - 1] - steps[0]);
  const points = steps.map((step) => [(step - steps[0]) / span, sums.get(step)[0] / sums.get(step)[1]]);
  const path = points.map(([x, y], i) => `${i ? "L" : "M"}${10 + 980 * x},${92 - 84 * y}`).join(" ");
  const holder = element("div", { class: "note" });
  holder.innerHTML = `<svg class="curve" viewBox="0 0 1000 100" preserveAspectRatio="none"><path d="${path}"/></svg>`;
  holder.append(`share of right answers to this problem, step ${steps[0]} to ${steps[steps.length - 1]}`);
  return holder;
}

// ---- one trajectory, or two side by side

function find(step, row) {
  const index = state.index;
  for (let order = 0; order < index.step.length; order++) {
    if (index.step[order] === Number(step) && index.row[order] === Number(row)) return order;
  }
  throw new Error(`there is no trajectory ${row} in step ${step}`);
}

async function showTrajectories(addresses) {
  const orders = addresses.map(([step, row]) => find(step, row));
  const details = await Promise.all(addresses.map(([step, row]) => api.detail(step, row)));
  const panes = element("div", { class: "panes" });
  const redraw = () => panes.replaceChildren(...orders.map((order, i) => pane(order, details[i], orders)));
  redraw();
  $("main").replaceChildren(shades(redraw), panes);
}

const SHADES = [["none", "no shade"], ["probability", "shade: improbable tokens"], ["difference", "shade: vLLM against Megatron"]];

function shades(redraw) {
  const buttons = SHADES.map(([name, label]) => element("button", {
    "aria-pressed": String(state.shade === name),
    onclick: () => {
      state.shade = name;
      buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(SHADES[i][0] === name)));
      redraw();
    },
  }, label));
  return element("div", { class: "tools" }, ...buttons);
}

function pane(order, detail, orders) {
  const index = state.index, [step, row] = [column("step", order), column("row", order)];
  const facts = [
    ["step", step], ["reward", fixed(index.score[order])], ["answer", right(order) ? "right" : "wrong"],
    ["given", detail.pred ?? "–"], ["expected", detail.ground_truth ?? "–"], ["finish", index.finish[order]],
    ["turns", index.turns[order]], ["tokens", index.tokens[order].toLocaleString("en")],
    ["advantage", detail.advantage === undefined || detail.advantage === null ? "–" : fixed(detail.advantage, 3)],
  ];
  return element("section", { class: "pane" },
    element("div", { class: "facts" }, ...facts.map(([name, value]) => element("div", {}, name, element("b", {}, String(value))))),
    element("div", { class: "tools" },
      element("a", { href: `#/p/${encodeURIComponent(problem(order))}` }, `${problem(order)} over all steps`),
      embedded ? null : element("a", { href: `export/${orders.map(address).join("/")}.html`, download: true }, "one HTML file"),
      group(order, orders),
      // By this name the mask audit and the traces of episodes speak of it.
      index.uid ? element("span", { class: "note" }, `${index.uid[order]}_${index.sample[order]}`) : null),
    times(detail), tokens(detail), calls(detail));
}

// The other trajectories of the group, to compare with.
function group(order, orders) {
  const index = state.index, members = [];
  for (let other = 0; other < index.step.length; other++) {
    if (index.step[other] === index.step[order] && index.uid[other] === index.uid[order]) members.push(other);
  }
  const link = (other) => element("a", {
    class: `chip ${right(other) ? "good" : "bad"}${orders.includes(other) ? " here" : ""}`,
    title: other === order ? "this trajectory" : "side by side with this one",
    href: other === order ? `#/t/${address(order)}` : `#/c/${address(order)}/${address(other)}`,
  }, fixed(index.score[other], 1));
  return element("span", {}, "group: ", ...members.map(link));
}

function times(detail) {
  const total = detail.timeline.reduce((sum, part) => sum + part.seconds, 0);
  if (!total) return null;
  const bars = detail.timeline.map((part) => element("span", {
    class: part.what, style: `flex:${part.seconds}`, title: `turn ${part.turn + 1}: ${part.what} ${fixed(part.seconds, 3)} s`,
  }, part.seconds / total > 0.12 ? `${fixed(part.seconds)} s` : ""));
  const tools = detail.timeline.filter((part) => part.what === "tool").reduce((sum, part) => sum + part.seconds, 0);
  return element("div", {}, element("div", { class: "bar" }, ...bars),
    element("p", { class: "note" }, `${fixed(total)} s waited: engine ${fixed(total - tools)} s, interpreter ${fixed(tools)} s`));
}

function shadeOf(detail, position) {
  const [engine, trainer] = [detail.logprobs[position], detail.trainer_logprobs[position]];
  if (state.shade === "probability" && engine !== null && engine !== undefined) {
    return `rgb(var(--shade) / ${(0.6 * (1 - Math.exp(engine))).toFixed(3)})`;
  }
  if (state.shade === "difference" && engine !== null && trainer !== null && trainer !== undefined) {
    // Logarithmic: 1e-6 is nothing, 1 is full.
    const gap = Math.abs(Math.exp(engine) - Math.exp(trainer));
    return `rgb(var(--diff) / ${Math.max(0, Math.min(0.7, 0.7 * (1 + Math.log10(gap + 1e-6) / 6))).toFixed(3)})`;
  }
  return null;
}

function tokens(detail) {
  const trained = new Set();
  detail.trained.forEach(([start, end]) => { for (let i = start; i < end; i++) trained.add(i); });
  const holder = element("div", { class: "tokens", onmousemove: tip, onmouseleave: () => { $("tip").hidden = true; } });
  holder.detail = detail;
  for (const [role, start, end] of detail.roles) {
    for (let i = start; i < end; i++) {
      const shade = shadeOf(detail, i - detail.prompt_tokens);
      const node = element("span", { class: `t ${role}${trained.has(i) ? " trained" : ""}`, style: shade && `background:${shade}` });
      node.position = i;
      const parts = detail.highlights[i];
      if (parts) node.append(...parts.map(([css, text]) => (css ? element("span", { class: css }, text) : text)));
      else node.append(detail.pieces[i]);
      node.role = role;
      holder.append(node);
    }
  }
  return holder;
}

function tip(event) {
  const node = event.target.closest(".t"), box = $("tip");
  if (!node) { box.hidden = true; return; }
  const detail = event.currentTarget.detail, i = node.position - detail.prompt_tokens;
  const [engine, trainer] = [detail.logprobs[i], detail.trainer_logprobs[i]];
  const lines = [`token ${node.position} (${i < 0 ? "prompt" : `response ${i}`}), ${node.role}: ${JSON.stringify(detail.pieces[node.position])}`];
  lines.push(node.classList.contains("trained") ? "in the loss" : "not in the loss");
  if (engine !== null && engine !== undefined) lines.push(`vLLM p = ${fixed(Math.exp(engine), 4)}`);
  if (trainer !== null && trainer !== undefined) {
    lines.push(`Megatron p = ${fixed(Math.exp(trainer), 4)}, difference ${(Math.exp(engine) - Math.exp(trainer)).toExponential(1)}`);
  }
  box.textContent = lines.join("\n");
  box.hidden = false;
  box.style.left = `${Math.min(event.clientX + 14, innerWidth - 380)}px`;
  box.style.top = `${event.clientY + 16}px`;
}

function calls(detail) {
  if (!detail.calls.length) return element("p", { class: "note" }, "The interpreter was not called.");
  return element("div", { class: "calls" }, ...detail.calls.map((call, i) => element("details", { open: !isGood(call.status) },
    element("summary", {}, `call ${i + 1}, turn ${call.turn + 1} `, statusChip(call.status), ` ${fixed(call.duration_s, 3)} s`,
      call.truncated ? " · the policy read a shortened observation" : ""),
    call.code !== null ? element("pre", {}, call.code) : call.arguments ? element("pre", {}, `${call.tool} ${call.arguments}`) : null,
    call.stdout ? element("pre", {}, call.stdout) : null,
    call.value ? element("pre", {}, call.value) : null,
    call.stderr ? element("pre", { class: isGood(call.status) ? "" : "bad" }, call.stderr.trim()) : null)));
}

// ---- addresses: #/ list, #/p/PROBLEM, #/t/STEP/ROW, #/c/STEP/ROW/STEP/ROW

async function route() {
  const parts = location.hash.slice(2).split("/").filter(Boolean);
  $("tip").hidden = true;
  $("legend").hidden = !"tc".includes(parts[0] || "-");
  try {
    if (parts[0] === "t" || parts[0] === "c") {
      const pairs = [];
      for (let i = 1; i + 1 < parts.length; i += 2) pairs.push([parts[i], parts[i + 1]]);
      $("where").textContent = pairs.map(([step, row]) => `step ${step}, trajectory ${row}`).join("  and  ");
      await showTrajectories(pairs);
    } else {
      state.filters.problem = parts[0] === "p" ? decodeURIComponent(parts[1]) : null;
      $("where").textContent = state.filters.problem ? `${state.filters.problem} over the training steps` : "trajectories";
      showList();
    }
    document.body.dataset.ready = location.hash || "#/";
  } catch (error) {
    $("main").replaceChildren(element("p", { class: "bad" }, String(error.message || error)));
  }
}

async function start() {
  state.index = await api.index();
  $("run").textContent = `retool view · ${state.index.run}`;
  if (embedded && location.hash.length < 3) location.hash = embedded.start;
  addEventListener("hashchange", route);
  await route();
}

start().catch((error) => $("main").replaceChildren(element("p", { class: "bad" }, String(error.message || error))));
