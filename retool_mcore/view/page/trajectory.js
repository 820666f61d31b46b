// #/t/STEP/ROW and #/c/STEP/ROW/STEP/ROW: one trajectory, or two side by side.
const details = new Map();
const SPECIAL = /^<[|｜]([^<>|｜\s]{1,40})[|｜]>$/;
const SHADES = [["none", "no shade"], ["probability", "shade: improbable tokens"], ["difference", "shade: vLLM against Megatron"]];

async function detailOf(step, row) {
  if (embedded) return embedded.details[`${step}/${row}`];
  const key = [step, row, ...Object.values(whose(state.query))].join("/");
  if (!details.has(key)) {
    if (details.size > 50) details.clear();
    details.set(key, await get(`api/trajectory/${step}/${row}`, whose(state.query)));
  }
  return details.get(key);
}

async function showTrajectories(places) {
  const query = { ...state.query };
  const shown = await Promise.all(places.map(([step, row]) => detailOf(step, row)));
  const differing = shown.length === 2 ? differences(...shown) : null;
  const panes = element("div", { class: "panes" });
  const redraw = () => panes.replaceChildren(...shown.map((one, i) => pane(one, shown, differing && differing.sides[i])));
  state.redraw = redraw;
  redraw();
  const steps = embedded || places.length > 1 ? null : await neighbours(places[0], query);
  $("main").replaceChildren(element("div", { class: "tools" }, steps, ...switches(redraw, differing)), panes);
}

// The trajectories before and after this one in the list that led here.
async function neighbours([step, row], query) {
  const found = await get("api/list", { ...query, near: `${step}/${row}`, count: 3 });
  const place = found.rows.findIndex((entry) => addressOf(entry) === `${step}/${row}`);
  if (place < 0) return element("a", { href: link("list", query) }, "list");
  const to = (entry, name, text) => (entry
    ? element("a", { class: "button", id: name, href: link(`t/${addressOf(entry)}`, query) }, text)
    : element("span", { class: "button note" }, text));
  return element("span", { class: "steps" }, to(found.rows[place - 1], "previous", "← previous"),
    element("a", { href: link("list", query) }, `${many(found.first + place + 1)} of ${many(found.total)}`), to(found.rows[place + 1], "next", "next →"));
}

function switches(redraw, differing) {
  const press = (button, on) => button.setAttribute("aria-pressed", String(on));
  const buttons = SHADES.map(([name, label]) => element("button", { id: `shade-${name}`, "aria-pressed": String(state.shade === name), onclick: () => {
    state.shade = name;
    buttons.forEach((button, i) => press(button, SHADES[i][0] === name));
    redraw();
  } }, label));
  const raw = element("button", { id: "raw", title: "special tokens as they are (r)", "aria-pressed": String(state.raw), onclick: () => {
    state.raw = !state.raw;
    press(raw, state.raw);
    redraw();
  } }, "raw");
  const maths = element("button", { id: "maths", title: "formulas instead of tokens (m)", "aria-pressed": String(state.maths), onclick: () => {
    state.maths = !state.maths;
    press(maths, state.maths);
    redraw();
  } }, "maths");
  return [...buttons, raw, maths, differing ? element("span", { class: "note", id: "differences" }, `${differing.said} `) : null,
    differing ? element("button", { id: "difference", title: "next difference (d)", onclick: nextDifference }, "next difference") : null];
}

function pane(detail, shown, marked) {
  const { entry } = detail, other = shown.length === 2 ? shown.find((one) => one !== detail) : null;
  const facts = (one) => [
    ["step", one.entry.step], ["reward", fixed(one.entry.score)], ["answer", isRight(one.entry) ? "✓ right" : "✗ wrong"],
    ["given", one.pred ?? "–"], ["expected", one.ground_truth ?? "–"], ["finish", one.entry.finish],
    ["turns", one.entry.turns], ["calls", one.entry.calls], ["tokens", many(one.entry.tokens)], ["advantage", fixed(one.advantage, 3)],
  ];
  const theirs = other && facts(other), query = whose(state.query);
  return element("section", { class: "pane" },
    element("p", { class: "question" }, ...withMaths(entry.text || entry.problem)),
    element("div", { class: "facts" }, ...facts(detail).map(([name, value], i) => element("div", { class: theirs && theirs[i][1] !== value ? "differs" : null }, name, element("b", {}, ...withMaths(String(value)))))),
    element("div", { class: "tools" },
      embedded ? null : element("a", { href: link(`p/${encodeURIComponent(entry.problem)}`, query) }, `${entry.problem} over all steps`),
      embedded ? null : element("button", { class: "html", onclick: async () => download("trajectory.html", "text/html", [await asFile(shown)]) }, "one HTML file"),
      group(detail, shown),
      // By this name the mask audit and the traces of episodes speak of it.
      element("span", { class: "note" }, `${entry.uid}_${entry.sample}`)),
    times(detail), state.maths ? formulas(detail) : tokens(detail, marked), calls(detail));
}

// The other trajectories of the group, to compare with.
function group({ entry, group: members }, shown) {
  const here = shown.map((one) => addressOf(one.entry)), reachable = embedded ? members.filter((one) => here.includes(addressOf(one))) : members;
  const place = (other) => (addressOf(other) === addressOf(entry) ? `t/${addressOf(entry)}` : `c/${addressOf(entry)}/${addressOf(other)}`);
  return element("span", { class: "group" }, "group: ", ...reachable.map((other) => element("a", {
    class: `chip ${isRight(other) ? "good" : "bad"}${here.includes(addressOf(other)) ? " here" : ""}`,
    title: addressOf(other) === addressOf(entry) ? "this trajectory" : "side by side with this one", href: link(place(other), state.query),
  }, `${isRight(other) ? "✓" : "✗"} ${fixed(other.score, 1)}`)));
}

