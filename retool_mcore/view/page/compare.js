// What differs between two trajectories: first by lines, then, within the lines that differ, by tokens.
const LARGEST = 4e6; // cells of a table; beyond it everything between the common ends counts as different

// [positions of `left` that `right` lacks, and the other way round], by the longest common subsequence.
function lacking(left, right) {
  let begin = 0, end = 0;
  const shorter = Math.min(left.length, right.length);
  while (begin < shorter && left[begin] === right[begin]) begin++;
  while (end < shorter - begin && left[left.length - 1 - end] === right[right.length - 1 - end]) end++;
  const rows = left.length - begin - end, columns = right.length - begin - end;
  const all = (count) => Array.from({ length: count }, (_, i) => begin + i);
  if (rows * columns > LARGEST) return [all(rows), all(columns)];
  const width = columns + 1, table = new Uint16Array((rows + 1) * width);
  for (let i = rows - 1; i >= 0; i--) {
    for (let j = columns - 1; j >= 0; j--) {
      table[i * width + j] = left[begin + i] === right[begin + j]
        ? table[(i + 1) * width + j + 1] + 1 : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  const only = [[], []];
  let i = 0, j = 0;
  while (i < rows || j < columns) {
    if (i < rows && j < columns && left[begin + i] === right[begin + j]) { i++; j++; }
    else if (j === columns || (i < rows && table[(i + 1) * width + j] >= table[i * width + j + 1])) only[0].push(begin + i++);
    else only[1].push(begin + j++);
  }
  return only;
}

// The tokens of a trajectory as lines: {text, start, end}, positions of tokens.
function lines(detail) {
  const found = [];
  let start = 0, text = "";
  detail.pieces.forEach((piece, i) => {
    text += piece;
    if (piece.includes("\n") || i === detail.pieces.length - 1) {
      found.push({ text, start, end: i + 1 });
      start = i + 1;
      text = "";
    }
  });
  return found;
}

// The lines at `places`, as runs of neighbours.
function runs(places) {
  const found = [];
  for (const place of places) {
    const last = found[found.length - 1];
    if (last && last[1] === place) last[1]++;
    else found.push([place, place + 1]);
  }
  return found;
}

// {sides: [positions of the tokens that the other lacks, of each], said}
function differences(left, right) {
  const own = [lines(left), lines(right)], sides = [new Set(), new Set()];
  const only = lacking(own[0].map((line) => line.text), own[1].map((line) => line.text)), hunks = only.map(runs);
  const span = (side, [first, last]) => [own[side][first].start, own[side][last - 1].end];
  const mark = (side, start, places) => places.forEach((place) => sides[side].add(start + place));
  // A run of lines of one side belongs to that of the other which follows as many common lines.
  const common = (side, place) => place - only[side].filter((n) => n < place).length;
  for (const hunk of hunks[0]) {
    const twin = hunks[1].find((other) => common(1, other[0]) === common(0, hunk[0])), [start, end] = span(0, hunk);
    if (!twin) { mark(0, start, Array.from({ length: end - start }, (_, i) => i)); continue; }
    const [first, last] = span(1, twin), found = lacking(left.pieces.slice(start, end), right.pieces.slice(first, last));
    mark(0, start, found[0]);
    mark(1, first, found[1]);
    twin.met = true;
  }
  for (const hunk of hunks[1].filter((other) => !other.met)) {
    const [start, end] = span(1, hunk);
    mark(1, start, Array.from({ length: end - start }, (_, i) => i));
  }
  const same = left.pieces.findIndex((piece, i) => piece !== right.pieces[i]) - left.prompt_tokens;
  const said = !sides[0].size && !sides[1].size ? "the same text"
    : `${same > 0 ? `${many(same)} tokens of the response are the same, then ` : ""}${many(sides[0].size)} and ${many(sides[1].size)} tokens differ`;
  return { sides, said };
}

// Brings the next token that differs, of those below the middle of the window, into view.
function nextDifference() {
  const found = [...document.querySelectorAll(".t.differs")].filter((node) => !node.previousElementSibling?.classList.contains("differs"));
  const below = found.find((node) => node.getBoundingClientRect().top > innerHeight / 2 + 2) || found[0];
  if (below) below.scrollIntoView({ block: "center" });
}
