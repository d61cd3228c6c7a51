// Draws the curves of every training section of the page from the JSON inside it.
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const LEFT = 54, RIGHT = 10, TOP = 8, BOTTOM = 22, COLORS = 12;

  const make = (parent, name, attributes = {}, words = "") => {
    const one = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) {
      // A strict content security policy forbids the attribute, not the property.
      if (key === "style") one.style.cssText = value;
      else one.setAttribute(key, value);
    }
    if (words) one.textContent = words;
    parent.append(one);
    return one;
  };

  const element = (parent, name, classes = "", words = "") => {
    const one = document.createElement(name);
    if (classes) one.className = classes;
    if (words) one.textContent = words;
    parent.append(one);
    return one;
  };

  const shown = (value) => {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
    const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 3 : 4;
    return value.toLocaleString("en", { maximumFractionDigits: digits });
  };

  const brief = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
  const onAxis = (value) => (Math.abs(value) >= 1e5 ? brief.format(value) : shown(value));

  // A running mean that forgets, without the pull of its first value; from both ends, so that it
  // does not lag behind.
  const smooth = (values, weight) => {
    const forth = forget(values, weight);
    const back = forget([...values].reverse(), weight).reverse();
    return forth.map((value, index) => (value + back[index]) / 2);
  };

  const forget = (values, weight) => {
    let mean = 0, norm = 0;
    return values.map((value) => {
      mean = weight * mean + (1 - weight) * value;
      norm = weight * norm + (1 - weight);
      return mean / norm;
    });
  };

  const ticks = (low, high, count, isLog) => {
    if (isLog) {
      const found = [];
      const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
      const steps = last - first > 3 ? [1] : [1, 2, 5];
      const every = Math.ceil((last - first) / 6) || 1;  // powers of ten between two lines
      for (let power = first; power <= last; power += every)
        for (const step of steps) found.push(step * 10 ** power);
      return found.filter((one) => one >= low * 0.999 && one <= high * 1.001);
    }
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((one) => one * power >= raw) * power;
    const found = [];
    for (let one = Math.ceil(low / step); one * step <= high + step / 1e6; one++)
      found.push(one * step);
    return found;
  };

  const scale = (low, high, from, to, isLog) => {
    const f = isLog ? Math.log10 : (value) => value;
    const first = f(low), span = f(high) - f(low) || 1;
    return (value) => from + ((f(value) - first) / span) * (to - from);
  };

  // Values far outside of what the others have leave the picture: one spike of 1e4 would hide all.
  const extent = (chart, isLog) => {
    const all = chart.series.flatMap((one) => [...one.mean, ...(one.low ?? []), ...(one.high ?? [])]);
    const values = all.filter((value) => !isLog || value > 0).sort((a, b) => a - b);
    const at = (share) => values[Math.round(share * (values.length - 1))];
    const least = values[0], most = values.at(-1);
    if (isLog) return [Math.max(least, at(0.02) / 3) / 1.2, Math.min(most, at(0.98) * 30) * 1.2];
    const body = at(0.98) - at(0.02) || Math.abs(at(0.5)) || 1;
    const low = Math.max(least, at(0.02) - body), high = Math.min(most, at(0.98) + body);
    const margin = (high - low) * 0.05 || Math.abs(high) * 0.05 || 0.5;
    return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
  };

  const path = (xs, ys, x, y) => {
    let drawn = "", pen = "M";
    xs.forEach((value, index) => {
      const place = y(ys[index]);
      if (Number.isFinite(place)) {
        drawn += `${pen}${x(value).toFixed(1)} ${Math.max(-1e4, Math.min(1e4, place)).toFixed(1)}`;
        pen = "L";
      }
    });
    return drawn;
  };

  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle;
      else high = middle;
    }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };

  const color = (series) => `var(--c${series.color % COLORS})`;

  let clips = 0;

  const draw = (figure, chart, marks, bounds, view) => {
    figure.querySelector("svg")?.remove();
    const width = Math.max(220, figure.clientWidth - 20), height = chart.wide ? 300 : 200;
    const svg = make(figure, "svg", {
      viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": chart.title,
      tabindex: 0,
    });
    const weight = chart.smooth ? view.smoothing : 0;
    const isLogY = chart.log && chart.series.every((one) => one.mean.some((value) => value > 0));
    const [low, high] = extent(chart, isLogY);
    const x = scale(bounds[0], bounds[1], LEFT, width - RIGHT, view.isLog);
    const y = scale(low, high, height - BOTTOM, TOP, isLogY);

    for (const value of ticks(low, high, 5, isLogY)) {
      make(svg, "line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) });
      make(svg, "text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, onAxis(value));
    }
    let free = 0;
    for (const value of ticks(bounds[0], bounds[1], Math.max(4, width / 110), view.isLog)) {
      const words = onAxis(value), half = words.length * 3.4;
      const place = Math.min(Math.max(x(value), LEFT + half), width - RIGHT - half);
      if (place - half < free) continue;
      free = place + half + 8;
      make(svg, "text", { x: place, y: height - 6, "text-anchor": "middle" }, words);
    }

    const id = `training-clip-${clips++}`;
    const clip = make(make(svg, "defs"), "clipPath", { id });
    make(clip, "rect", {
      x: LEFT, y: TOP, width: width - LEFT - RIGHT, height: height - TOP - BOTTOM,
    });
    const plot = make(svg, "g", { "clip-path": `url(#${id})` });
    const lines = chart.series.map((one) => (weight ? smooth(one.mean, weight) : one.mean));
    chart.series.forEach((one, index) => {
      const stroke = `stroke:${color(one)}`;
      if (one.low && !one.dashed) {
        const back = path([...one.x].reverse(), [...one.low].reverse(), x, y).replace("M", "L");
        const area = { class: "band", d: path(one.x, one.high, x, y) + back };
        make(plot, "path", { ...area, style: `fill:${color(one)}` });
      }
      if (weight) make(plot, "path", { class: "line faint", d: path(one.x, one.mean, x, y), style: stroke });
      const dash = one.dashed ? ";stroke-dasharray:2 4" : "";
      make(plot, "path", { class: "line", d: path(one.x, lines[index], x, y), style: stroke + dash });
      if (chart.dots || one.x.length === 1)
        one.x.forEach((value, place) => {
          const r = one.x.length > 60 ? 1.5 : 3;
          make(plot, "circle", { cx: x(value), cy: y(one.mean[place]), r, style: `fill:${color(one)}` });
        });
    });
    if (chart.marks)
      for (const mark of marks) {
        const stroke = `stroke:var(--${mark.kind === "start" ? "start" : "bad"})`;
        const at = x(Math.min(Math.max(mark.x, bounds[0]), bounds[1]));
        const line = { class: "mark", x1: at, x2: at, y1: TOP, y2: height - BOTTOM, style: stroke };
        make(make(plot, "line", line), "title", {}, `${mark.kind}: ${mark.text}`);
      }
    follow(figure, chart, marks, lines, svg, x, width, height, bounds, view);
  };

  // Shows the values at the pointer, or after the arrow keys, and the last ones otherwise.
  const follow = (figure, chart, marks, lines, svg, x, width, height, bounds, view) => {
    const legend = figure.querySelector(".legend");
    const xs = chart.series.reduce((a, b) => (a.x.length >= b.x.length ? a : b)).x;
    const hair = make(svg, "line", { class: "hair", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
    let index = null;
    const tell = () => {
      legend.textContent = "";
      const at = index === null ? null : xs[index];
      chart.series.forEach((one, number) => {
        const entry = element(legend, "span");
        entry.style.color = color(one);
        element(entry, "i", one.dashed ? "dashed" : "");
        const place = at === null ? one.x.length - 1 : nearest(one.x, at);
        let words = `${one.name} ${shown(lines[number][place])}`;
        if (at !== null && one.low && one.low[place] !== one.high[place])
          words += ` (${shown(one.low[place])} to ${shown(one.high[place])})`;
        entry.append(words);
      });
      hair.setAttribute("visibility", at === null ? "hidden" : "visible");
      if (at === null) return;
      hair.setAttribute("x1", x(at));
      hair.setAttribute("x2", x(at));
      element(legend, "span", "at", `after ${Math.round(at).toLocaleString("en")} steps`);
      if (chart.marks)
        for (const mark of marks.filter((one) => Math.abs(x(one.x) - x(at)) < 4).slice(0, 3))
          element(legend, "span", mark.kind === "start" ? "at" : "bad", `${mark.kind}: ${mark.text}`);
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const share = ((event.clientX - box.left) * (width / box.width) - LEFT) / (width - LEFT - RIGHT);
      const [low, high] = bounds;
      const at = view.isLog ? low * (high / low) ** share : low + share * (high - low);
      index = nearest(xs, at);
      tell();
    });
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      index = Math.min(Math.max((index ?? xs.length - 1) + move, 0), xs.length - 1);
      tell();
    });
    for (const name of ["pointerleave", "blur"])
      svg.addEventListener(name, () => {
        index = null;
        tell();
      });
    tell();
  };

  const begin = (section) => {
    const drawn = JSON.parse(section.querySelector('script[type="application/json"]').textContent);
    const place = section.querySelector(".charts");
    if (!drawn.charts.length) return;
    const slider = section.querySelector(".smoothing"), box = section.querySelector(".logarithmic");
    const all = drawn.charts.flatMap((chart) => chart.series.flatMap((one) => [one.x[0], one.x.at(-1)]));
    const first = Math.max(1, Math.min(...all)), last = Math.max(...all);
    const bounds = [first, last > first ? last : first + 1];
    const figures = drawn.charts.map((chart) => {
      const figure = element(place, "figure", chart.wide ? "wide" : "");
      element(figure, "figcaption", "", chart.title);
      element(figure, "div", "legend");
      return [figure, chart];
    });
    const longest = Math.max(0, ...drawn.charts.flatMap((chart) => chart.series.map((one) => one.x.length)));
    slider.value = longest > 100 ? 0.8 : 0;
    const redraw = () => {
      const view = { smoothing: Number(slider.value), isLog: box.checked };
      for (const [figure, chart] of figures) draw(figure, chart, drawn.marks, bounds, view);
    };
    slider.addEventListener("input", redraw);
    box.addEventListener("change", redraw);
    let width = 0;
    new ResizeObserver(() => {
      if (place.clientWidth !== width) {
        width = place.clientWidth;
        requestAnimationFrame(redraw);
      }
    }).observe(place);
  };

  for (const section of document.querySelectorAll("section.training")) {
    if (section.dataset.drawn) continue;  // the script comes once per section
    section.dataset.drawn = "yes";
    begin(section);
  }
})();
