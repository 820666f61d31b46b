// #/list: the trajectories that the filters leave, from the server in pages; #/errors: the same by the errors of their calls.
const ROW_HEIGHT = 30, PAGE_ROWS = 100, ROWS_IN_FILE = 5000;
const TALLEST = 15e6; // pixels: what browsers give an element; a longer list is scrolled in larger strides
const COLUMNS = [ // title, name, width
  ["", null, "2.4rem"], ["step", "step", "3.6rem"], ["problem", "text", "minmax(12rem, 3fr)"], ["reward", "score", "4.5rem"],
  ["answer", "acc", "5rem"], ["status", "finish", "6rem"], ["calls", "calls", "6.5rem"], ["errors of calls", "errors", "minmax(9rem, 2fr)"],
  ["turns", "turns", "3.6rem"], ["tokens", "tokens", "4.6rem"], ["seconds", "seconds", "4.6rem"],
  ["data source", "data_source", "7rem"], ["sample", "sample", "4rem"],
];
const AT_FIRST = COLUMNS.slice(1, 11).map(([, name]) => name);

const chosen = (query) => (query.columns ? query.columns.split(",") : AT_FIRST);
const ofChosen = (query, cells) => { const names = chosen(query); return cells.filter((_, i) => i === 0 || names.includes(COLUMNS[i][1])); };

// The others as they are when it is clicked, not when the page was drawn.
function toggleColumn(name) {
  const names = chosen(state.query), kept = COLUMNS.map(([, own]) => own).filter((own) => own && (own === name) !== names.includes(own));
  return change("columns", String(kept) === String(AT_FIRST) ? "" : kept.join(","));
}

function columnChoice(query) {
  return element("details", { class: "columns", open: state.choosing, ontoggle: (event) => { state.choosing = event.target.open; } }, element("summary", {}, "columns"),
    ...COLUMNS.slice(1).map(([label, name]) => element("label", {},
      element("input", { type: "checkbox", id: `column-${name}`, checked: chosen(query).includes(name), onchange: () => toggleColumn(name) }), ` ${label}`)));
}

// ---- filters, which the address holds

function change(name, value) {
  const { parts, query } = parsed(location.hash);
  state.query = { ...query, [name]: value };
  history.replaceState(null, "", link(parts.map(encodeURIComponent).join("/"), state.query));
  return route();
}

// The field that had the focus keeps it when the page is drawn again.
function field(name, label, attributes = {}) {
  const node = element("input", { id: `filter-${name}`, type: "number", step: "any", ...attributes, onchange: (event) => change(name, event.target.value.trim()) });
  node.value = state.query[name] || "";
  return element("label", {}, label, node);
}

function choice(name, label, values, none = "all") {
  const own = state.query[name] || "", shown = values.includes(own) || !own ? values : [own, ...values];
  const node = element("select", { id: `filter-${name}`, onchange: (event) => change(name, event.target.value) },
    element("option", { value: "" }, none), ...shown.map((value) => element("option", { value }, value)));
  node.value = own;
  return element("label", {}, label, node);
}

function filters(found, ...more) {
  const parts = runOf(state.query).parts;
  return element("div", { class: "filters" },
    state.runs.length > 1 ? runChoice() : null,
    parts.length > 1 ? choice("part", "of", parts) : null,
    field("text", "problem contains", { type: "search", placeholder: "/" }), field("step", "step"),
    found.sources.length > 1 ? choice("source", "data source", found.sources) : null,
    choice("answer", "answer", ["right", "wrong"]), field("score_min", "reward from"), field("score_max", "to"),
    field("calls_min", "calls from"), field("calls_max", "to"), choice("status", "finish or call status", found.statuses.filter(Boolean)),
    choice("error", "error of a call", found.errors.map((row) => row.error)),
    state.query.problem ? element("a", { class: "button", href: link("list", { ...state.query, problem: "" }) }, `${state.query.problem} ✕`) : null,
    ...more);
}

function runChoice() {
  const node = element("select", { onchange: (event) => change("run", event.target.value) }, ...state.runs.map((run, i) => element("option", { value: String(i) }, run.name)));
  node.value = state.query.run || "0";
  return element("label", {}, "run", node);
}

// ---- the list

