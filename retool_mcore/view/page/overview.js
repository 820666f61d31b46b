// #/: the curves of all runs, live while they go on.
const STAGE_NAMES = { rl: "RL", sft: "SFT" };

async function showOverview() {
  let last = "";
  const panel = element("section", { class: "panel", hidden: true }), curves = element("div");
  $("main").replaceChildren(panel, curves);
  const update = async () => {
    const found = await Promise.all(state.runs.map((_, run) => get("api/overview", { run })));
    const text = JSON.stringify(found);
    if (text !== last) {
      last = text;
      curves.replaceChildren(...overview(found));
      fillPanel(panel).catch((error) => panel.replaceChildren(element("p", { class: "bad" }, String(error.message || error))));
    }
    return POLL_MS;
  };
  await update();
  repeat(update);
}

function overview(found) {
  const several = found.length > 1, colours = coloured(found);
  const parts = several ? [legend(state.runs.map((run, i) => [colours[i].seeds ? `${run.name} (${run.arm ? `arm ${run.arm}` : `a seed of ${colours[i].seeds}`})` : run.name, colours[i].colour, colours[i].dash]))] : [];
  for (const stage of ["rl", "sft"]) {
    const own = found.map((run) => run.stages[stage]);
    if (!own.some(Boolean)) continue;
    const states = own.map((one, i) => (one ? `${several ? `${state.runs[i].name}: ` : ""}${doing(one)}` : null)).filter(Boolean);
    parts.push(element("h2", {}, STAGE_NAMES[stage], element("span", { class: "note" }, ` ${states.join(" · ")}`)));
    parts.push(element("div", { class: "charts" }, ...CHARTS[stage].flatMap((kind) => figures(kind, own, colours, stage))));
  }
  parts.push(...evaluations(found));
  return parts.length ? parts : [element("p", { class: "note" }, "No step has ended yet.")];
}

// Runs of one arm, or else of one configuration, have one colour, and a band from the lowest to the highest of them.
function coloured(found) {
  const groups = new Map();
  found.forEach((run, i) => {
    const key = state.runs[i].arm || run.configuration || `run ${i}`;
    groups.set(key, [...(groups.get(key) || []), i]);
  });
  const colours = [];
  [...groups.values()].forEach((members, place) => members.forEach((i, n) => {
    colours[i] = {
      colour: COLOURS[place % COLOURS.length], dash: DASHES[(Math.floor(place / COLOURS.length) + n) % DASHES.length],
      members, seeds: members.length > 1 ? `${members.length}` : null,
    };
  }));
  return colours;
}

function doing(stage) {
  const step = stage.steps[stage.steps.length - 1];
  if (stage.complete) return `complete after step ${step}`;
  const beat = stage.heartbeat, ended = `step ${step} has ended`;
  if (!beat || Date.now() / 1000 - beat.time > 600) return ended;
  return `${ended}; now ${beat.phase}${beat.total ? `, ${short(beat.done)} of ${short(beat.total)}` : ""}`;
}

function marksOf(stage, name) {
  const begin = name ? `${name}: ` : "";
  return [
    ...stage.alarms.map((a) => ({ step: a.step, kind: "alarm", text: `${begin}alarm ${a.alarm}: ${short(a.value)}, bound ${short(a.bound)}; ${a.answer}` })),
    ...stage.attempts.slice(1).map(([attempt, step]) => ({ step, kind: "restart", text: `${begin}attempt ${attempt} goes on at step ${step}` })),
    ...stage.backs.map((b) => ({ step: b.step, kind: "back", text: `${begin}went back to the checkpoint of step ${b.from}` })),
  ];
}

function values(stage, name, change = (v) => v) {
  const found = stage.metrics[name] || [];
  const kept = stage.steps.map((step, i) => [step, i]).filter(([, i]) => found[i] !== null && found[i] !== undefined);
  return { steps: kept.map(([step]) => step), values: kept.map(([, i]) => change(found[i], i)), places: kept.map(([, i]) => i) };
}

