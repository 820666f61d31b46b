// #/changes: of the same problems, the share of right answers before and after: two evaluations, or a run before and since a step.
const MOST_READ = 200000, MOST_SHOWN = 500; // trajectories; problems

async function showChanges() {
  const query = { ...state.query }, all = runOf(query).parts;
  const part = query.part || (all.includes(runOf(query).part) ? runOf(query).part : all[0]);
  const before = query.before || (/^\d*$/.test(query.since || "") && query.since ? "" : all.find((one) => one !== part && one.startsWith("eval/")) || "");
  state.query = { ...query, part, before };
  const sides = before
    ? [await perProblem({ ...query, part: before }, () => true), await perProblem({ ...query, part }, () => true)]
    : query.since ? [await perProblem({ ...query, part }, (entry) => entry.step <= Number(query.since)), await perProblem({ ...query, part }, (entry) => entry.step > Number(query.since))]
      : [new Map(), new Map()];
  const both = [...sides[1].keys()].filter((problem) => sides[0].has(problem)).map((problem) => sides.map((side) => side.get(problem)));
  const change = ([old, now]) => now.right / now.count - old.right / old.count;
  both.sort((a, b) => Math.abs(change(b)) - Math.abs(change(a)) || (a[0].text < b[0].text ? -1 : 1));
  const gained = both.filter((pair) => change(pair) > 0).length, lost = both.filter((pair) => change(pair) < 0).length;
  const share = (side, own) => element("a", { href: link("list", { run: query.run, part: own, problem: side.problem, step: side.step }) }, `${percent(side.right / side.count)} of ${side.count}`);
  const rows = both.slice(0, MOST_SHOWN).map((pair) => element("tr", {},
    element("td", { class: change(pair) > 0 ? "good" : change(pair) < 0 ? "bad" : null }, `${change(pair) > 0 ? "▲ +" : change(pair) < 0 ? "▼ " : ""}${percent(change(pair))}`),
    element("td", {}, share(pair[0], before || part)), element("td", {}, share(pair[1], part)), element("td", {}, ...withMaths(pair[1].text || pair[1].problem))));
  const told = !both.length ? (before || query.since ? "No problem occurs on both sides." : "Choose what to compare with: another evaluation, or a step.")
    : `${many(both.length)} problems on both sides: ${many(gained)} better, ${many(lost)} worse, ${many(both.length - gained - lost)} as before${both.length > MOST_SHOWN ? `; the ${MOST_SHOWN} that changed most` : ""}`;
  $("main").replaceChildren(element("div", { class: "filters" }, state.runs.length > 1 ? runChoice() : null, choice("part", "of", all),
    choice("before", "compared with", all.filter((one) => one !== part), "itself, until a step"), before ? null : field("since", "since step"), field("text", "problem contains", { type: "search" }),
    element("span", { class: "count", id: "count" }, told)),
  element("div", { class: "plain" }, element("table", {}, element("thead", {}, element("tr", {}, ...["change", before || "until then", before ? part : "since", "problem"].map((title) => element("th", {}, title)))),
    element("tbody", {}, ...rows))));
}

const percent = (share) => `${(100 * share).toFixed(0)} %`;

// {problem: its answers in the last step that `meant` takes}
async function perProblem(query, meant) {
  const asked = { ...whose(query), text: query.text || "" }, { total } = await get("api/list", { ...asked, count: 0 });
  if (total > MOST_READ) throw new Error(`${many(total)} trajectories are too many to compare here: narrow them by a text of their problems.`);
  const found = new Map();
  for (const entry of (await everything(asked)).filter(meant)) {
    const old = found.get(entry.problem);
    if (old && old.step > entry.step) continue;
    const own = old && old.step === entry.step ? old : { problem: entry.problem, text: entry.text, step: entry.step, right: 0, count: 0 };
    own.right += Number(isRight(entry));
    own.count += 1;
    found.set(entry.problem, own);
  }
  return found;
}
