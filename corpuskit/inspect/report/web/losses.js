// What was lost where: figures at a glance, the funnel, the rules, the measures.

// Opens the samples of a stage, or of one of its rules.
const toSamples = (words, filter, classes = "link") => (cell) => {
  const one = button(cell, "", () => showSamples(filter), classes);
  named(one, words);
  one.title = "Show samples";
};

const ruleName = (one) => (!one.rule || one.rule === one.stage ? one.stage : `${one.stage}: ${one.rule}`);

const stageRows = () => facts.funnel.filter((row) => row.kind !== "source");
const sourceRows = () => facts.funnel.filter((row) => row.kind === "source");

// All sources as one row of the funnel.
const readRow = () => {
  const rows = sourceRows();
  const added = (side) => Object.fromEntries(Object.keys(UNITS).flatMap((unit) => [
    [unit, rows.map((row) => row[side][unit]).reduce(together, 0)],
    [`${unit}_how`, rows.some((row) => row[side][`${unit}_how`] === "estimated") ? "estimated" : "exact"],
  ]));
  return {
    stage: "read", sources: Object.assign({}, ...rows.map((row) => row.sources)),
    in: added("in"), out: added("out"),
  };
};

// Documents, text or tokens of a funnel row, of the sources that are chosen.
const through = (row, side, unit = state.unit) => {
  const given = state.of ? row.sources[state.of]?.[side] : row[side];
  if (given) return { value: given[unit], how: given[`${unit}_how`] ?? "exact" };
  const isAbsent = state.of && isKnown(row[side]?.[unit]);
  return { value: isAbsent ? 0 : null, how: "exact" };
};

const lossOf = (row, unit = state.unit) => {
  const before = through(row, "in", unit), after = through(row, "out", unit);
  const isRough = [before.how, after.how].includes("estimated");
  const isHere = isKnown(before.value) && isKnown(after.value);
  return { value: isHere ? before.value - after.value : null, how: isRough ? "estimated" : "exact" };
};

// A sum that is known only if both are.
const together = (a, b) => (isKnown(a) && isKnown(b) ? a + b : null);

const dropsOf = () => facts.drops.filter((one) => !state.of || one.source === state.of);

// Rules over sources, the greatest loss first. Tokens of rules are not counted: text is shown instead.
const byRule = (unit) => {
  const found = new Map();
  for (const one of dropsOf()) {
    const key = JSON.stringify([one.stage, one.rule]);
    const { stage, rule: itself } = one;
    const rule = found.get(key) ?? { stage, rule: itself, documents: 0, text_bytes: 0, how: "exact" };
    rule.documents += one.documents;
    rule.text_bytes = together(rule.text_bytes, one.text_bytes);
    if (one.text_bytes_how === "estimated") rule.how = "estimated";
    found.set(key, rule);
  }
  return [...found.values()].sort((a, b) => (b[unit] ?? -1) - (a[unit] ?? -1) || b.documents - a.documents);
};

const drawOverview = (root) => {
  const { totals } = facts;
  const first = readRow();
  const read = through(first, "in", "documents").value;
  const ending = [first, ...stageRows()]
    .findLast((row) => isKnown(through(row, "out", "documents").value)) ?? first;
  const left = through(ending, "out", "documents").value;
  if (isKnown(read)) {
    const line = add(root, "p", "headline");
    add(line, "b", "", `${count(left)} of ${count(read)} documents`);
    line.append(isDone() ? " are left, " : " are left so far, ");
    add(line, "b", "", percent(left, read));
    if (state.of) write(line, ` of ${state.of}`);
    line.append(".");
    const worst = byRule("documents").filter((one) => one.documents).slice(0, 3);
    if (worst.length) {
      const words = add(root, "p", "worst", "Most were lost to ");
      worst.forEach((one, index) => {
        if (index) words.append(index === worst.length - 1 ? " and " : ", ");
        toSamples(ruleName(one), { stage: one.stage, rule: one.rule, source: state.of })(words);
        words.append(` (${count(one.documents)}, ${percent(one.documents, read)})`);
      });
      words.append(".");
    }
  }
  for (const one of totals.accounts.filter((account) => account.num_missing))
    add(root, "p", "bad", `${one.source}: ${count(one.num_missing)} documents are neither kept nor ` +
      "in the ledger. Run `corpuskit verify`.");
  const cards = volumeCards(first, ending);
  if (!state.of) cards.push(...runCards(totals));
  const list = add(root, "dl", "figures");
  for (const [title, value, more, hint] of cards) {
    const card = add(list, "div");
    add(card, "dt", "", title);
    const shown = add(card, "dd", "", value.text);
    if (value.title) shown.title = value.title;
    if (more) add(card, "dd", "more", more).title = hint ?? "";
  }
};

