// Samples: filtered, searched, with spans marked; near duplicates beside what was kept.

const BATCH = innerWidth < 600 ? 6 : 12, MARGIN = 200, SHORT = 1600, STEP = 20000;
// One of each rule and source, then the next of each: the first ones are as different as can be.
const inTurns = (all) => {
  const groups = new Map();
  for (const one of all) {
    const key = JSON.stringify([one.action, one.stage, one.rule, one.source]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(one);
  }
  const most = Math.max(0, ...[...groups.values()].map((group) => group.length));
  const turn = (_, index) => [...groups.values()].flatMap((group) => group[index] ?? []);
  return Array.from({ length: most }, turn).flat();
};

const samples = inTurns(facts.samples.items.map((one) => ({
  ...one,
  text: unpacked(one.text),
  survivor: one.survivor && { ...one.survivor, text: unpacked(one.survivor.text) },
})));
let shown = BATCH;

// A pattern for what was typed: any case, composed or not. Null for nothing.
const patternOf = (typed) => {
  const forms = [...new Set(["NFC", "NFD"].map((form) => typed.normalize(form)))].filter(Boolean);
  if (!typed.trim()) return null;
  const quoted = forms.map((form) => form.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&"));
  try {
    return new RegExp(quoted.map((form) => form.replace(/\\-/g, "[-]")).join("|"), "giu");
  } catch {
    return new RegExp("(?!)", "gu");
  }
};

const fieldsOf = (one) => [
  one.text?.text, one.id, one.url, one.source, one.stage, one.rule, one.reason, one.survivor?.id,
  one.survivor?.text?.text,
];

const matches = (one, find, without = "") => {
  for (const field of ["action", "stage", "rule", "source"])
    if (field !== without && state[field] && one[field] !== state[field]) return false;
  return !find || fieldsOf(one).some((text) => text && text.search(find) >= 0);
};

// ---- excerpts

const edge = (text, at) => (at > 0 && at < text.length && /[\udc00-\udfff]/.test(text[at]) ? at - 1 : at);

// The parts of a text worth showing at first: its beginning, and what surrounds marks and hits.
const windows = (text, points) => {
  if (text.length <= SHORT) return [[0, text.length]];
  const asked = points.map(([from, to]) => [from - MARGIN, Math.min(to, from + SHORT) + MARGIN]);
  asked.push([0, points.length ? MARGIN : SHORT / 2]);
  asked.sort((a, b) => a[0] - b[0]);
  const found = [];
  for (const [from, to] of asked) {
    const low = edge(text, Math.max(0, from)), high = edge(text, Math.min(text.length, to));
    const last = found.at(-1);
    if (last && low <= last[1] + 40) last[1] = Math.max(last[1], high);
    else found.push([low, high]);
  }
  return found;
};

const excerpt = (parent, { text, marks }, find = null) => {
  const place = add(parent, "div", "text");
  place.dir = "auto";
  const points = marks.filter(([, , kind]) => kind !== "gap").slice(0, 12);
  if (find) for (const hit of text.matchAll(find)) {
    points.push([hit.index, hit.index + hit[0].length]);
    if (points.length >= 20) break;
  }
  let at = 0;
  for (const [from, to] of windows(text, points)) {
    if (from > at) fold(place, text, at, from, marks, find);
    piece(place, text, from, to, marks, find);
    at = to;
  }
  if (at < text.length) fold(place, text, at, text.length, marks, find);
  if (!text) add(place, "span", "gap", "empty");
  requestAnimationFrame(() => foldTall(place));
};

// Folds a text of many lines, unless what is marked in it would not be seen.
const foldTall = (place) => {
  if (place.scrollHeight < place.clientHeight * 1.15) return;
  const mark = place.querySelector("mark");
  const isBelow = mark && mark.offsetTop > place.clientHeight - 40;
  place.classList.add(isBelow ? "is-open" : "is-folded");
  if (isBelow) return;
  const one = document.createElement("div");
  place.after(one);
  button(one, "Show the rest", () => {
    place.classList.replace("is-folded", "is-open");
    one.remove();
  });
};

const piece = (place, text, from, to, marks, find) => {
  let at = from;
  for (const [start, end, kind, left] of marks) {
    const isLast = start === to && to === text.length;
    const isHere = start === end ? start >= from && (start < to || isLast) : end > at && start < to;
    if (!isHere) continue;
    if (start > at) write(place, text.slice(at, start), find);
    if (kind === "gap") add(place, "span", "gap", `${bytes(left)} left out`);
    else write(add(place, "mark", kind), text.slice(Math.max(start, at), Math.min(end, to)), find);
    at = Math.max(at, Math.min(end, to));
  }
  if (at < to) write(place, text.slice(at, to), find);
};

// A button in place of a part of the text; it opens so much of it that the browser stays quick.
const fold = (place, text, from, to, marks, find) => {
  const one = button(place, `${count(to - from)} characters`, () => {
    const rest = document.createElement("span"), end = edge(text, Math.min(to, from + STEP));
    piece(rest, text, from, end, marks, find);
    if (end < to) fold(rest, text, end, to, marks, find);
    one.replaceWith(rest);
  }, "gap");
};

// ---- near duplicates

const LONG = 700;

// Words of two texts that the other lacks at that place: a longest common subsequence.
const differing = (left, right) => {
  let first = 0, a = left.length, b = right.length;
  while (first < a && first < b && left[first] === right[first]) first++;
  while (a > first && b > first && left[a - 1] === right[b - 1]) { a--; b--; }
  const rows = a - first, columns = b - first;
  const longest = new Uint16Array((rows + 1) * (columns + 1));
  const at = (i, j) => longest[i * (columns + 1) + j];
  for (let i = rows - 1; i >= 0; i--)
    for (let j = columns - 1; j >= 0; j--)
      longest[i * (columns + 1) + j] = left[first + i] === right[first + j]
        ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
  const found = [new Set(), new Set()];
  let i = 0, j = 0;
  while (i < rows || j < columns) {
    if (i < rows && j < columns && left[first + i] === right[first + j]) { i++; j++; }
    else if (j >= columns || (i < rows && at(i + 1, j) >= at(i, j + 1))) found[0].add(first + i++);
    else found[1].add(first + j++);
  }
  return found;
};

const worded = (text) => [...text.matchAll(/\S+/g)].slice(0, LONG);

const joined = (words, marked, kind) => {
  const found = [];
  words.forEach((word, index) => {
    if (!marked.has(index)) return;
    const last = found.at(-1), end = word.index + word[0].length;
    if (last && marked.has(index - 1)) last[1] = end;
    else found.push([word.index, end, kind]);
  });
  return found;
};

// Whether the end is left out: the other text need not have it.
const isOpen = ({ text, marks }) => marks.at(-1)?.[2] === "gap" && marks.at(-1)[0] === text.length;

const sideBySide = (card, one, find) => {
  const place = add(card, "div", "sides");
  const left = worded(one.text.text), right = worded(one.survivor.text.text);
  const [lost, gained] = differing(left.map((word) => word[0]), right.map((word) => word[0]));
  if (isOpen(one.text) || isOpen(one.survivor.text)) {
    for (let at = left.length - 1; lost.delete(at); at--);
    for (let at = right.length - 1; gained.delete(at); at--);
  }
  for (const [title, id, given, differences] of [
    ["dropped", null, one.text, joined(left, lost, "cut")],
    ["kept instead", one.survivor.id, one.survivor.text, joined(right, gained, "added")],
  ]) {
    const side = add(place, "div");
    const head = add(side, "p", "side");
    write(head, title);
    if (id !== null) write(add(head, "bdi", "id"), ` ${id}`, find);
    const marks = [...given.marks.filter(([, , kind]) => kind === "gap"), ...differences];
    excerpt(side, { text: given.text, marks: marks.sort((a, b) => a[0] - b[0]) }, find);
  }
};

// ---- cards

const DONE = { keep: "kept", drop: "dropped", cut: "cut", replace: "replaced" };

const drawSample = (root, one, find) => {
  const card = add(root, "article", "sample");
  const head = add(card, "header");
  add(head, "span", `action ${one.action}`, DONE[one.action] ?? one.action);
  if (one.stage) {
    write(add(add(head, "b"), "bdi"), ruleName(one), find);
    const figures = [], bound = isKnown(one.threshold) ? ` against ${number(one.threshold)}` : "";
    const places = ["cut", "replace"].includes(one.action) ? (one.value === 1 ? " place" : " places") : "";
    if (isKnown(one.value)) figures.push(number(one.value) + places + bound);
    const jaccard = number(one.survivor?.jaccard);
    if (jaccard !== UNKNOWN && jaccard !== number(one.value)) figures.push(`Jaccard ${jaccard}`);
    if (figures.length) add(head, "span", "value", figures.join(", "));
  }
  const origin = add(head, "span", "origin");
  write(origin, one.source, find);
  origin.append(" \u00b7 ");
  const id = write(add(origin, "bdi", "id"), String(one.id), find);
  id.title = `key ${plain(one.key)}`;
  if (one.reason && one.reason !== one.rule) write(add(card, "p", "note"), one.reason, find);
  if (one.url) write(add(add(card, "p", "url"), "bdi"), one.url, find);
  if (!one.text) add(card, "p", "note", "The text was not kept: set `ledger: {keep_text: true}`.");
  else if (one.survivor?.text) sideBySide(card, one, find);
  else excerpt(card, one.text, find);
  if (one.survivor && !one.survivor.text) {
    const line = add(card, "p", "note", "Kept instead: ");
    write(add(line, "bdi"), String(one.survivor.id), find);
  }
  const marked = one.text?.marks.filter(([, , kind]) => kind !== "gap").length ?? 0;
  if (!one.text || one.num_spans <= marked) return;
  add(card, "p", "note", marked ? `${some(one.num_spans - marked, "place")} more, not in this excerpt.`
    : `${some(one.num_spans, "place")}, not marked: the text was masked when it was sampled.`);
};

const choices = (field, find) => {
  const found = new Map();
  for (const one of samples)
    if (one[field] && matches(one, find, field)) found.set(one[field], (found.get(one[field]) ?? 0) + 1);
  return found;
};

const drawFilters = (find) => {
  for (const field of ["action", "stage", "rule", "source"]) {
    const select = document.getElementById(`filter-${field}`), found = choices(field, find);
    if (state[field] && !found.has(state[field])) found.set(state[field], 0);
    select.replaceChildren();
    const all = add(select, "option", "", `any ${field}`);
    all.value = "";
    for (const [value, num] of found) {
      const one = add(select, "option");
      one.textContent = `${plain(value)} (${count(num)})`;
      one.value = value;
    }
    select.value = state[field];
  }
};

const drawSamples = () => {
  const find = patternOf(state.q), root = document.getElementById("sample-list");
  const found = samples.filter((one) => matches(one, find));
  drawFilters(find);
  root.replaceChildren();
  const isNarrow = state.action || state.stage || state.rule || state.source || state.q;
  document.getElementById("sample-count").textContent = isNarrow
    ? `${count(found.length)} of ${count(samples.length)} samples` : `${count(samples.length)} samples`;
  document.getElementById("clear").hidden = !isNarrow;
  for (const one of found.slice(0, shown)) drawSample(root, one, find);
  if (!found.length) add(root, "p", "note", samples.length
    ? "No sample is like this. `corpuskit inspect` and `corpuskit why` read all of the run."
    : "There are no samples: nothing is finished yet, or none were asked for.");
  const more = found.length - shown;
  if (more > 0) button(root, `Show ${count(Math.min(BATCH, more))} more of ${count(more)}`, () => {
    const at = shown;
    shown += BATCH;
    drawSamples();
    const next = root.children[at];
    next.tabIndex = -1;
    next.focus({ preventScroll: true });
  }, "more");
};

const showSamples = (filter) => {
  Object.assign(state, { action: "", stage: "", rule: "", source: "", q: "" }, filter);
  shown = BATCH;
  document.getElementById("search").value = state.q;
  remember();
  drawSamples();
  const heading = document.getElementById("samples");
  heading.scrollIntoView();
  document.getElementById("samples-title").focus({ preventScroll: true });
};
