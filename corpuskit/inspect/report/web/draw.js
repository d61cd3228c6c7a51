// Drawings: bars inside tables, histograms. Colours come from the style sheet by class.

// parts: [[from, to, class, title]] as shares of the width.
const bar = (parts) => (cell) => {
  const one = shape(cell, "svg", {
    class: "bar", viewBox: "0 0 1000 12", preserveAspectRatio: "none", "aria-hidden": "true",
  });
  for (const [from, to, classes, title] of parts) {
    const low = Math.max(0, Math.min(1, from || 0)), high = Math.max(low, Math.min(1, to || 0));
    if (high === low) continue;
    const width = Math.max(2, 1000 * (high - low));
    const piece = shape(one, "rect", {
      class: classes, x: Math.min(1000 * low, 1000 - width), y: 0, width, height: 12,
    });
    if (title) shape(piece, "title", {}, title);
  }
};

// Places of values on an axis: as they are up to 2, by doublings beyond, mirrored below 0.
const placing = (isEven) => {
  const place = (value) => {
    if (value < 0) return -place(-value);
    return isEven || value <= 1 ? value : 1 + Math.log2(value);
  };
  return place;
};

const same = (a, b) => Math.abs(a - b) <= 1e-9 * Math.max(1, Math.abs(a), Math.abs(b));

// Whether what a bin holds (above low, up to high) fails: lost, kept, or unsure where the threshold
// lies inside it, or where it may hold the threshold itself, which passes.
const sideOf = (threshold, fails) => (low, high) => {
  if (threshold === null || !fails) return "kept";
  const isEnd = same(high, threshold), isBelow = high < threshold && !isEnd;
  const isBeyond = low > threshold || (same(low, threshold) && low !== high);
  if (fails === "above") return isBeyond ? "lost" : isBelow || isEnd ? "kept" : "unsure";
  if (isBelow) return "lost";
  return isBeyond || (isEnd && low === high) ? "kept" : "unsure";
};

// Bins that hold anything, with finite ends: [[low, high, counts]], ascending.
const held = (edges, counts) => {
  const found = [];
  edges.forEach(([low, high], index) => {
    const here = counts.map((one) => one[index] ?? 0);
    if (!here.some(Boolean)) return;
    const from = low ?? (high >= 0 ? 0 : 2 * high), to = high ?? Math.max(2 * from, from + 1);
    found.push([Math.min(from, to), to, here]);
  });
  return found;
};

// Merges bins into slots of one width that begin at the threshold, so that no bar crosses it; what
// is exactly 0 has a slot of its own. Bins wider than a slot stay alone. `under` is what bars of the
// same slot that come first hold, per unit of width: those that are unsure stand on the others.
const slotted = (bins, threshold, place, side, width) => {
  const anchor = place(threshold ?? 0), found = [];
  for (const [low, high, counts] of bins) {
    const from = place(low), to = place(high), kind = side(low, high);
    const isPoint = low === high, isAlone = to - from > width * 1.001;
    const slot = isPoint ? Math.ceil((from - anchor) / width - 1e-9) - 1
      : Math.floor(((from + to) / 2 - anchor) / width);
    const last = found.at(-1);
    if (last && !isAlone && !last.isAlone && last.slot === slot && last.kind === kind) {
      last.high = high;
      counts.forEach((one, index) => { last.counts[index] += one; });
      continue;
    }
    const left = anchor + slot * width;
    const ends = isAlone ? { from, to } : { from: left, to: left + width };
    found.push({ low, high, counts: [...counts], kind, slot, isAlone, ...ends });
  }
  const filled = new Map();
  for (const one of found) {
    const key = one.isAlone ? one : one.slot, each = 1 / (one.to - one.from);
    one.under = filled.get(key) ?? one.counts.map(() => 0);
    one.over = one.counts.map((value, index) => one.under[index] + value * each);
    filled.set(key, one.over);
  }
  return found;
};