const volumeCards = (first, ending) => {
  const cards = [];
  const titles = { documents: "Documents left", text_bytes: "Text left", tokens: "Tokens left" };
  const isPart = state.of || !isDone();
  const whole = (side, unit) => ({
    value: facts.totals[side][unit], how: facts.totals[side][`${unit}_how`] ?? "exact",
  });
  for (const [unit, title] of Object.entries(titles)) {
    const before = isPart ? through(first, "in", unit) : whole("read", unit);
    const after = isPart ? through(ending, "out", unit) : whole("left", unit);
    if (!isKnown(after.value)) continue;
    const start = figure(before.value, before.how, unit), share = percent(after.value, before.value);
    const more = isKnown(before.value) ? `of ${start.text}, ${share}` : "";
    cards.push([title, figure(after.value, after.how, unit), more, start.title]);
  }
  return cards;
};

const runCards = ({ changed, tokens, cpu_seconds: cpu, peak_rss_bytes: peak, input }) => {
  const cards = [["Changes", { text: count(changed) }, "times a stage cut or replaced parts of a document"]];
  if (isKnown(tokens.rows)) {
    const padding = percent(tokens.padding, tokens.stored + tokens.padding);
    const more = `of ${count(tokens.seq_len)} tokens, ${padding} padding`;
    cards.push(["Packed rows", { text: count(tokens.rows) }, more]);
  }
  if (isKnown(tokens.taken)) {
    const taken = { text: brief(tokens.taken), title: `${count(tokens.taken)} tokens` };
    cards.push(["Tokens in the mixture", taken, `from ${brief(tokens.stored)} stored`]);
  }
  const time = { text: seconds(cpu), title: `${number(cpu)} s` };
  if (cpu) cards.push(["CPU time", time, `peak memory ${bytes(peak)}`]);
  cards.push(["Input", size(input.size_bytes), some(input.files, "file")]);
  return cards;
};

const drawFunnel = (root) => {
  const first = through(readRow(), "in");
  const rows = isKnown(first.value)
    ? [{ classes: "end", cells: ["read", bar([[0, 1, "kept"]]), figure(first.value, first.how), "", ""] }]
    : [];
  const sources = sourceRows().filter((row) => !state.of || row.stage === state.of);
  rows.push(...[...sources, ...stageRows()].map((row) => funnelRow(row, first.value)));
  table(root, `Funnel by source and stage, ${UNITS[state.unit].name}`, [
    { name: "Source or stage" }, BAR, num("Left"), num("Lost"), num("of what came in"),
  ], rows, "bars");
  if (!state.of && facts.sources.length > 1) drawBySource(root);
  if (state.unit === "tokens" || first.how === "estimated")
    for (const words of facts.totals.notes) add(root, "p", "note", words);
  drawContracts(root, facts.expect);
};

const drawContracts = (root, { contracts, warnings }) => {
  for (const words of warnings) add(root, "p", "bad", `Warning: ${words}`);
  if (!contracts.length) return;
  add(root, "h3", "", "Contracts");
  if (contracts.some(({ verdict }) => verdict === "broken"))
    add(root, "p", "bad", "The run stops here: it does not keep what the pipeline file expects.");
  const columns = [
    { name: "Stage" }, { name: "Source" }, { name: "Bound" }, num("Limit"), num("Measured"),
    { name: "" },
  ];
  table(root, "What the pipeline file expects", columns, contracts.map(({ cells }) => {
    const [stage, source, ...others] = cells;
    return [name(stage), name(source), ...others];
  }));
};

