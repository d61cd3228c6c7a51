// The facts, how figures are written, and how text from anywhere becomes nodes: never as markup.
const facts = JSON.parse(document.getElementById("facts").textContent);
const SVG = "http://www.w3.org/2000/svg";
const state = { unit: "documents", of: "", stage: "", rule: "", source: "", action: "", q: "" };

// What does not show, or changes how other characters show: controls (line feed and tab apart),
// directions, zero widths, lone surrogates, tags. Joiners stay: scripts and emoji need them.
const HIDDEN = new RegExp(
  "[\\0-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e" +
  "\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\p{Cs}\\u{e0000}-\\u{e007f}]", "gu");

const escaped = (character) => {
  const code = character.codePointAt(0).toString(16);
  return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
};

// A string for titles and options, where no nodes can stand.
const plain = (text) => String(text).replace(HIDDEN, escaped).replace(/[\n\t]/g, " ");

// Appends text with hidden characters as marked escapes, and what `find` matches as hits.
const write = (parent, text, find = null) => {
  let at = 0;
  if (find) {
    for (const hit of text.matchAll(find)) {
      if (!hit[0]) continue;
      reveal(parent, text.slice(at, hit.index));
      reveal(add(parent, "mark", "hit"), hit[0]);
      at = hit.index + hit[0].length;
    }
  }
  reveal(parent, text.slice(at));
  return parent;
};