function times(detail) {
  const kinds = ["generate", "queued", "tool"], sum = (seconds) => seconds.reduce((all, one) => all + one, 0);
  const bars = detail.waits.flatMap((waits, turn) => waits.map((seconds, kind) => [kinds[kind], seconds, turn])).filter(([, seconds]) => seconds > 0);
  const [engine, queued, tools] = kinds.map((_, kind) => sum(detail.waits.map((waits) => waits[kind]))), total = engine + queued + tools;
  if (!total) return null;
  return element("div", {},
    element("div", { class: "bar" }, ...bars.map(([what, seconds, turn]) => element("span", {
      class: what, style: `flex:${seconds}`, title: `turn ${turn + 1}: ${what} ${fixed(seconds, 3)} s`,
    }, seconds / total > 0.12 ? `${fixed(seconds)} s` : ""))),
    element("p", { class: "note" }, `${fixed(total)} s waited: engine ${fixed(engine)} s, for tools to start ${fixed(queued)} s, while they ran ${fixed(tools)} s`));
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

// The texts as they are read: formulas drawn, no token apart.
function formulas(detail) {
  return element("div", { class: "tokens" }, ...detail.roles.map(([role, start, end]) => {
    const text = detail.pieces.slice(start, end).filter((piece) => state.raw || !SPECIAL.test(piece)).join("");
    return element("span", { class: role }, ...(role === "thought" || role === "prompt" ? withMaths(text) : [text]));
  }));
}

// marked: positions of the tokens that the other trajectory lacks.
function tokens(detail, marked) {
  const trained = new Set();
  detail.trained.forEach(([start, end]) => { for (let i = start; i < end; i++) trained.add(i); });
  const holder = element("div", { class: "tokens", onmousemove: tip, onmouseleave: () => { $("tip").hidden = true; } });
  holder.detail = detail;
  for (const [role, start, end] of detail.roles) {
    for (let i = start; i < end; i++) {
      const shade = shadeOf(detail, i - detail.prompt_tokens), special = !state.raw && SPECIAL.exec(detail.pieces[i]);
      const classes = ["t", role, trained.has(i) && "trained", marked && marked.has(i) && "differs", special && "special"];
      const parts = special ? [["", special[1]]] : detail.highlights[i] || [["", detail.pieces[i]]];
      const node = element("span", { class: classes.filter(Boolean).join(" "), style: shade && `background:${shade}` },
        ...parts.map(([css, text]) => (css ? element("span", { class: css }, text) : text)));
      node.position = i;
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
  const lines = [`token ${node.position} (${i < 0 ? "prompt" : `response ${i}`}), ${node.role}: ${visible(JSON.stringify(detail.pieces[node.position]))}`];
  lines.push(node.classList.contains("trained") ? "in the loss" : "not in the loss");
  if (engine !== null && engine !== undefined) lines.push(`vLLM p = ${fixed(Math.exp(engine), 4)}`);
  if (trainer !== null && trainer !== undefined) {
    lines.push(`Megatron p = ${fixed(Math.exp(trainer), 4)}, difference ${(Math.exp(engine) - Math.exp(trainer)).toExponential(1)}`);
  }
  box.textContent = lines.join("\n");
  box.hidden = false;
  box.style.left = `${Math.max(0, Math.min(event.clientX + 14, innerWidth - 380))}px`;
  box.style.top = `${event.clientY + 16}px`;
}

const chip = (status) => element("span", { class: `chip ${isGood(status) ? "good" : "bad"}` }, `${isGood(status) ? "✓" : "✗"} ${status}`);

function calls(detail) {
  if (!detail.calls.length) return element("p", { class: "note" }, "No tool was called.");
  return element("div", { class: "calls" }, ...detail.calls.map((call, i) => element("details", { open: !isGood(call.status) },
    element("summary", {}, `call ${i + 1}, turn ${call.turn + 1} `, chip(call.status), ` ${fixed(call.duration_s, 3)} s`,
      call.truncated ? " · the policy read a shortened observation" : ""),
    call.code !== null ? element("pre", {}, call.code) : call.arguments ? element("pre", {}, `${call.tool} ${call.arguments}`) : null,
    call.stdout ? element("pre", {}, call.stdout) : null,
    call.value ? element("pre", {}, call.value) : null,
    call.stderr ? element("pre", { class: isGood(call.status) ? "" : "bad" }, call.stderr.trim()) : null)));
}

// This page with what is shown in it, for those who have no server.
async function asFile(shown) {
  const places = shown.map((one) => addressOf(one.entry)), run = runOf(state.query);
  const data = {
    runs: [{ ...run, folder: "", parts: [] }], start: `#/${places.length === 1 ? "t" : "c"}/${places.join("/")}`,
    details: Object.fromEntries(shown.map((one) => [addressOf(one.entry), one])),
  };
  // `<` is spelt: `</` ends a script element wherever it stands, and `<!--<script` lets none end.
  const html = await (await fetch("./")).text();
  return html.replace('id="embedded">', (begin) => begin + JSON.stringify(data).replaceAll("<", "\\u003c"));
}