const funnelRow = (row, read) => {
  const before = through(row, "in"), after = through(row, "out"), loss = lossOf(row);
  if (!isKnown(after.value)) {
    const standing = row.state === "done" ? "" : row.state;
    return { classes: "quiet", cells: [name(row.stage), standing, UNKNOWN, UNKNOWN, UNKNOWN] };
  }
  const left = figure(after.value, after.how), lost = figure(loss.value, loss.how);
  const [from, to] = [after.value, before.value].map((one) => one / (read || 1));
  const drawn = bar([[0, from, "kept", `${left.title} left`], [from, to, "lost", `${lost.title} lost`]]);
  const isSource = row.kind === "source";
  const stage = isSource ? row.name : row.stage, source = isSource ? row.stage : state.of;
  const hasSamples = loss.value || facts.changes.some((one) => one.stage === stage && (!isSource || one.source === source));
  const title = hasSamples ? toSamples(row.stage, { stage, source }) : name(row.stage);
  if (!loss.value) return { classes: "quiet", cells: [title, drawn, left, "", ""] };
  const all = `${percent(loss.value, read)} of all that was read`;
  const share = { text: percent(loss.value, before.value), title: all };
  return { cells: [title, drawn, left, lost, share] };
};

// What every source keeps after every stage, as shares of what was read of it.
const drawBySource = (root) => {
  const rows = [readRow(), ...stageRows()].filter((row) => isKnown(row.out[state.unit]));
  if (!rows.length) return;
  const of = (row, source, side) => row.sources[source]?.[side]?.[state.unit] ?? 0;
  const share = (row, source) => (cell) => {
    const start = of(rows[0], source, "in"), now = of(row, source, "out");
    const gone = of(row, source, "in") - now, part = start ? gone / start : 0;
    cell.classList.add(part > 0.3 ? "heat3" : part > 0.1 ? "heat2" : part > 0.01 ? "heat1" : "heat0");
    const skipped = row.not_applied?.[source];
    const also = skipped ? `; not applied to ${some(skipped, "document")}` : "";
    const all = `${figure(now).title} of ${figure(start).title}; ${percent(gone, start)} lost here${also}`;
    fill(cell, { text: percent(now, start), title: all });
  };
  const columns = [{ name: "Stage" }, ...facts.sources.map((source) => num(source))];
  table(details(root, "By source: share left after each stage"), "Share left by stage and source",
    columns, rows.map((row) => [name(row.stage), ...facts.sources.map((one) => share(row, one))]));
};

const ruleCell = (one) => (cell) => {
  toSamples(one.rule, { stage: one.stage, rule: one.rule, source: state.of })(cell);
  named(add(cell, "small", "under"), one.stage);
};

const drawRules = (root) => {
  const unit = state.unit === "documents" ? "documents" : "text_bytes";
  const rules = byRule(unit), read = through(readRow(), "in", unit).value;
  if (state.unit === "tokens" && rules.length)
    add(root, "p", "note", "Tokens of what a rule dropped are not counted: this is its text.");
  const most = Math.max(...rules.map((one) => one[unit] ?? 0)) || 1;
  const columns = [
    { name: "Rule" }, BAR, num("Documents"), num("Text"),
    num(unit === "documents" ? "of documents read" : "of text read"),
  ];
  if (!rules.length) add(root, "p", "note", isDone() ? "Nothing was dropped." : "Nothing is known to be dropped so far.");
  else shortened(root, rules, 20, (place, first) => table(place, "Drops by rule", columns,
    first.map((one) => [
      ruleCell(one), bar([[0, (one[unit] ?? 0) / most, "lost"]]), count(one.documents),
      figure(one.text_bytes, one.how, "text_bytes"), percent(one[unit], read),
    ]), "bars"));
  drawChanges(root);
  drawRewritten(root);
};

