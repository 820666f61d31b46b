// Addresses and keys.
const KEYS = [
  ["o", "overview"], ["l", "list, as it was filtered"], ["e", "failures by their error"], ["t", "starts of the stages"], ["c", "changes of the same problems"], ["/", "search in the problems"],
  ["j k", "next and previous trajectory; in the list, the row below and above"], ["Enter", "open the row, or the step of a curve"],
  ["g", "compare with the next of the group"], ["d", "next difference"], ["r", "raw text"], ["m", "formulas"], ["s", "next shade"], ["← →", "along a curve that has the focus"], ["?", "this"],
];

const PAGES = { "": showOverview, list: showList, p: showList, errors: showErrors, changes: showChanges, starts: showStarts };

// One page is drawn after another, and of those that wait the last alone: an older answer would lie over a newer one.
let drawn = Promise.resolve(), asked = 0;

function route() {
  const own = ++asked, next = () => (own === asked ? draw() : undefined);
  return drawn = drawn.then(next, next); // also after one that failed
}

async function draw() {
  const { parts, query } = parsed(location.hash), page = parts[0] || "";
  state.query = query;
  clearTimeout(state.timer);
  $("tip").hidden = true;
  $("legend").hidden = page !== "t" && page !== "c";
  const focus = document.activeElement?.id;
  try {
    if (!runOf(query)) throw new Error(`there is no run ${query.run}: ${state.runs.length} are shown`);
    navigation(page, query);
    if (page === "t" || page === "c") {
      const places = [];
      for (let i = 1; i + 1 < parts.length; i += 2) places.push([parts[i], parts[i + 1]]);
      $("where").textContent = places.map(([step, row]) => `step ${step}, trajectory ${row}`).join("  and  ");
      await showTrajectories(places);
    } else {
      if (page === "time") { await showTime(parts[1]); return shownAs(focus); }
      if (page === "p") state.query.problem = parts[1];
      $("where").textContent = page === "p" ? `${visible(parts[1])} over the training steps` : "";
      await (PAGES[page] || showOverview)();
    }
    shownAs(focus);
  } catch (error) {
    $("main").replaceChildren(element("p", { class: "bad" }, String(error.message || error)));
    document.body.dataset.ready = location.hash || "#/";
  }
}

function shownAs(focus) {
  if (focus) $(focus)?.focus();
  document.body.dataset.ready = location.hash || "#/";
}

function navigation(page, query) {
  const run = runOf(query), kept = page === "" ? {} : query;
  $("name").textContent = `retool view · ${visible(state.runs.length > 1 && page === "" ? `${state.runs.length} runs` : run.name)}`;
  const to = (name, text, address) => element("a", { href: address, class: page === name ? "here" : null }, text);
  $("pages").replaceChildren(...(embedded ? [] : [to("", "overview", "#/"), to("list", "trajectories", link("list", kept)), to("errors", "failures", link("errors", { ...kept, error: "" })), to("changes", "changes", link("changes", whose(kept))), to("starts", "starts", link("starts", kept.run ? { run: kept.run } : {})),
    element("button", { title: "keys (?)", onclick: () => $("keys").showModal() }, "?")]));
}

function beside(step) {
  const rows = [...document.querySelectorAll(".body .row")], at = rows.indexOf(document.activeElement?.closest(".row"));
  const table = document.querySelector(".table"), next = rows[at < 0 ? 0 : at + step];
  if (!next) return;
  next.focus({ preventScroll: true });
  const box = table.getBoundingClientRect(), own = next.getBoundingClientRect();
  if (own.bottom > box.bottom - 4 || own.top < box.top + ROW_HEIGHT) table.scrollTop += step * ROW_HEIGHT;
}

const ACTIONS = {
  o: () => { location.hash = "#/"; },
  l: () => { location.hash = link("list", state.query); },
  e: () => { location.hash = link("errors", whose(state.query)); },
  "/": () => $("filter-text")?.focus(),
  j: () => (document.querySelector(".table") ? beside(1) : $("next")?.click()),
  k: () => (document.querySelector(".table") ? beside(-1) : $("previous")?.click()),
  d: () => $("difference")?.click(),
  r: () => $("raw")?.click(),
  m: () => $("maths")?.click(),
  c: () => { location.hash = link("changes", whose(state.query)); },
  t: () => { location.hash = link("starts", state.query.run ? { run: state.query.run } : {}); },
  s: () => {
    const place = SHADES.findIndex(([name]) => name === state.shade);
    $(`shade-${SHADES[(place + 1) % SHADES.length][0]}`)?.click();
  },
  g: () => {
    const chips = [...(document.querySelector(".group")?.querySelectorAll(".chip") || [])];
    const last = chips.map((one) => one.classList.contains("here")).lastIndexOf(true);
    chips.find((one, i) => i > last && !one.classList.contains("here"))?.click();
  },
  "?": () => $("keys").showModal(),
};

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const action = ACTIONS[{ ArrowDown: "j", ArrowUp: "k" }[event.key] && document.activeElement?.closest(".row") ? { ArrowDown: "j", ArrowUp: "k" }[event.key] : event.key];
  if (!action || (embedded && "olectj/k".includes(event.key))) return;
  event.preventDefault();
  action();
}

async function start() {
  state.runs = embedded ? embedded.runs : await get("api/runs");
  const names = state.runs.map((run) => run.name);
  for (const run of state.runs) if (names.filter((name) => name === run.name).length > 1) run.name = run.folder;
  $("keys").append(element("h2", {}, "Keys"), element("table", {}, ...KEYS.map(([key, what]) => element("tr", {}, element("td", {}, element("kbd", {}, key)), element("td", {}, what)))),
    element("button", { onclick: () => $("keys").close() }, "close"));
  if (embedded && location.hash.length < 3) location.hash = embedded.start;
  addEventListener("hashchange", route);
  addEventListener("keydown", press);
  await route();
}

start().catch((error) => $("main").replaceChildren(element("p", { class: "bad" }, String(error.message || error))));
