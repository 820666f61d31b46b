// What all pages share. An address is #/PAGE/PLACES?QUERY; run, part, filters and order are in its query, so that a link
// shows what its sender saw.
const $ = (id) => document.getElementById(id);
const embedded = JSON.parse($("embedded").textContent || "null");
const POLL_MS = 5000;
const state = { runs: [], query: {}, picked: null, shade: "none", raw: false, maths: false, choosing: false, timer: null };

async function get(path, query = {}) {
  const reply = await fetch(`${path}?${new URLSearchParams(query)}`);
  if (!reply.ok) throw new Error(await reply.text());
  return reply.json();
}

// What a policy wrote may turn the direction of the text around it, or hide in it: such characters are spelt out.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const visible = (text) => text.replace(HIDDEN, (c) => `⟨U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  const shown = children.filter((child) => child !== null && child !== undefined);
  node.append(...shown.map((child) => (typeof child === "string" ? visible(child) : child)));
  return node;
}

const element = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const fixed = (value, digits = 2) => (value === null || value === undefined ? "–" : Number(value).toFixed(digits));
const short = (value) => (value === null || value === undefined ? "–" : String(Number(Number(value).toPrecision(4))));
const many = (count) => Number(count).toLocaleString("en");
const isGood = (status) => status === "success" || status === "output";
const isRight = (entry) => entry.acc > 0;
const addressOf = (entry) => `${entry.step}/${entry.row}`;

// ---- addresses

function parsed(hash) {
  const [path, query] = hash.replace(/^#/, "").split(/\?(.*)/s);
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), query: Object.fromEntries(new URLSearchParams(query || "")) };
}

// The address of a page with this query; what is empty is left out.
function link(page, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(kept).toString();
  return `#/${page}${text ? `?${text}` : ""}`;
}

// Of a query, what says which trajectories are meant: of another page it would be noise.
const whose = (query) => Object.fromEntries(["run", "part"].filter((name) => name in query).map((name) => [name, query[name]]));
const runOf = (query) => state.runs[Number(query.run || 0)];

function download(name, kind, pieces) {
  const address = URL.createObjectURL(new Blob(pieces, { type: kind }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

// Does the work again and again while its page is shown and looked at; what it returns is the pause in milliseconds.
function repeat(work) {
  clearTimeout(state.timer);
  const hash = location.hash, again = async () => {
    if (location.hash !== hash) return;
    let pause = POLL_MS;
    if (!document.hidden) pause = await work().catch(() => POLL_MS);
    if (location.hash === hash) state.timer = setTimeout(again, pause);
  };
  state.timer = setTimeout(again, 0);
}
