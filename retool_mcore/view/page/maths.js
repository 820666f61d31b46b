// Formulas within a text, as MathML, which needs no fonts; the browser draws it.
const LONGEST_FORMULA = 2000, LONGEST_TEXT = 50000; // characters: the search below is at most their product
// A dollar begins a formula before what is no space, and ends one behind what is none, if no digit follows: "$5 and $6" is none.
const FORMULA = new RegExp([
  `\\$\\$([^$]{1,${LONGEST_FORMULA}})\\$\\$`, `\\\\\\[([^]{1,${LONGEST_FORMULA}}?)\\\\\\]`, `\\\\\\(([^]{1,${LONGEST_FORMULA}}?)\\\\\\)`,
  `\\$(?!\\s)([^$\\n]{1,${LONGEST_FORMULA}}?)(?<!\\s)\\$(?!\\d)`, `(\\\\boxed\\{(?:[^{}]|\\{[^{}]{0,200}\\}){1,200}\\})`,
].join("|"), "g");

// Nodes and texts for `element`; what is no formula, or none that KaTeX knows, stays text.
function withMaths(text) {
  if (!text || text.length > LONGEST_TEXT) return [text];
  const found = [];
  let end = 0;
  for (const match of text.matchAll(FORMULA)) {
    const node = element("span", { class: "maths", title: match[0] }), display = match[1] !== undefined || match[2] !== undefined;
    try {
      katex.render(visible(match.slice(1).find((group) => group !== undefined)), node, { output: "mathml", displayMode: display, maxExpand: 200, maxSize: 20 });
    } catch (error) {
      if (!(error instanceof katex.ParseError)) throw error;
      continue;
    }
    found.push(text.slice(end, match.index), node);
    end = match.index + match[0].length;
  }
  return [...found, text.slice(end)];
}