const axis = (low, high, place, isEven, most) => {
  const found = [];
  if (isEven) {
    const raw = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((one) => one * power >= raw * 0.999) * power;
    for (let one = Math.ceil(low / step - 1e-9); one * step <= high + step * 1e-6; one++)
      found.push(Number((one * step).toPrecision(12)));
    return found;
  }
  const tens = [];
  for (let power = 0; power < 20; power++) tens.push(10 ** power);
  const all = [...tens.map((one) => -one).reverse(), 0, ...tens].filter((one) => one >= low && one <= high);
  const every = Math.ceil(all.length / most);
  if (all.length >= 3) return all.filter((_, index) => index % every === 0);
  const halves = tens.flatMap((one) => [one, 2 * one, 5 * one]);
  const near = halves.filter((one) => one >= low && one <= high);
  const few = Math.ceil(near.length / most) || 1;
  return near.filter((_, index) => index % few === 0);
};

// options: {threshold, fails, label, show: value -> words, layers, title, tall}
// counts: one list per layer; the first is filled, a second one is an outline. Drawn in thousandths
// of whatever width there is; words are HTML, so that they keep their size. Returns what it drew.
const histogram = (parent, edges, counts, options) => {
  const threshold = options.threshold ?? null, show = options.show ?? number;
  const fine = held(edges, counts), side = sideOf(threshold, options.fails);
  const ends = [...fine.flatMap(([low, high]) => [low, high]), ...(threshold === null ? [] : [threshold])];
  const lowest = Math.min(...ends), top = Math.max(...ends);
  const highest = top === lowest ? lowest + 1 : top;
  const isEven = Math.max(Math.abs(lowest), Math.abs(highest)) <= 2, place = placing(isEven);
  const width = (place(highest) - place(lowest) || 1) / (options.tall ? 60 : 32);
  const bars = slotted(fine, threshold, place, side, width);
  const begin = Math.min(place(lowest), ...bars.map((one) => one.from));
  const span = Math.max(place(highest), ...bars.map((one) => one.to)) - begin || 1;
  const x = (placed) => (1000 * (placed - begin)) / span;
  const most = Math.max(...bars.flatMap((one) => one.over)) || 1;
  const least = options.tall ? 1 : 2, full = threshold === null ? 96 : 84;  // room for the label
  const y = (value) => (value ? 100 - Math.max(least, (value / most) * full) : 100);
  const plot = add(parent, "div", options.tall ? "plot tall" : "plot");
  const svg = shape(plot, "svg", {
    viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img", "aria-label": plain(options.title),
  });
  if (threshold !== null && options.fails) {
    const at = x(place(threshold)), [from, to] = options.fails === "below" ? [0, at] : [at, 1000];
    shape(svg, "rect", { class: "failing", x: from, y: 0, width: Math.max(0, to - from), height: 100 });
  }
  let outline = "", end = null;
  for (const one of bars) {
    const left = x(one.from), wide = x(one.to) - left, up = y(one.over[0]), down = y(one.under[0]);
    const box = { x: left, y: up, width: Math.max(1, wide - 2), height: down - up };
    if (up < down) shape(svg, "rect", { class: one.kind, ...box });
    if (counts.length > 1) {
      const isApart = end === null || left - end > 0.5;
      if (isApart) outline += `${end === null ? "" : "V100"}M${left.toFixed(1)} 100`;
      outline += `V${y(one.over[1]).toFixed(1)}H${(left + wide).toFixed(1)}`;
      end = left + wide;
    }
    const area = shape(svg, "rect", { class: "hover", x: left, y: 0, width: wide, height: down });
    const words = counts.length === 1 ? `${count(one.counts[0])} documents`
      : options.layers.map((layer, index) => `${layer} ${count(one.counts[index])}`).join(", ");
    const range = one.low === one.high ? show(one.low) : `${show(one.low)} to ${show(one.high)}`;
    shape(area, "title", {}, `${range}: ${words}`);
  }
  if (outline) shape(svg, "path", { class: "outline", d: `${outline}V100` });
  const ticks = add(plot, "div", "ticks");
  ticks.setAttribute("aria-hidden", "true");
  for (const value of axis(lowest, highest, place, isEven, options.tall ? 8 : 5)) {
    const at = x(place(value));
    const label = add(ticks, "span", at < 50 ? "first" : at > 950 ? "last" : "", show(value));
    label.style.left = `${at / 10}%`;
  }
  if (threshold !== null) {
    const at = x(place(threshold));
    shape(svg, "line", { class: "threshold", x1: at, x2: at, y1: 0, y2: 100 });
    const label = add(plot, "span", "bound", options.label ?? number(threshold));
    if (at > 500) label.style.right = `${100 - at / 10}%`;
    else label.style.left = `${at / 10}%`;
  }
  return bars;
};
