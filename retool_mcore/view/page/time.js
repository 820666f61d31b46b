// #/time/STEP: where a step's time went: the trainer's phases, how many trajectories generate, queue or run a tool, each of them
// turn by turn, environments' stages, the GPUs. Drawn from RUN/rl/trace.
const SPAN = { wide: 1000, left: 96, lane: 5, phase: 22, counts: 64, gpu: 26, gap: 16 };
const TASKS = { generate: "#3d6fd9", queued: "#8a8a8a", tool: "#d28a12" };

async function showTime(step) {
  const query = whose(state.query), { steps, trace } = await get(`api/trace/${step}`, query), place = steps.indexOf(Number(step));
  const spans = trace.traceEvents.filter((event) => event.ph === "X"), of = (process) => spans.filter((event) => event.pid === process);
  const counted = trace.traceEvents.filter((event) => event.ph === "C"), ends = [...spans.map((event) => event.ts + event.dur), ...counted.map((event) => event.ts)];
  const x = evenly(0, ends.reduce((a, b) => Math.max(a, b), 1) / 1e6, SPAN.left, SPAN.wide - 8), at = (microseconds) => x.at(microseconds / 1e6);
  const picture = svg("svg", { class: "time", role: "img", "aria-label": `time line of step ${step}` });
  let y = 4;
  const label = (text, height) => picture.append(svg("text", { x: 4, y: y + Math.min(height, 24) / 2 + 4 }, text));
  const bar = (event, top, height, fill, said) => picture.append(svg("rect", { x: at(event.ts), y: top, width: Math.max(0.5, at(event.ts + event.dur) - at(event.ts)), height, fill },
    svg("title", {}, `${said}: ${fixed(event.dur / 1e6)} s, from ${fixed(event.ts / 1e6)} s`)));
  const names = [...new Set(of(0).map((event) => event.name))];
  label("trainer", SPAN.phase);
  for (const event of of(0)) bar(event, y, SPAN.phase, COLOURS[names.indexOf(event.name) % COLOURS.length], event.name);
  y += SPAN.phase + SPAN.gap;
  if (of(1).length) {
    const counts = Object.keys(TASKS).map((name) => [name, inProgress(of(1).filter((event) => event.name === name))]);
    const most = Math.max(...counts.flatMap(([, points]) => points.map(([, count]) => count)), 1);
    label(`at once, of ${most}`, SPAN.counts);
    for (const [name, points] of counts) {
      const line = points.map(([moment, count]) => `${at(moment)},${y + SPAN.counts * (1 - count / most)}`).join(" ");
      if (points.length) picture.append(svg("polyline", { points: line, fill: "none", stroke: TASKS[name], "stroke-width": 1.5 }, svg("title", {}, `${name}: trajectories at once`)));
    }
    y += SPAN.counts + SPAN.gap;
  }
  for (const [process, title] of [[1, "trajectories"], [2, "stages"]]) {
    const own = of(process), kinds = [...new Set(own.map((event) => event.name))];
    if (!own.length) continue;
    label(title, 24);
    for (const event of own) {
      const { turn, waited_s, uid, sample, finish, acc } = event.args, told = [`${uid}_${sample}`, finish, acc > 0 ? "right" : "wrong"].join(", ");
      const colour = TASKS[event.name] || COLOURS[kinds.indexOf(event.name) % COLOURS.length];
      bar(event, y + event.tid * SPAN.lane, SPAN.lane - 1, colour, `${event.name}${turn === undefined ? `, after ${fixed(waited_s)} s in the queue` : `, turn ${turn + 1}`} (${told})`);
    }
    y += (1 + own.reduce((most, event) => Math.max(most, event.tid), 0)) * SPAN.lane + SPAN.gap;
  }
  for (const name of new Set(counted.map((event) => event.name))) {
    const points = counted.filter((event) => event.name === name).map((event) => `${at(event.ts)},${y + SPAN.gpu * (1 - event.args.percent / 100)}`);
    label(name, SPAN.gpu);
    picture.append(svg("polyline", { points: points.join(" "), fill: "none", stroke: COLOURS[2] }));
    y += SPAN.gpu + SPAN.gap / 2;
  }
  for (const [value, text] of x.marks) picture.append(svg("line", { class: "grid", x1: x.at(value), x2: x.at(value), y1: 0, y2: y }), svg("text", { x: x.at(value), y: y + 12, "text-anchor": "middle" }, `${text} s`));
  picture.setAttribute("viewBox", `0 0 ${SPAN.wide} ${y + 18}`);
  const to = (other, text) => (other === undefined ? element("span", { class: "button note" }, text) : element("a", { class: "button", href: link(`time/${other}`, query) }, text));
  const { shown, trajectories } = trace.otherData, most = shown < trajectories ? `the ${many(shown)} longest of ${many(trajectories)} trajectories` : `${many(trajectories)} trajectories`;
  $("main").replaceChildren(element("div", { class: "tools" }, to(steps[place - 1], "← previous"), element("a", { href: link("list", { ...query, step }) }, `trajectories of step ${step}`), to(steps[place + 1], "next →"),
    element("span", { class: "note", id: "count" }, most)),
  legend([...names.map((name, i) => [name, COLOURS[i % COLOURS.length]]), ...Object.entries(TASKS)]), element("div", { class: "plain" }, picture));
}

// [[microseconds, how many spans are in progress from then on], ...]
function inProgress(spans) {
  const changes = spans.flatMap((span) => [[span.ts, 1], [span.ts + span.dur, -1]]).sort((a, b) => a[0] - b[0]), points = [];
  let count = 0;
  for (const [moment, change] of changes) {
    points.push([moment, count], [moment, count += change]);
  }
  return points;
}
