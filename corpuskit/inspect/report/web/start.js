// Puts the sections on the page, and listens.

const SECTIONS = [
  ["overview", drawOverview], ["funnel", drawFunnel], ["rules", drawRules], ["measures", drawMeasures],
  ["before-after", drawValues], ["duplicates", drawDuplicates], ["mixture", drawMixture],
  ["cost", drawCost], ["plan", drawPlan],
];
const CHOSEN = ["overview", "funnel", "rules", "measures", "before-after"];  // by unit and source

const draw = (names) => {
  for (const [id, paint] of SECTIONS) {
    if (!names.includes(id)) continue;
    const root = document.querySelector(`#${id} .content`);
    root.replaceChildren();
    paint(root);
  }
};

// ---- the address keeps what was chosen

const remember = () => {
  const kept = new URLSearchParams();
  for (const [key, value] of Object.entries(state))
    if (value && !(key === "unit" && value === "documents")) kept.set(key, value);
  history.replaceState(null, "", `#${kept}`);
};

const recall = () => {
  const given = location.hash.slice(1);
  if (!given.includes("=")) return false;
  const found = new URLSearchParams(given);
  for (const key of Object.keys(state)) state[key] = found.get(key) ?? (key === "unit" ? "documents" : "");
  if (!(state.unit in UNITS)) state.unit = "documents";
  if (!facts.sources.includes(state.of)) state.of = "";
  shown = BATCH;
  return ["stage", "rule", "source", "action", "q"].some((key) => state[key]);
};

const showControls = () => {
  for (const key of ["unit", "of"]) document.getElementById(`choose-${key}`).value = state[key];
  document.getElementById("search").value = state.q;
};

// ---- light and dark

const THEMES = ["auto", "light", "dark"];

const setTheme = (theme) => {
  const root = document.documentElement;
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
  const control = document.getElementById("theme");
  control.textContent = `Theme: ${theme}`;
  control.dataset.theme = theme;
};

const keep = (theme) => {
  try {
    localStorage.setItem("corpuskit-theme", theme);
  } catch { /* a browser may keep nothing for files */ }
};

const keptTheme = () => {
  try {
    const theme = localStorage.getItem("corpuskit-theme");
    return THEMES.includes(theme) ? theme : "auto";
  } catch {
    return "auto";
  }
};

// ---- listening

const listen = () => {
  const of = document.getElementById("choose-of");
  for (const source of facts.sources) {
    const one = add(of, "option");
    one.textContent = plain(source);
    one.value = source;
  }
  of.closest("label").hidden = facts.sources.length < 2;
  for (const key of ["unit", "of"])
    document.getElementById(`choose-${key}`).addEventListener("change", (event) => {
      state[key] = event.target.value;
      remember();
      draw(CHOSEN);
    });
  for (const field of ["action", "stage", "rule", "source"])
    document.getElementById(`filter-${field}`).addEventListener("change", (event) => {
      state[field] = event.target.value;
      if (field === "stage") state.rule = "";
      shown = BATCH;
      remember();
      drawSamples();
    });
  const search = document.getElementById("search");
  let waiting = 0;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      state.q = search.value;
      shown = BATCH;
      remember();
      drawSamples();
    }, 120);
  });
  const clear = () => showSamples({});
  document.getElementById("clear").addEventListener("click", clear);
  document.getElementById("theme").addEventListener("click", (event) => {
    const next = THEMES[(THEMES.indexOf(event.target.dataset.theme) + 1) % THEMES.length];
    setTheme(next);
    keep(next);
  });
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input, select, textarea");
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "Escape" && event.target === search && search.value) {
      event.preventDefault();
      search.value = "";
      search.dispatchEvent(new Event("input"));
    }
  });
  window.addEventListener("hashchange", () => {
    if (!location.hash.includes("=")) return;
    const isFiltered = recall();
    showControls();
    draw(CHOSEN);
    drawSamples();
    if (isFiltered) document.getElementById("samples").scrollIntoView();
  });
};

setTheme(keptTheme());
listen();
const isFiltered = recall();
showControls();
draw(SECTIONS.map(([id]) => id));
drawSamples();
if (facts.samples.masked) document.getElementById("masked").hidden = false;
document.body.classList.add("is-drawn");
if (isFiltered) document.getElementById("samples").scrollIntoView();
else if (location.hash.length > 1) document.getElementById(location.hash.slice(1))?.scrollIntoView();
