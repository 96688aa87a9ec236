// SPDX-License-Identifier: Apache-2.0
"use strict";
// Everything shown is text: names come from files, so no string becomes markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const compareText = new Intl.Collator("en", { numeric: true }).compare;
  const ROWS_A_STEP = 200;

  const element = (tag, text, className) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };

  // "linear_logp.fwd[x=bf16 V=128256 D=4096 tile=128x192]@sm_90a", cut at its punctuation.
  const parse = (name) => {
    const parts = /^([^.[]+)\.([^.[]+)\[(.*)\]@.*$/s.exec(name);
    if (!parts) return { op: "", pass: "", type: "", shape: "", options: "" };
    const words = parts[3].split(" ").filter(Boolean);
    const sizes = words.filter((word) => /^[A-Z]\w*=/.test(word));
    const type = words.find((word) => word.startsWith("x="));
    return {
      op: parts[1],
      pass: parts[2],
      type: type ? type.slice(2) : "",
      shape: sizes.join(" ") || (words.includes("generic") ? "any" : ""),
      options: words.filter((word) => word !== type && !sizes.includes(word)).join(" "),
    };
  };

  const kernels = data.rows.map((row) => {
    const kernel = {};
    data.columns.forEach((column, i) => (kernel[column] = row[i]));
    Object.assign(kernel, parse(kernel.name));
    kernel.title = kernel.op ? `${kernel.op}.${kernel.pass}` : kernel.name || "(no name)";
    if (!kernel.name) kernel.options = kernel.key.slice(0, 12);
    kernel.spills = kernel.spilled_bytes ?? kernel.num_spills;
    const shared = [kernel.shared_bytes, kernel.dynamic_shared_bytes].filter((one) => one !== null);
    kernel.shared = shared.length ? shared.reduce((a, b) => a + b) : null;
    kernel.words = [kernel.name, kernel.target, kernel.compiler, kernel.key, kernel.layer, kernel.problem]
      .join("\n").toLowerCase();
    return kernel;
  });

  const bytesText = (bytes) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (bytes >= 1023.95 && unit + 1 < units.length) {
      bytes /= 1024;
      ++unit;
    }
    return `${unit ? bytes.toFixed(1) : bytes} ${units[unit]}`;
  };
  const msText = (ms) =>
    ms < 10 ? `${ms.toFixed(1)} ms` : ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`;
  const ageText = (time) => {
    const s = Math.max(data.now - time, 0);
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min`;
    if (s < 48 * 3600) return `${Math.floor(s / 3600)} h`;
    return `${Math.floor(s / 86400)} d`;
  };
  const timeText = (time) => {
    const date = new Date(time * 1000);
    return isNaN(date) ? String(time) : date.toISOString().slice(0, 19).replace("T", " ") + " UTC";
  };
  const spillsText = (kernel) =>
    kernel.spilled_bytes ? bytesText(kernel.spilled_bytes) : String(kernel.spills);

  // Classes second and third: left out of a table in a window too narrow for all.
  const columns = [
    { field: "title", label: "Kernel" },
    { field: "type", label: "Type", text: true },
    { field: "shape", label: "Shape", text: true, class: "shape" },
    { field: "target", label: "Target", text: true },
    { field: "layer", label: "Layer", text: true, class: "second" },
    { field: "file_bytes", label: "Size", show: (k) => bytesText(k.file_bytes), bar: true },
    { field: "registers", label: "Regs", class: "third" },
    { field: "spills", label: "Spills", show: spillsText, class: "third" },
    { field: "shared", label: "Shared", show: (k) => bytesText(k.shared), class: "third" },
    { field: "compile_ms", label: "Compile", show: (k) => msText(k.compile_ms), bar: true },
    { field: "created", label: "Age", show: (k) => ageText(k.created), title: (k) => timeText(k.created) },
    { field: "last_used", label: "Last used", show: (k) => ageText(k.last_used), title: (k) => timeText(k.last_used), class: "second" },
    { field: "hits", label: "Hits" },
  ];
  const isNumber = (column) => column.field !== "title" && !column.text;
  // Ages grow as times fall.
  const isReversed = (column) => column.field === "created" || column.field === "last_used";
  const isAbsent = (value) => value === null || value === "";

  const most = {};
  for (const column of columns.filter((one) => one.bar)) {
    most[column.field] = kernels.reduce((m, k) => Math.max(m, k[column.field] ?? 0), 0);
  }

  const facts = (kernel) => [
    ["Name", kernel.name],
    ["Problem", kernel.problem],
    ["Key", kernel.key],
    ["Compiler", kernel.compiler],
    ["Layer", kernel.layer],
    ["File", bytesText(kernel.file_bytes)],
    ["Machine code", kernel.code_bytes === null ? "" : bytesText(kernel.code_bytes)],
    ["Registers", kernel.registers],
    ["Spills", kernel.spills === null ? "" : spillsText(kernel)],
    ["Shared memory", kernel.shared === null ? "" :
      `${bytesText(kernel.shared_bytes ?? 0)} fixed, ${bytesText(kernel.dynamic_shared_bytes ?? 0)} a launch`],
    ["Stack", kernel.local_bytes === null ? "" : bytesText(kernel.local_bytes)],
    ["Compiled in", kernel.compile_ms === null ? "" : msText(kernel.compile_ms)],
    ["Created", timeText(kernel.created)],
    ["Last used", timeText(kernel.last_used)],
    ["First calls", `hits ${kernel.hits}, compiles ${kernel.compiles}, failed ${kernel.failed}, fallbacks ${kernel.fallbacks}`],
  ].filter(([, value]) => !isAbsent(value));

  const toggleFacts = (button, row, kernel) => {
    const isOpen = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!isOpen));
    row.classList.toggle("open", !isOpen);
    if (isOpen) {
      row.nextSibling.remove();
      return;
    }
    const opened = element("tr", undefined, "facts");
    if (kernel.problem) opened.classList.add("bad");
    const cell = element("td");
    cell.colSpan = columns.length;
    const list = element("dl");
    for (const [label, value] of facts(kernel)) list.append(element("dt", label), element("dd", String(value)));
    cell.append(list);
    opened.append(cell);
    row.after(opened);
  };

  const kernelCell = (row, kernel) => {
    const cell = element("td", undefined, "kernel");
    const button = element("button", kernel.title);
    button.type = "button";
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => toggleFacts(button, row, kernel));
    cell.append(button);
    if (kernel.options) cell.append(element("small", kernel.options));
    if (kernel.problem) cell.append(element("span", kernel.problem, "problem"));
    return cell;
  };

  const valueCell = (column, kernel) => {
    const value = kernel[column.field];
    const cell = element("td", undefined, `${isNumber(column) ? "number" : "text"} ${column.class ?? ""}`);
    cell.dataset.label = column.label;
    if (isAbsent(value)) {
      cell.textContent = "-";
      cell.classList.add("absent");
      return cell;
    }
    cell.append(column.show ? column.show(kernel) : String(value));
    if (column.title) cell.title = column.title(kernel);
    // A CPU kernel spills as a matter of course; one for a card should not.
    if (column.field === "spills" && kernel.spilled_bytes > 0) cell.classList.add("spilled");
    if (column.bar && most[column.field] > 0) {
      const bar = element("span", undefined, "bar");
      bar.style.setProperty("--share", `${(100 * value) / most[column.field]}%`);
      cell.append(bar);
    }
    return cell;
  };

  const rowOf = (kernel) => {
    const row = element("tr");
    if (kernel.problem) row.className = "bad";
    row.append(kernelCell(row, kernel), ...columns.slice(1).map((column) => valueCell(column, kernel)));
    return row;
  };

  let sorted = { column: columns[0], isDescending: false };
  let shown = [];
  let numDrawn = 0;

  // A step at a time: the page of a large cache is there at once.
  const drawMore = () => {
    const fragment = document.createDocumentFragment();
    for (const kernel of shown.slice(numDrawn, numDrawn + ROWS_A_STEP)) fragment.append(rowOf(kernel));
    byId("rows").append(fragment);
    numDrawn = Math.min(numDrawn + ROWS_A_STEP, shown.length);
    byId("more").hidden = numDrawn === shown.length;
    byId("more").textContent = `Show more (${shown.length - numDrawn} left)`;
  };

  const total = (list, field) => list.reduce((sum, kernel) => sum + (kernel[field] ?? 0), 0);

  const drawTotals = () => {
    // Counts are those of a name, which may have an entry in several layers.
    const names = new Map(shown.map((kernel) => [kernel.name, kernel]));
    const numBad = shown.filter((kernel) => kernel.problem).length;
    const items = [
      ["kernels", shown.length.toLocaleString("en")],
      ["on disk", bytesText(total(shown, "file_bytes"))],
      ["to compile", msText(total(shown, "compile_ms"))],
      ["hits", total([...names.values()], "hits").toLocaleString("en")],
    ];
    if (numBad) items.push([numBad === 1 ? "problem" : "problems", numBad.toLocaleString("en")]);
    byId("totals").replaceChildren(...items.map(([label, value]) => {
      const item = element("div", undefined, label.startsWith("problem") ? "bad" : "");
      item.append(element("dt", label), element("dd", value));
      return item;
    }));
    byId("count").textContent = shown.length === kernels.length
      ? `${kernels.length} ${kernels.length === 1 ? "kernel" : "kernels"}`
      : `${shown.length} of ${kernels.length}`;
  };

  const order = (a, b) => {
    const { column, isDescending } = sorted;
    const [x, y] = [a[column.field], b[column.field]];
    if (isAbsent(x) || isAbsent(y)) return isAbsent(x) - isAbsent(y); // last in both directions
    const difference = isNumber(column) ? x - y : compareText(x, y);
    const sign = isDescending === isReversed(column) ? 1 : -1;
    return sign * difference || compareText(a.name, b.name) || a.index - b.index;
  };

  const draw = () => {
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const [op, target, isBad] = [byId("op").value, byId("target").value, byId("bad").checked];
    shown = kernels.filter((kernel) =>
      (!op || kernel.op === op) && (!target || kernel.target === target) &&
      (!isBad || kernel.problem) && words.every((word) => kernel.words.includes(word)));
    shown.sort(order);
    numDrawn = 0;
    byId("rows").replaceChildren();
    byId("empty").hidden = shown.length > 0;
    drawMore();
    drawTotals();
  };

  const sortBy = (column) => {
    // Of numbers the largest are looked for.
    const isDescending = sorted.column === column ? !sorted.isDescending : isNumber(column);
    sorted = { column, isDescending };
    markSorted();
    draw();
  };

  const heads = columns.map((column) => {
    const head = element("th", undefined, `${isNumber(column) ? "number" : ""} ${column.class ?? ""}`);
    head.scope = "col";
    const button = element("button", column.label);
    button.type = "button";
    button.addEventListener("click", () => sortBy(column));
    head.append(button);
    return head;
  });
  const markSorted = () => heads.forEach((head, i) => {
    if (columns[i] === sorted.column) {
      head.setAttribute("aria-sort", sorted.isDescending ? "descending" : "ascending");
    } else {
      head.removeAttribute("aria-sort");
    }
  });

  const fill = (select, field) => {
    const values = [...new Set(kernels.map((kernel) => kernel[field]))].filter(Boolean).sort(compareText);
    for (const [value, text] of [["", "all"], ...values.map((one) => [one, one])]) {
      const option = element("option", text);
      option.value = value;
      select.append(option);
    }
  };

  kernels.forEach((kernel, i) => (kernel.index = i));
  byId("origin").textContent = `${data.folder || "no folder to write to"} · ${timeText(data.now)} · rlk ${data.version}`;
  byId("heads").append(...heads);
  fill(byId("op"), "op");
  fill(byId("target"), "target");
  byId("bad-label").hidden = !kernels.some((kernel) => kernel.problem);
  byId("filters").addEventListener("input", draw);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", drawMore);
  new IntersectionObserver((seen) => {
    if (seen.some((one) => one.isIntersecting)) drawMore();
  }, { rootMargin: "600px" }).observe(byId("more"));
  markSorted();
  draw();
})();