const reveal = (parent, text) => {
  let at = 0;
  for (const hit of text.matchAll(HIDDEN)) {
    if (hit.index > at) parent.append(text.slice(at, hit.index));
    const shown = add(parent, "span", "escape");
    shown.textContent = escaped(hit[0]);
    shown.title = `U+${hit[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    at = hit.index + hit[0].length;
  }
  if (at < text.length) parent.append(text.slice(at));
};

// Appends an element; words may come from anywhere.
const add = (parent, name, classes = "", words = null) => {
  const one = document.createElement(name);
  if (classes) one.className = classes;
  if (words !== null) write(one, String(words));
  parent.append(one);
  return one;
};

const shape = (parent, name, attributes = {}, words = null) => {
  const one = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
  if (words !== null) one.textContent = plain(words);
  parent.append(one);
  return one;
};

const button = (parent, words, action, classes = "link") => {
  const one = add(parent, "button", classes, words);
  one.type = "button";
  one.addEventListener("click", action);
  return one;
};

// ---- figures

const UNKNOWN = "\u2013";
const isKnown = (value) => value !== null && value !== undefined;
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

const count = (value) => (isKnown(value) ? whole.format(value) : UNKNOWN);

// Three digits and the unit of the thousands.
const scaled = (value, units) => {
  let size = Math.abs(value), unit = 0;
  while (size >= 999.5 && unit < units.length - 1) {
    size /= 1000;
    unit++;
  }
  const digits = unit === 0 || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return `${value < 0 ? "-" : ""}${size.toFixed(digits)} ${units[unit]}`.trim();
};

const brief = (value) => {
  if (!isKnown(value)) return UNKNOWN;
  return Math.abs(value) < 10000 ? whole.format(value) : scaled(value, ["", "k", "M", "B", "T"]);
};

const number = (value) => {
  if (!isKnown(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e15)) return value.toExponential(3);
  return value.toLocaleString("en", { maximumFractionDigits: size >= 1000 ? 0 : size >= 10 ? 2 : 4 });
};

const bytes = (value) => (isKnown(value) ? scaled(value, ["B", "kB", "MB", "GB", "TB", "PB"]) : UNKNOWN);

const percent = (part, total) => {
  if (!isKnown(part) || !total) return UNKNOWN;
  const share = (100 * part) / total;
  if (part && Math.abs(share) < 0.05) return share < 0 ? "> -0.1 %" : "< 0.1 %";
  if (part !== total && share > 99.95 && share < 100) return "> 99.9 %";
  return `${share.toFixed(1)} %`;
};

const seconds = (value) => {
  if (!isKnown(value)) return UNKNOWN;
  if (value < 10) return `${value.toFixed(value < 1 ? 2 : 1)} s`;
  if (value < 120) return `${value.toFixed(0)} s`;
  if (value < 7200) return `${(value / 60).toFixed(1)} min`;
  return value < 172800 ? `${(value / 3600).toFixed(1)} h` : `${(value / 86400).toFixed(1)} d`;
};

const time = (value) => {
  if (!isKnown(value)) return UNKNOWN;
  return String(value).replace("T", " ").replace(/(\.\d+)?(Z|\+00:00)$/, " UTC");
};

// One figure of a unit, as tables show it: rounded, the exact one in its title.
const UNITS = {
  documents: { name: "documents", show: count },
  text_bytes: { name: "text", show: bytes },
  tokens: { name: "tokens", show: brief },
};

const figure = (value, how = "exact", unit = state.unit) => {
  const words = UNITS[unit].show(value);
  const isRough = how === "estimated" && isKnown(value);
  const name = unit === "text_bytes" ? "bytes of text" : UNITS[unit].name;
  return {
    text: isRough ? `~${words}` : words,
    title: isKnown(value) ? `${count(value)} ${name}${isRough ? ", estimated" : ""}` : "not known",
  };
};

// A count and its word: 1 file, 2 files.
const some = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;

const sum = (values) => values.reduce((total, one) => total + (one ?? 0), 0);
const chosen = () => facts.sources.filter((name) => !state.of || name === state.of);
const volume = (one, unit = state.unit) => figure(one?.[unit], one?.[`${unit}_how`], unit);

// Joins the pieces of an excerpt: its text, what is marked in it, and where something was left out.
const unpacked = (given) => {
  if (!given) return null;
  let text = "";
  const marks = [];
  for (const [kind, content] of given.pieces) {
    if (kind === "gap") marks.push([text.length, text.length, kind, content]);
    else {
      if (kind) marks.push([text.length, text.length + content.length, kind]);
      text += content;
    }
  }
  return { text, marks };
};

// ---- tables

const BAR = { name: "", wide: true };
const num = (name, more = {}) => ({ name, num: true, ...more });
const size = (value) => ({ text: bytes(value), title: `${count(value)} bytes` });
const code = (words) => (cell) => write(add(cell, "code"), String(words ?? UNKNOWN));

// columns: [{name, num, wide}]; a cell is a string, a {text, title}, a node, or a function of the td.
const table = (parent, title, columns, rows, classes = "") => {
  const frame = add(parent, "div", "table");
  const made = add(frame, "table", classes);
  add(made, "caption", "unseen", title);
  const head = add(add(made, "thead"), "tr");
  for (const column of columns) {
    const cell = add(head, "th", kind(column), column.name);
    cell.scope = "col";
    if (column.title) cell.title = column.title;
  }
  const body = add(made, "tbody");
  for (const row of rows) {
    const line = add(body, "tr", row.classes ?? "");
    columns.forEach((column, place) => {
      const cell = add(line, place === 0 ? "th" : "td", kind(column));
      if (place === 0) cell.scope = "row";
      fill(cell, (row.cells ?? row)[place]);
    });
  }
  return made;
};

const kind = (column) =>
  [column.num && "num", column.wide && "wide", column.classes].filter(Boolean).join(" ");

const fill = (cell, given) => {
  if (given instanceof Node) cell.append(given);
  else if (typeof given === "function") given(cell);
  else if (given && typeof given === "object") {
    write(cell, String(given.text));
    if (given.title) cell.title = plain(given.title);
  } else write(cell, String(given ?? ""));
};

// A name of ours or of anybody's: it may break after an underscore, as narrow screens need.
const named = (parent, words) => {
  const place = add(parent, "bdi");
  String(words).split(/(?<=[_./])(?=.)/u).forEach((part, index) => {
    if (index && index < 20) add(place, "wbr");
    write(place, part);
  });
  return place;
};

const name = (words) => (cell) => named(cell, words);

const details = (parent, summary, open = false) => {
  const one = add(parent, "details");
  one.open = open;
  add(one, "summary", "", summary);
  return one;
};

const isDone = () => facts.run.state === "finished" || facts.run.state === "changed";

// Says how far the counts of a section reach; returns whether there is anything to draw.
const reach = (parent, section) => {
  if (section.recorded === "none") {
    add(parent, "p", "note",
      "Nothing is counted yet: it is when the phase that reads the documents is finished.");
    return false;
  }
  if (section.sampled) add(parent, "p", "note", `Counted in ${count(section.sampled.parts_read)} ` +
    `of ${count(section.sampled.parts)} cells of the corpus, not scaled up.`);
  return true;
};

// Shows the first rows of a long list, the others at the press of a button.
const shortened = (parent, all, most, draw) => {
  const place = add(parent, "div");
  if (all.length <= most + 4) {
    draw(place, all);
    return;
  }
  draw(place, all.slice(0, most));
  button(place, `Show all ${count(all.length)}`, () => {
    place.replaceChildren();
    draw(place, all);
    const frame = place.querySelector(".table");
    frame.tabIndex = 0;
    frame.focus({ preventScroll: true });
  }, "more");
};