const drawChanges = (root) => {
  const joined = new Map();
  for (const one of facts.changes) {
    if (state.of && one.source !== state.of) continue;
    const key = JSON.stringify([one.stage, one.rule, one.action]);
    const row = joined.get(key) ?? { ...one, documents: 0, spans: 0, span_bytes: 0 };
    row.documents += one.documents;
    for (const part of ["spans", "span_bytes"]) row[part] = together(row[part], one[part]);
    joined.set(key, row);
  }
  if (!joined.size) return;
  add(root, "h3", "", "Cut and replaced");
  const columns = [{ name: "Rule" }, { name: "Action" }, num("Documents"), num("Places"), num("Text")];
  table(root, "Documents cut or changed by rule", columns, [...joined.values()].map((one) => [
    ruleCell(one), one.action, count(one.documents),
    one.spans ? figure(one.spans, one.how, "documents").text : "",
    one.spans ? figure(one.span_bytes, one.how, "text_bytes") : "",
  ]));
};

const drawRewritten = (root) => {
  const rows = facts.rewritten.rows
    .filter((one) => one.documents && (!state.of || one.source === state.of));
  if (!rows.length) return;
  const columns = [{ name: "Stage" }, { name: "Source" }, num("Documents"), num("Text removed")];
  table(details(root, "Text that stages rewrote"), "Rewritten documents", columns, rows.map((one) =>
    [name(one.stage), name(one.source), count(one.documents), size(one.removed_bytes)]));
};

const drawMeasures = (root) => {
  if (!reach(root, facts.measures)) return;
  if (!facts.measures.items.length) add(root, "p", "note", "No stage of this run measures anything.");
  const grid = add(root, "div", "grid");
  for (const item of facts.measures.items) drawMeasure(grid, item);
};

const drawMeasure = (grid, item) => {
  const all = chosen().map((source) => item.sources[source]).filter(Boolean);
  const counts = item.edges.map((_, index) => sum(all.map((one) => one[index])));
  const seen = sum(counts);
  if (!seen) return;
  const one = add(grid, "figure");
  const caption = add(one, "figcaption");
  named(add(caption, "b"), item.name);
  caption.append(" ");
  named(add(caption, "small"), item.stage);
  const isBound = isKnown(item.threshold);
  const bound = isBound ? `${item.parameter ?? "threshold"} ${number(item.threshold)}` : "";
  const bars = histogram(one, item.edges, [counts], {
    threshold: isBound ? item.threshold : null, fails: item.fails, label: bound,
    title: `Distribution of ${item.stage} ${item.name}`,
  });
  const words = [];
  const { ledger, sources } = item.failing ?? {};
  const [at_least, at_most] = state.of
    ? sources?.[state.of] ?? [] : [item.failing?.at_least, item.failing?.at_most];
  if (isBound && isKnown(at_least)) {
    const least = percent(at_least, seen), most = percent(at_most ?? at_least, seen);
    const range = (low, high) => (low === high ? low : `${low} to ${high}`);
    const failing = range(count(at_least), count(at_most ?? at_least));
    words.push(`${failing} (${range(least, most)}) of ${count(seen)} ${item.fails === "above" ? "above" : "below"}`);
  } else words.push(some(seen, "document"));
  if (isKnown(ledger) && !state.of && item.rule) words.push(`${count(ledger)} dropped by it`);
  const missing = sum(chosen().map((source) => item.missing[source]));
  if (missing) words.push(`${count(missing)} without a value`);
  const line = add(caption, "span", "note", words.join("; "));
  if (item.rule && ledger) {
    line.append(" ");
    button(line, "samples", () => showSamples({ stage: item.stage, rule: item.rule, source: state.of }));
  }
  const opened = details(one, "Table");
  opened.addEventListener("toggle", () => {
    if (!opened.open || opened.childElementCount > 1) return;
    table(opened, `${item.name}, documents by value`, [
      num("above"), num("up to"), num("documents"),
    ], bars.map(({ low, high, counts: [here] }) =>
      [low === high ? "" : number(low), number(high), count(here)]));
  });
};