async function showList() {
  const query = { ...state.query }, pages = new Map();
  let found = await get("api/list", { ...query, count: PAGE_ROWS, soon: 1 }), wanted = null;
  const count = element("span", { class: "count", id: "count" }), body = element("div", { class: "body" });
  const table = element("div", { class: "table", onscroll: () => paint() }, heads(query), body);
  const widths = ofChosen(query, COLUMNS.map(([, , width]) => width));
  table.style.setProperty("--columns", widths.join(" "));
  table.style.setProperty("--least", `${6 * widths.length}rem`);
  const height = () => Math.min(TALLEST, found.total * ROW_HEIGHT);
  const keep = (page, answer) => { pages.set(page, answer.rows); found = answer; };
  const fetchPage = async (page) => {
    if (pages.has(page) || wanted === page) return;
    wanted = page; // of several that a fast scroll passes, the last alone
    const answer = await get("api/list", { ...query, first: page * PAGE_ROWS, count: PAGE_ROWS });
    if (wanted === page) wanted = null;
    keep(page, answer);
    paint();
  };
  const paint = () => {
    const stride = (found.total * ROW_HEIGHT) / Math.max(1, height()), top = table.scrollTop * stride;
    const first = Math.floor(top / ROW_HEIGHT), last = Math.min(found.total, first + Math.ceil(table.clientHeight / ROW_HEIGHT) + 1);
    const rows = [];
    for (let place = Math.max(0, first - 5); place < last; place++) {
      const entry = pages.get(Math.floor(place / PAGE_ROWS))?.[place % PAGE_ROWS];
      if (entry) rows.push(listRow(entry, table.scrollTop + place * ROW_HEIGHT - top, query));
      else fetchPage(Math.floor(place / PAGE_ROWS));
    }
    const focus = document.activeElement?.closest?.(".body .row")?.getAttribute("href");
    body.replaceChildren(...rows);
    if (focus) rows.find((row) => row.getAttribute("href") === focus)?.focus({ preventScroll: true });
  };
  const tell = () => {
    const reading = found.unread ? `; ${many(found.unread)} steps are still being read` : "";
    count.textContent = `${many(found.total)} of ${many(found.of)} trajectories${reading}`;
    body.style.height = `${height()}px`;
    paint();
  };
  const saved = element("span", {}, element("button", { onclick: () => save("csv", query) }, "CSV"), " ", element("button", { onclick: () => save("json", query) }, "JSON"));
  const above = query.problem ? [await overSteps(query)] : [];
  keep(0, found);
  $("main").replaceChildren(filters(found, query.step ? element("a", { href: link(`time/${query.step}`, whose(query)) }, "its time line") : null, columnChoice(query), saved, count), ...above, table);
  tell();
  repeat(async () => {
    const version = found.version, shown = Math.floor((table.scrollTop * found.total) / Math.max(1, height()) / PAGE_ROWS);
    const answer = await get("api/list", { ...query, first: shown * PAGE_ROWS, count: PAGE_ROWS });
    if (answer.version !== version) { pages.clear(); keep(shown, answer); tell(); }
    return answer.unread ? 50 : POLL_MS;
  });
}

function heads(query) {
  const [by, down] = [(query.sort || "-step").replace(/^-/, ""), (query.sort || "-step").startsWith("-")];
  return element("div", { class: "row head" }, ...ofChosen(query, COLUMNS).map(([label, name]) => (name
    ? element("button", { title: `sort by ${label}`, onclick: () => change("sort", by === name && !down ? `-${name}` : name) }, `${label}${by === name ? (down ? " ↓" : " ↑") : ""}`)
    : element("span"))));
}

function listRow(entry, top, query) {
  const picked = state.picked && addressOf(state.picked) === addressOf(entry);
  const compare = element("button", {
    title: picked ? "compare with another: pick it" : "compare", "aria-pressed": String(Boolean(picked)), tabindex: -1,
    onclick: (event) => { event.preventDefault(); pick(entry); },
  }, "⇄");
  const cells = [
    compare, String(entry.step), entry.text || entry.problem, fixed(entry.score),
    element("span", { class: isRight(entry) ? "good" : "bad" }, isRight(entry) ? "✓ right" : "✗ wrong"), entry.finish,
    element("span", {}, `${entry.calls} `, ...entry.statuses.slice(0, 6).map((status) => element("span", { class: isGood(status) ? "good" : "bad", title: status }, isGood(status) ? "✓" : "✗")), entry.statuses.length > 6 ? "…" : null),
    entry.errors.length ? `${entry.errors[0]}${entry.errors.length > 1 ? ` +${entry.errors.length - 1}` : ""}` : "",
    String(entry.turns), many(entry.tokens), fixed(entry.seconds), entry.data_source, String(entry.sample),
  ].map((cell, i) => element("span", { title: i === 2 ? visible(entry.problem) : null }, cell));
  return element("a", { class: "row", href: link(`t/${addressOf(entry)}`, query), style: `top:${top}px` },
    ...ofChosen(query, cells));
}