function figures(kind, stages, colours, stage) {
  const several = stages.length > 1, name = (i) => (several ? state.runs[i].name : "");
  const pick = stage === "rl" ? (step, run) => { location.hash = link("list", { run: run || "", step }); } : null;
  const present = stages.map((one, i) => [one, i]).filter(([one]) => one);
  if (kind.areas) return present.map(([one, i]) => phases(kind, one, i, name(i), pick)).filter(Boolean);
  const curves = [], bands = [];
  Object.entries(kind.curves).forEach(([label, metric], place) => {
    const drawn = present.map(([one, i]) => {
      const { colour, dash, seeds } = several ? colours[i] : { colour: COLOURS[place], dash: DASHES[place] };
      const { places, ...points } = values(one, metric), error = kind.errors && kind.errors[label];
      const errors = error && places.some((n) => one.metrics[error]?.[n] !== null) ? places.map((n) => one.metrics[error][n]) : null;
      return { ...points, errors, run: i, colour, dash: several ? dash || DASHES[2 * place] : dash, label: [name(i), label].filter(Boolean).join(" "), faint: Boolean(seeds) };
    }).filter((curve) => curve.steps.length);
    curves.push(...drawn);
    for (const members of new Set(present.map(([, i]) => colours[i].members))) {
      if (members.length > 1) bands.push(...seedBand(drawn.filter((curve) => members.includes(curve.run)), label, curves));
    }
  });
  if (!curves.length) return [];
  const marks = present.flatMap(([one, i]) => marksOf(one, name(i)));
  const figure = chart({ ...kind, curves, bands, marks, steps: present.flatMap(([one]) => one.steps), pick });
  if (!several && curves.length > 1) figure.append(legend(curves.map((curve) => [curve.label, curve.colour, curve.dash])));
  return [figure];
}

// The band of several seeds, and their mean as a curve of its own.
function seedBand(members, label, curves) {
  const found = new Map();
  members.forEach((curve) => curve.steps.forEach((step, i) => found.set(step, [...(found.get(step) || []), curve.values[i]])));
  const steps = [...found.keys()].filter((step) => found.get(step).length > 1).sort((a, b) => a - b);
  if (!steps.length) return [];
  const over = (figure) => steps.map((step) => figure(found.get(step)));
  curves.push({ steps, values: over((own) => own.reduce((a, b) => a + b) / own.length), run: members[0].run, colour: members[0].colour, dash: label === "held back" ? DASHES[1] : null, label: [state.runs[members[0].run].arm ? `mean of ${state.runs[members[0].run].arm}` : "mean of the seeds", label].filter(Boolean).join(" ") });
  return [{ steps, low: over((own) => Math.min(...own)), high: over((own) => Math.max(...own)), colour: members[0].colour }];
}

function phases(kind, stage, run, name, pick) {
  const whole = values(stage, kind.scale);
  if (!whole.steps.length) return null;
  const areas = Object.entries(kind.areas).map(([label, names], place) => ({
    label, run, colour: COLOURS[place], steps: whole.steps,
    values: whole.places.map((n, i) => whole.values[i] * names.reduce((sum, own) => sum + (stage.metrics[own]?.[n] || 0), 0)),
  }));
  const times = pick && ((step) => { location.hash = link(`time/${step}`, { run: run || "" }); });
  const figure = chart({ title: name ? `${kind.title}: ${name}` : kind.title, what: kind.what, curves: [], areas, marks: marksOf(stage, ""), pick: times });
  figure.append(legend(areas.map((own) => [own.label, own.colour])));
  return figure;
}

function evaluations(found) {
  const rows = found.flatMap((run, i) => Object.entries(run.evaluations).flatMap(([label, one]) =>
    Object.entries(one.accuracy || {}).map(([source, scores]) => ({ i, label, source, one, scores, behaviour: (one.behaviour || {})[source] || {} }))));
  if (!rows.length) return [];
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.scores)))].sort();
  const percent = (share) => (share === undefined ? "–" : `${(100 * share).toFixed(1)} %`);
  const cells = (row) => [
    ...(found.length > 1 ? [state.runs[row.i].name] : []),
    state.runs[row.i].parts.includes(`eval/${row.label}`) ? element("a", { href: link("list", { run: row.i || "", part: `eval/${row.label}` }) }, row.label) : row.label,
    row.source, String(row.one.step ?? "–"), many(row.one.samples ?? 0), ...names.map((name) => percent(row.scores[name])),
    percent(row.behaviour.code_ratio), percent(row.behaviour.tool_success_rate), short(row.behaviour.response_length),
  ];
  const titles = [...(found.length > 1 ? ["run"] : []), "label", "data source", "policy's step", "samples", ...names, "code ratio", "pass rate", "response tokens"];
  return [element("h2", {}, "Evaluations"), rowsOf(titles, rows.map(cells))];
}
