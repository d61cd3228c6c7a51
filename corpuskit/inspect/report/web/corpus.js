// What the documents are, before and after: lengths, languages, domains, duplicates; the mixture.

// Names with what was there of each before and after.
const drawNames = (root, title, names, before, after, rest = "others") => {
  const unit = state.unit === "documents" ? "documents" : "text_bytes";
  const rows = names.map((one) => {
    const of = (point) => sum(chosen().map((source) => one.sources[source]?.[point]?.[unit]));
    return { name: one.name, before: of(before), after: of(after) };
  }).filter((one) => one.before || one.after);
  if (!rows.length) {
    add(root, "p", "note", "None.");
    return;
  }
  const isRest = (one) => one.name === null;
  rows.sort((a, b) => isRest(a) - isRest(b) || b.before - a.before || b.after - a.after);
  const total = sum(rows.map((one) => one.before)), end = sum(rows.map((one) => one.after));
  const sizes = rows.filter((one) => !isRest(one)).map((one) => Math.max(one.before, one.after));
  const most = Math.max(...sizes, 1);
  const columns = [
    { name: "" }, BAR, num("Before"), num("After"), num("Kept"),
    num("Share before", { classes: "roomy" }), num("Share after"),
  ];
  shortened(root, rows, 12, (place, some) => table(place, title, columns, some.map((one) => [
    isRest(one) ? (cell) => add(cell, "i", "", rest) : name(one.name),
    bar([[0, one.after / most, "kept"], [one.after / most, one.before / most, "lost"]]),
    figure(one.before, "exact", unit), figure(one.after, "exact", unit),
    percent(one.after, one.before), percent(one.before, total), percent(one.after, end),
  ]), "bars"));
};

const drawValues = (root) => {
  if ([facts.lengths, facts.values, facts.domains].every((one) => one.recorded === "none")) {
    reach(root, facts.lengths);
    return;
  }
  add(root, "h3", "", "Length");
  drawLengths(root);
  for (const item of facts.values.items) {
    const at = item.points.includes("at") ? "at" : item.points[0];
    named(add(root, "h3"), item.field);
    drawNames(root, item.field, item.names, at, "left");
  }
  if (!facts.values.items.length) reach(root, facts.values);
  add(root, "h3", "", "Domains");
  if (!reach(root, facts.domains)) return;
  drawNames(root, "Domains", facts.domains.names, "read", "left", "others, or without a host");
  if (facts.domains.cut) add(root, "p", "note", "Rare domains are counted as others.");
};

const drawLengths = (root) => {
  if (!reach(root, facts.lengths)) return;
  const { edges, sources } = facts.lengths;
  const of = (point) => {
    const given = chosen().map((source) => sources[source]?.[point] ?? []);
    return edges.map((_, index) => sum(given.map((counts) => counts[index])));
  };
  const read = of("read"), left = of("left");
  if (!sum(read)) {
    add(root, "p", "note", "None.");
    return;
  }
  const one = add(root, "figure", "lengths");
  const caption = add(one, "figcaption");
  caption.append("Documents by bytes of text: ");
  add(caption, "span", "key kept", "left");
  caption.append(", ");
  add(caption, "span", "key outline", "read");
  const title = "Documents by bytes of text, before and after";
  const bars = histogram(one, edges, [left, read], {
    tall: true, show: bytes, layers: ["left", "read"], title,
  });
  const columns = [num("above"), num("up to"), num("read"), num("left"), num("kept")];
  table(details(one, "Table"), title, columns, bars.map(({ low, high, counts }) =>
    [bytes(low), bytes(high), count(counts[1]), count(counts[0]), percent(counts[0], counts[1])]));
};

// ---- duplicates

const drawDuplicates = (root) => {
  if (!facts.duplicates.length)
    add(root, "p", "note", "No stage of this run looks for duplicates of documents.");
  for (const one of facts.duplicates) {
    named(add(root, "h3"), one.stage);
    if (one.state === "done") drawClusters(root, one);
    else add(root, "p", "note", `This stage is ${one.state}.`);
  }
};