function pick(entry) {
  if (state.picked && addressOf(state.picked) !== addressOf(entry)) {
    const first = state.picked;
    state.picked = null;
    location.hash = link(`c/${addressOf(first)}/${addressOf(entry)}`, state.query);
    return;
  }
  state.picked = state.picked ? null : entry;
  document.querySelector(".table").dispatchEvent(new Event("scroll"));
}

// All trajectories that the filters leave, in their order.
async function everything(query) {
  let unread = 1;
  while (unread) ({ unread } = await get("api/list", { ...query, count: 1 }));
  const rows = [];
  for (let total = 1; rows.length < total;) {
    const answer = await get("api/list", { ...query, first: rows.length, count: ROWS_IN_FILE });
    total = answer.rows.length ? answer.total : 0;
    rows.push(...answer.rows);
  }
  return rows;
}

async function save(kind, query) {
  const rows = await everything(query);
  download(`trajectories.${kind}`, kind === "csv" ? "text/csv" : "application/json", kind === "csv" ? csv(rows) : [JSON.stringify(rows, null, 1)]);
}

// What a spreadsheet would take for a formula has ' before it.
function csv(rows) {
  const names = Object.keys(rows[0] || {});
  const cell = (value) => {
    let text = Array.isArray(value) ? value.join(" | ") : String(value ?? "");
    if (typeof value !== "number" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [`${names.join(",")}\n`, ...rows.map((row) => `${names.map((name) => cell(row[name])).join(",")}\n`)];
}

// The share of right answers to one problem over the training steps.
async function overSteps(query) {
  const sums = new Map();
  for (const entry of await everything({ ...whose(query), problem: query.problem })) {
    const [right, count] = sums.get(entry.step) || [0, 0];
    sums.set(entry.step, [right + Number(isRight(entry)), count + 1]);
  }
  const steps = [...sums.keys()].sort((a, b) => a - b);
  const curve = { label: "", run: query.run, colour: COLOURS[0], steps, values: steps.map((step) => sums.get(step)[0] / sums.get(step)[1]) };
  return element("div", { class: "charts" }, chart({
    title: query.problem, what: "share of right answers to this problem", curves: [curve],
    pick: (step) => { location.hash = link("list", { ...whose(query), problem: query.problem, step }); },
  }));
}

// ---- failures

async function showErrors() {
  const query = { ...state.query };
  const draw = async () => {
    const found = await get("api/list", { ...query, count: 0 }), most = Math.max(...found.errors.map((row) => row.trajectories), 1);
    const count = element("span", { class: "count" }, `${many(found.total)} trajectories${found.unread ? `; ${many(found.unread)} steps are still being read` : ""}`);
    const rows = found.errors.map((row) => element("tr", {},
      element("td", {}, element("a", { href: link("list", { ...query, error: row.error }) }, row.error)),
      element("td", {}, many(row.trajectories), element("div", { class: "share", style: `width:${(100 * row.trajectories) / most}%` })),
      element("td", {}, `${((100 * row.right) / row.trajectories).toFixed(0)} %`)));
    $("main").replaceChildren(filters(found, count), rows.length ? element("div", { class: "plain" }, element("table", {},
      element("thead", {}, element("tr", {}, ...["error of a call", "trajectories with it", "answer right nevertheless"].map((title) => element("th", {}, title)))),
      element("tbody", {}, ...rows))) : element("p", { class: "note" }, "No call has failed."));
    return found;
  };
  let found = await draw();
  repeat(async () => {
    const next = await get("api/list", { ...query, count: 0 });
    if (next.version !== found.version) found = await draw();
    return found.unread ? 50 : POLL_MS;
  });
}
