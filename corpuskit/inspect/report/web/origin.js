// What it cost, and where it all came from: phases, stages, disk, plan, fingerprints, versions.

const speed = (value) => {
  if (!isKnown(value)) return UNKNOWN;
  return { text: `${bytes(value)}/s`, title: `${count(value)} bytes per second of CPU time` };
};

const SPEED = num("Speed", { title: "text per second of CPU time" });

const drawCost = (root) => {
  const { phases, stages, disk, cpu_seconds: cpu } = facts.resources;
  if (cpu.total) add(root, "p", "", `${seconds(cpu.total)} of CPU time, start-up left out: ${seconds(cpu.read)} ` +
    `of it to read documents, ${seconds(cpu.write)} to write them` +
    `${cpu.compiling ? `, ${seconds(cpu.compiling)} to compile kernels or load compiled ones` : ""}.`);
  drawPhases(root, phases);
  const dear = stages.filter((one) => one.cpu_seconds);
  if (dear.length) {
    dear.sort((a, b) => b.cpu_seconds - a.cpu_seconds);
    add(root, "h3", "", "By stage");
    const columns = [{ name: "Stage" }, BAR, num("CPU"), SPEED, num("Documents")];
    table(root, "Cost by stage", columns, dear.map((one) => [
      name(one.stage), bar([[0, one.cpu_seconds / dear[0].cpu_seconds, "kept"]]),
      seconds(one.cpu_seconds), speed(one.bytes_per_cpu_second), count(one.documents),
    ]), "bars");
  }
  if (!disk.length) return;
  add(root, "h3", "", "On disk");
  const rows = [...disk].sort((a, b) => b.size_bytes - a.size_bytes);
  const columns = [{ name: "What" }, BAR, num("Size"), num("Files"), num("Rows")];
  const most = rows[0].size_bytes || 1;
  shortened(root, rows, 10, (place, first) => table(place, "What lies on disk", columns,
    first.map((one) => [
      name(one.role), bar([[0, one.size_bytes / most, "kept"]]), size(one.size_bytes),
      count(one.files), one.rows ? count(one.rows) : "",
    ]), "bars"));
};

const drawPhases = (root, phases) => {
  const most = Math.max(...phases.map((one) => one.cpu_seconds ?? 0)) || 1;
  const columns = [
    { name: "Phase" }, BAR, num("CPU"), num("Elapsed"), SPEED, num("Peak memory"), num("Tasks"),
  ];
  const doing = (one) => {
    if (one.state === "done") return bar([[0, (one.cpu_seconds ?? 0) / most, "kept"]]);
    if (one.state !== "running" || !isKnown(one.units)) return one.state;
    return `${count(one.units_done)} of ${some(one.units, "unit")} done`;
  };
  table(root, "Cost by phase", columns, phases.map((one) => ({
    classes: one.state === "done" ? "" : "quiet",
    cells: [
      (cell) => {
        named(cell, one.phase);
        const isFused = !one.pass && one.labels.some((label) => label !== one.phase);
        if (isFused) write(add(cell, "small", "under"), one.labels.join(", "));
      },
      doing(one), seconds(one.cpu_seconds), seconds(one.elapsed_seconds),
      speed(one.bytes_per_cpu_second), bytes(one.peak_rss_bytes), count(one.tasks),
    ],
  })), "bars");
};

// ---- plan and provenance

const clipped = (words, most) => (words.length > most ? `${words.slice(0, most)}\u2026` : words);

const parameters = (place, given, changed = {}) => {
  const list = add(place, "dl", "parameters");
  for (const [key, value] of Object.entries(given)) {
    const pair = add(list, "div", key in changed ? "changed" : "");
    add(pair, "dt", "", key);
    write(add(pair, "dd"), typeof value === "string" ? value : JSON.stringify(value));
  }
};

const drawPlan = (root) => {
  add(root, "h3", "", "Sources");
  for (const one of facts.plan.sources) {
    const files = `${some(one.num_files, "file")}, ${bytes(one.size_bytes)}`;
    const place = details(root, `${one.label}: ${one.format}, ${files}`);
    parameters(place, { paths: one.paths, ...one.params });
    if (one.files.length)
      table(place, "Files", [{ name: "File" }, num("Size")],
        one.files.map((file) => [name(file.name), size(file.size_bytes)]));
    const more = one.num_files - one.files.length;
    if (more > 0) add(place, "p", "note", `and ${count(more)} more`);
  }
  add(root, "h3", "", "Stages");
  for (const one of facts.plan.stages) drawStage(root, one);
  parameters(details(root, "Settings"), facts.plan.settings);
  add(root, "h3", "", "Provenance");
  drawProvenance(root);
};

const drawStage = (root, one) => {
  const place = details(root, ""), summary = place.querySelector("summary");
  named(add(summary, "b"), one.label);
  if (one.label !== one.name) write(summary, ` (${one.name})`);
  const set = Object.entries(one.changed)
    .map(([key, value]) => `${key} ${clipped(JSON.stringify(value), 60)}`);
  if (set.length) write(summary, `: ${clipped(set.join(", "), 160)}`);
  const about = facts.stages.find((stage) => stage.label === one.label);
  if (about) add(place, "p", "note", about.summary);
  parameters(place, one.params, one.changed);
};

const standing = (one) => {
  if (one.accepted_code_change) return "made by other code, accepted";
  if (!isKnown(one.is_current)) return UNKNOWN;
  return one.is_current ? "current" : "not what the plan now says";
};

const drawProvenance = (root) => {
  const { plan, provenance, run, made } = facts;
  const { here, recorded } = provenance.versions;
  parameters(root, {
    directory: run.directory, pipeline: run.pipeline ?? UNKNOWN, seed: run.seed,
    began: time(run.began), ended: time(run.ended),
    ...(provenance.plan_hash ? { "plan hash": provenance.plan_hash } : {}),
    ...(provenance.tokenizer ? { tokenizer: provenance.tokenizer } : {}),
    edits: plan.edits,
    report: `${time(made.at)}, corpuskit ${made.corpuskit}, ${seconds(made.cpu_seconds)} of CPU time`,
  });
  const columns = [{ name: "Phase" }, { name: "Fingerprint" }, { name: "Content" }, { name: "Now" }];
  table(details(root, `Fingerprints of ${some(provenance.phases.length, "phase")}`),
    "Fingerprints of phases", columns, provenance.phases.map((one) =>
      [name(one.phase), code(one.fingerprint), code(one.content), standing(one)]));
  const place = details(root, "Versions and code");
  const keys = [...new Set([...Object.keys(recorded ?? {}), ...Object.keys(here)])];
  const when = recorded ? [{ name: "When it ran" }, { name: "Here" }] : [{ name: "Here" }];
  table(place, "Versions", [{ name: "" }, ...when], keys.map((key) =>
    [name(key), ...(recorded ? [recorded[key] ?? UNKNOWN] : []), here[key] ?? UNKNOWN]));
  table(place, "Digests of the code", [{ name: "Code of" }, { name: "Digest" }],
    Object.entries(provenance.code).map(([key, digest]) => [name(key), code(digest)]));
};