const drawClusters = (root, one) => {
  const alike = isKnown(one.threshold) ? `; alike from ${number(one.threshold)}` : "";
  add(root, "p", "", `${some(one.documents, "document")} in ${some(one.clusters, "cluster")} of ` +
    `two and more; ${count(one.dropped)} dropped${alike}.`);
  if (one.sampled) {
    const { parts_read, parts } = one.sampled;
    add(root, "p", "note", `Clusters of ${count(parts_read)} of ${count(parts)} parts.`);
  }
  if (one.sizes.length) {
    const most = Math.max(...one.sizes.map((here) => here.documents));
    const columns = [{ name: "Documents in it" }, BAR, num("Clusters"), num("Documents")];
    table(root, "Clusters by size", columns, one.sizes.map((here) => [
      here.low === here.high ? count(here.low) : `${count(here.low)} to ${count(here.high)}`,
      bar([[0, here.documents / most, "lost"]]), count(here.clusters), count(here.documents),
    ]), "bars");
  }
  if (!one.largest.length) return;
  const place = details(root, `The largest ${some(one.largest.length, "cluster")}`);
  for (const cluster of one.largest) drawCluster(place, cluster);
};

const drawCluster = (root, one) => {
  const card = add(root, "article", "sample");
  add(add(card, "header"), "b", "", some(one.size, "document"));
  if (one.text) excerpt(card, unpacked(one.text));
  const list = add(card, "ul", "members");
  for (const member of one.members) {
    const line = add(list, "li"), word = member.kept ? "kept" : "dropped";
    add(line, "span", `action ${member.kept ? "keep" : "drop"}`, word);
    write(add(line, "bdi"), String(member.id ?? member.key));
    if (member.source) write(add(line, "small"), ` ${member.source}`);
    if (isKnown(member.similarity)) add(line, "small", "", ` ${number(member.similarity)}`);
  }
  const more = one.size - one.members.length;
  if (more > 0) add(list, "li", "note", `and ${count(more)} more`);
};

// ---- mixture

const MIXED = {
  estimated: "Estimated: packing has not counted yet.",
  counted: "Counted; the plan is not written yet.",
};

const drawMixture = (root) => {
  const mix = facts.mixture;
  if (!mix) add(root, "p", "note", "No mixture: this run has no `mix`, or is not that far.");
  else {
    if (mix.problem) add(root, "p", "bad", mix.problem);
    if (MIXED[mix.state]) add(root, "p", "note", MIXED[mix.state]);
    drawShares(root, "Over the whole run", mix.sources);
    const stages = [...new Set(mix.rows.map((one) => one.stage))];
    for (const stage of stages.length > 1 ? stages : []) {
      const rows = mix.rows.filter((one) => one.stage === stage);
      drawShares(details(root, `Stage ${stage}`), `Mixture of stage ${stage}`, rows);
    }
    for (const words of mix.notes) add(root, "p", "note", words);
  }
  if (!facts.packing.length) return;
  add(root, "h3", "", "Packing");
  const columns = [
    { name: "Source" }, num("Rows"), num("Tokens"), num("Padding"), num("Filled"), num("Documents"),
    num("Cut"),
  ];
  table(root, "Packing by source", columns, facts.packing.map((one) => {
    const isBand = isKnown(one.band);
    return [
      name(isBand ? `${one.source}, band ${one.band}` : one.source), count(one.rows),
      count(one.tokens), count(one.padding), percent(one.fill_ratio, 1),
      isBand ? "" : count(one.documents), isBand ? "" : percent(one.cut_ratio, 1),
    ];
  }));
};

const drawShares = (root, title, rows) => {
  const columns = [
    { name: "Source" }, BAR,
    num("Planned", { title: "share of the rows that the weights ask for" }),
    num("Realised", { title: "share of the tokens" }), num("Tokens"), num("Rows"), num("Epochs"),
  ];
  table(root, title, columns, rows.map((one) => {
    const planned = percent(one.planned_ratio, 1), realised = percent(one.token_ratio, 1);
    const { planned_ratio: at, max_epochs: most } = one;
    return [
      name(one.source),
      bar([[0, one.token_ratio, "kept", `realised ${realised}`],
        [at - 0.002, at + 0.002, "planned", `planned ${planned}`]]),
      planned, realised, { text: brief(one.tokens), title: `${count(one.tokens)} tokens` },
      count(one.rows),
      { text: number(one.epochs), title: isKnown(most) ? `at most ${number(most)}` : "" },
    ];
  }), "bars");
};
