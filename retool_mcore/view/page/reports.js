// Above the curves: what `retool explain` says of each run, and what `retool compare` says of a plan.

// All sentences of one run; of several runs the first of each, and those of which nothing stands out in one line.
function explanations(reports) {
  const said = reports.map((report, run) => ({ report, name: state.runs[run].name, sentences: report.findings.map((one) => sentence(one, run)) }));
  if (said.length === 1) return explanation(said[0]);
  const quiet = said.filter(({ report, sentences }) => !report.error && !sentences.length).map(({ name }) => name);
  return [
    ...said.filter(({ report, sentences }) => report.error || sentences.length).map(summary),
    quiet.length ? element("p", {}, element("strong", {}, quiet.join(", ")), ": nothing stands out.") : null,
  ];
}

function explanation({ report, sentences }) {
  if (report.error) return [element("p", { class: "note" }, report.error)];
  const found = sentences.length ? element("ol", {}, ...listed(sentences)) : element("p", {}, "Nothing stands out.");
  return [found, element("p", { class: "note" }, report.stages.join(" · "))];
}

function summary({ report, name, sentences }) {
  const head = [element("strong", {}, name), ": "];
  if (report.error) return element("p", {}, ...head, element("span", { class: "note" }, report.error));
  if (sentences.length === 1) return element("p", {}, ...head, ...sentences[0]);
  return element("details", {}, element("summary", {}, ...head, ...sentences[0]), element("ol", { start: 2 }, ...listed(sentences.slice(1))));
}

const listed = (sentences) => sentences.map((one) => element("li", {}, ...one));

function sentence(finding, run) {
  const looks = finding.looks.slice(0, 2).flatMap(([step, row], i) => [i ? " and " : "; see ",
    element("a", { href: link(`t/${step}/${row}`, { run: run || "", part: state.runs[run].part === "rl" ? "" : "rl" }) }, `step ${step}, trajectory ${row}`)]);
  return [element("strong", {}, `${finding.stage}, ${finding.cause}`), `: ${finding.what}`, ...looks, ": change ", element("code", {}, finding.key), ` (${finding.how}).`];
}

function verdicts(study) {
  if (study.error) return [element("p", { class: "bad" }, study.error)];
  if (!study.claims) return [];
  const range = (ends) => (ends ? `${signed(ends[0])} to ${signed(ends[1])}` : "–"), signed = (value) => `${value > 0 ? "+" : ""}${value.toFixed(1)}`;
  const claims = study.claims.map((row) => [
    row.claim, row.criterion, element("span", { class: row.met === null ? "note" : row.met ? "good" : "bad" }, row.met === null ? "a run is missing" : row.met ? "met" : "not met"), signed(row.mean),
    row.pairs.map(signed).join(", "), range(row.over_seeds), row.problems ? `${range(row.over_problems)} (${row.problems} problems)` : "–",
  ]);
  const costs = study.costs.map((row) => [
    row.arm, String(row.runs), `${(100 * row.accuracy).toFixed(1)} %`, short(row.minutes), row.gpu_minutes === null ? "–" : short(row.gpu_minutes), many(row.tokens),
  ]);
  return [
    element("p", { class: "note" }, `${study.plan}: accuracy in points, 95 % intervals`),
    rowsOf(["claim", "criterion", "verdict", "mean", "pairs", "over seeds", "over problems"], claims),
    rowsOf(["arm", "runs", "accuracy, last step", "minutes", "GPU minutes", "tokens"], costs),
  ];
}

function rowsOf(titles, rows) {
  return element("div", { class: "plain" }, element("table", {},
    element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", {}, title)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, cell)))))));
}

// Fills the panel; a report of a large run takes seconds, which the curves do not wait for.
async function fillPanel(panel) {
  const several = state.runs.length > 1;
  const [study, ...reports] = await Promise.all([several ? get("api/study") : {}, ...state.runs.map((_, run) => get("api/explain", { run }))]);
  panel.replaceChildren(...[...verdicts(study), ...explanations(reports)].filter(Boolean));
  panel.hidden = false;
}
