// #/starts: the chain of a long stage: its starts, why each ended, what faults have cost, and when it is complete.
const LOST_TO = { fault: "faults", preemption: "preemption" };

async function showStarts() {
  let last = "";
  const update = async () => {
    const found = await get("api/starts", { run: state.query.run || 0 }), text = JSON.stringify(found);
    if (text !== last) {
      last = text;
      $("main").replaceChildren(state.runs.length > 1 ? element("div", { class: "filters" }, runChoice()) : "", ...chains(found));
    }
    return POLL_MS;
  };
  await update();
  repeat(update);
}

function chains(found) {
  const parts = [];
  for (const stage of ["rl", "sft"]) {
    const chain = found[stage];
    if (!chain) continue;
    parts.push(element("h2", {}, STAGE_NAMES[stage], element("span", { class: "note" }, ` ${soFar(chain)}`)));
    const titles = ["start", "job", "nodes", "began", "ran", "steps", "ended", "why"];
    parts.push(element("div", { class: "plain" }, element("table", { id: `starts-${stage}` },
      element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", {}, title)))),
      element("tbody", {}, ...chain.starts.map(startRow).reverse()))));
  }
  return parts.length ? parts : [element("p", { class: "note" }, "No stage has begun yet.")];
}

function startRow(start, place) {
  const end = start.ended ?? (start.why ? null : Date.now() / 1000);
  const bad = start.why in LOST_TO || start.why === "alarm";
  return element("tr", {},
    element("td", {}, String(place + 1)), element("td", {}, start.job ? `${start.job}, start ${start.number}` : "–"),
    element("td", {}, start.nodes.join(", ") || "–"), element("td", {}, start.began ? day(start.began) : "–"),
    element("td", {}, start.began && end ? hours(end - start.began) : "–"),
    element("td", {}, start.steps ? start.steps.join("–") : "–"),
    element("td", { class: bad ? "bad" : null }, start.why || "no end yet"), element("td", {}, start.text));
}

// The chain in one sentence, as `retool status` has it.
function soFar(chain) {
  const now = Date.now() / 1000;
  return [
    `${chain.starts.length} start${chain.starts.length > 1 ? "s" : ""}`,
    ...Object.entries(chain.lost_s).map(([why, seconds]) => `lost to ${LOST_TO[why]}: ${hours(seconds)}`),
    ...(chain.avoided.length ? [`keeps off ${chain.avoided.join(", ")}`] : []),
    ...(chain.next_save ? [`next save in ${hours(Math.max(chain.next_save - now, 0))}`] : []),
    ...(chain.complete_at ? [`complete about ${day(chain.complete_at)} if all goes on as so far`] : []),
  ].join(" · ");
}

const hours = (seconds) => (seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`);
const day = (seconds) => new Date(1000 * seconds).toLocaleString("en-GB", { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
