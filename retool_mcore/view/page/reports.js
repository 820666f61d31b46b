// Above the curves: what `retool explain` says of each run, and what `retool compare` says of a plan.

// One run's sentences; of several runs the first each, and the others below it.
function explanation(report, run, several) {
  if (report.error) return element("p", { class: "note" }, report.error);
  const sentences = report.findings.map((one) => sentence(one, run));
  const head = several ? [element("strong", {}, state.runs[run].name), ": "] : [];
  const read = element("p", { class: "note" }, report.stages.join(" · "));
  if (!sentences.length) return element("div", {}, element("p", {}, ...head, "Nothing stands out."), several ? null : read);
  if (!several) return element("div", {}, element("ol", {}, ...sentences.map((one) => element("li", {}, ...one))), read);
  return element("details", {}, element("summary", {}, ...head, ...sentences[0]),
    element("ol", { start: 2 }, ...sentences.slice(1).map((one) => element("li", {}, ...one))), read);
}

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
    row.claim, row.criterion, element("span", { class: row.met ? "good" : "bad" }, row.met ? "met" : "not met"), signed(row.mean),
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
  panel.replaceChildren(...verdicts(study), ...reports.map((report, run) => explanation(report, run, several)));
  panel.hidden = false;
}
