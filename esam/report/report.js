"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures");
  const places = figures.map((_, number) => document.getElementById(`chart-${number}`));
  const seeds = document.querySelector("#one-line-a-seed input");
  const off = new Set();  // methods that are switched off
  const touch = matchMedia("(pointer: coarse)").matches;
  const PRINT_GAP = 20, PRINT_WIDTH = 660, PRINT_HEIGHT = 220;
  const MOST_BANDS = 3, LABEL_HEIGHT = 14, LABEL_MARGIN = 130, LABELLED = 420;
  let following = false;
  const UNITS = { h: 3600, min: 60, s: 1, GiB: 1024, MiB: 1 };

  function theme() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    return { ground: value("--ground"), ink: value("--ink"), quiet: value("--quiet"), line: value("--line"),
             grid: value("--grid"), raised: value("--raised"), sans: value("--sans") };
  }

  function colours(place) {
    const t = theme(), axes = Object.keys(place.layout).filter((key) => /^[xy]axis\d*$/.test(key));
    const ofAxis = { color: t.quiet, gridcolor: t.grid, linecolor: t.line, tickcolor: t.line };
    return {
      "font.color": t.quiet, "font.family": t.sans,
      "hoverlabel.bgcolor": t.raised, "hoverlabel.bordercolor": t.line, "hoverlabel.font.color": t.ink,
      ...Object.fromEntries(axes.flatMap((axis) => Object.entries(ofAxis).map(([key, value]) => [`${axis}.${key}`, value]))),
    };
  }

  function layoutOf(figure, place) {
    const axis = { zeroline: false, automargin: true, fixedrange: touch, tickfont: { size: 12 } };
    const drawn = structuredClone(figure.layout);  // plotly writes into what it is given
    const labelled = figure.traces.some((trace) => trace.meta.end) && place.clientWidth >= LABELLED;
    return {
      ...drawn,
      xaxis: { ...axis, showline: true, showgrid: false, ...drawn.xaxis },
      yaxis: { ...axis, ...drawn.yaxis },
      margin: { l: 40, r: labelled ? LABEL_MARGIN : 12, t: 8, b: 40 },
      paper_bgcolor: "rgba(0, 0, 0, 0)", plot_bgcolor: "rgba(0, 0, 0, 0)",
      font: { size: 12 }, hoverlabel: { align: "left", namelength: -1, font: { size: 12 } },
      dragmode: touch ? false : "zoom", autosize: true, showlegend: false,
    };
  }

  function paintAll(extra = () => ({})) {
    return Promise.all(places.map((place) => Plotly.relayout(place, { ...colours(place), ...extra(place) })));
  }

  function printSize(place) {
    const wide = getComputedStyle(place.parentElement).gridColumnEnd === "-1";
    return { width: wide ? PRINT_WIDTH : (PRINT_WIDTH - PRINT_GAP) / 2, height: PRINT_HEIGHT };
  }

  // which methods are shown, and their seeds or the mean of them

  const boxes = [...document.querySelectorAll("[data-switch]")];

  function shown(meta) {
    if (!meta.group) return off.size === 0;  // of all methods together
    const mean = meta.of === "mean" || (meta.of === "band" && boxes.length - off.size <= MOST_BANDS);
    return !off.has(meta.group) && (!meta.of || (seeds?.checked ? meta.of === "seed" : mean));
  }

  function showAll() {
    for (const row of document.querySelectorAll("tr[data-group]")) {
      row.classList.toggle("off", off.has(row.dataset.group));
    }
    for (const place of places) {
      const visible = place.data.map((trace) => shown(trace.meta));
      const changed = visible.flatMap((now, number) => (now === (place.data[number].visible ?? true) ? [] : [number]));
      if (changed.length) Plotly.restyle(place, { visible: changed.map((number) => visible[number]) }, changed);
      label(place);
    }
  }

  function isolate(group) {
    const alone = !off.has(group) && off.size === boxes.length - 1;
    for (const box of boxes) {
      box.checked = alone || !group || box.dataset.switch === group;
      if (box.checked) off.delete(box.dataset.switch); else off.add(box.dataset.switch);
    }
    showAll();
  }

  // a name at the end of each line, moved where it would hide another

  function label(place) {
    const { xaxis, yaxis } = place._fullLayout;
    const ends = place.data.filter((trace) => trace.meta.end && !off.has(trace.meta.group));
    if (!ends.length || place.clientWidth < LABELLED) {
      if (place.layout.annotations?.length) Plotly.relayout(place, { annotations: [] });
      return;
    }
    const placed = [], texts = document.createElement("textarea");
    const points = ends.map((trace) => {
      texts.innerHTML = trace.meta.name;  // escaped for plotly: its length as read
      const [x, y] = [xaxis.d2p(trace.x.at(-1)), yaxis.d2p(trace.y.at(-1))];
      return { trace, x, y, width: 7 * texts.value.length + 12 };
    });
    const overlap = (one, other) => one.x <= other.x + other.width && other.x <= one.x + one.width;
    for (const point of points.sort((a, b) => a.y - b.y)) {
      if (!(point.y > -20 && point.y < yaxis._length + 20 && point.x <= xaxis._length + 1)) continue;
      for (const other of placed) if (overlap(point, other)) point.y = Math.max(point.y, other.y + LABEL_HEIGHT);
      placed.push(point);
    }
    placed.forEach((point) => { point.y = Math.min(point.y, yaxis._length); });
    placed.toReversed().forEach((point, n, below) => {  // back up, where the last ones have no room below
      for (const other of below.slice(0, n)) if (overlap(point, other)) point.y = Math.min(point.y, other.y - LABEL_HEIGHT);
    });
    const annotations = placed.map(({ trace, x, y }) => ({
      xref: "paper", x: x / xaxis._length, xanchor: "left", xshift: 4, showarrow: false,
      yref: "paper", y: 1 - y / yaxis._length, yanchor: trace.error_y ? "bottom" : "middle", name: trace.meta.group,
      text: trace.meta.name.replaceAll("%{", "%&#123;"),  // else a template
      font: { size: 11, color: trace.line?.color ?? trace.marker.color }, captureevents: true,
      hovertext: "click: this method alone",
    }));
    Plotly.relayout(place, { annotations });
  }

  function follow(place, change) {
    const moved = Object.keys(change).some((key) => /^[xy]axis/.test(key) || key === "autosize");
    if (!moved) return;
    label(place);
    const epochs = (other) => other.layout.xaxis.title?.text === "epoch";
    if (following || !epochs(place)) return;
    following = true;  // the charts over epochs show the same epochs
    const [low, high] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    const range = low !== undefined ? { "xaxis.range": [low, high] } : change["xaxis.autorange"] && { "xaxis.autorange": true };
    const others = range ? places.filter((other) => other !== place && epochs(other)) : [];
    Promise.all(others.map((other) => Plotly.relayout(other, range))).then(() => { following = false; });
  }

  // axes

  function turnLog(button) {
    const number = Number(button.dataset.log), axis = figures[number].layout.yaxis;
    const log = button.getAttribute("aria-pressed") !== "true";
    const range = !log && axis.type !== "log" && axis.range;
    button.setAttribute("aria-pressed", String(log));
    const type = { "yaxis.type": log ? "log" : "linear", "yaxis.dtick": log ? "D2" : null,
                   "yaxis.tickformat": log ? "~g" : "", "yaxis.autorange": true };
    Plotly.relayout(places[number], type).then(() => {  // a range given along with a type would be converted
      if (range) Plotly.relayout(places[number], { "yaxis.range": [...range] });
    });
  }

  // a table in the order of one of its columns

  function valueOf(text) {
    const plain = text.split(/[±(;]/)[0].replaceAll(",", "");
    const parts = [...plain.matchAll(/([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)\s*(h|min|s|GiB|MiB)?/g)];
    return parts.length ? parts.reduce((sum, [, number, unit]) => sum + number * (UNITS[unit] ?? 1), 0) : null;
  }

  function sortable(table) {
    const body = table.tBodies[0], rows = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    const sort = (column) => {
      const words = heads[column].classList.contains("words");
      const first = words ? "ascending" : "descending", second = words ? "descending" : "ascending";
      const next = { none: first, [first]: second, [second]: "none" }[heads[column].ariaSort ?? "none"];
      heads.forEach((head, number) => { head.ariaSort = number === column ? next : "none"; });
      const key = (row) => (words ? row.cells[column].textContent : valueOf(row.cells[column].textContent));
      const sign = next === "descending" ? -1 : 1;
      const ordered = next === "none" ? rows : [...rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === null || y === null) return (x === null) - (y === null);
        return sign * (words ? x.localeCompare(y) : x - y);
      });
      body.append(...ordered);
    };
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(column));
      head.append(button);
      head.ariaSort = "none";
    });
  }

  // what can be taken away

  function save(name, url) {
    const link = document.createElement("a");
    link.download = name;
    link.href = url;
    link.click();
    if (url.startsWith("blob:")) setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  function asCsv(runs) {
    const columns = [...new Set(runs.flatMap((run) => Object.keys(run.epochs)))];
    const cell = (value) => (/[",\n]/.test(value ?? "") ? `"${String(value).replaceAll('"', '""')}"` : value ?? "");
    const lines = [["condition", "name", "method", "seed", ...columns]];
    for (const run of runs) {
      run.epochs.epoch?.forEach((_, row) => {
        const values = columns.map((column) => run.epochs[column]?.[row]);
        lines.push([run.condition, run.name, run.method, run.seed, ...values]);
      });
    }
    return lines.map((line) => line.map(cell).join(",")).join("\n") + "\n";
  }

  function saveData(kind) {
    const runs = read("runs");
    const text = kind === "csv" ? asCsv(runs) : JSON.stringify(runs, null, 1);
    const type = { csv: "text/csv", json: "application/json" }[kind];
    save(`runs.${kind}`, URL.createObjectURL(new Blob([text], { type })));
  }

  async function savePicture(number, format) {
    const place = places[number], t = theme(), named = new Set();
    const data = place.data.filter((trace) => shown(trace.meta)).map((trace) => {
      const legend = trace.hoverinfo !== "skip" && trace.type !== "contour" && !named.has(trace.meta.group);
      if (legend) named.add(trace.meta.group);
      return { ...trace, name: trace.meta.name, legendgroup: trace.meta.group, showlegend: legend };
    });
    const layout = {
      ...place.layout, width: 720, height: 440, autosize: false, paper_bgcolor: t.ground, showlegend: named.size > 1,
      title: { text: figures[number].title, x: 0.02, font: { size: 15, color: t.ink } },
      margin: { l: 48, r: 16, t: 44, b: 48 }, legend: { orientation: "h", y: -0.2 },
    };
    const size = { format, width: 720, height: 440, scale: format === "png" ? 2 : 1 };
    const name = figures[number].title.toLowerCase().replace(/[^\p{L}\d]+/gu, "-").replace(/^-|-$/g, "");
    save(`${name}.${format}`, await Plotly.toImage({ data, layout }, size));
  }

  figures.forEach((figure, number) => {
    Plotly.newPlot(places[number], figure.traces, layoutOf(figure, places[number]), { responsive: true, displayModeBar: false });
  });
  paintAll().then(() => { showAll(); document.documentElement.dataset.drawn = ""; });
  places.forEach((place) => {
    place.on("plotly_relayout", (change) => follow(place, change));
    place.on("plotly_clickannotation", (event) => isolate(event.annotation.name));
  });

  for (const box of boxes) {
    const note = () => (box.checked ? off.delete(box.dataset.switch) : off.add(box.dataset.switch));
    note();  // browsers keep a box's state over a reload
    box.addEventListener("change", () => { note(); showAll(); });
    box.parentElement.addEventListener("dblclick", () => isolate(box.dataset.switch));
    box.parentElement.title = "click: on or off; double click: this method alone";
  }
  document.getElementById("show-all")?.addEventListener("click", () => isolate(""));
  addEventListener("resize", () => setTimeout(() => places.forEach(label), 300));
  seeds?.addEventListener("change", showAll);
  for (const tools of document.querySelectorAll(".tools")) tools.hidden = false;
  document.querySelectorAll("table.results").forEach(sortable);
  for (const button of document.querySelectorAll("[data-log]")) {
    button.setAttribute("aria-pressed", String(figures[button.dataset.log].layout.yaxis.type === "log"));
    button.addEventListener("click", () => turnLog(button));
  }
  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", () => saveData(button.dataset.save));
  }
  for (const button of document.querySelectorAll("[data-picture]")) {
    button.addEventListener("click", () => savePicture(Number(button.dataset.chart), button.dataset.picture));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paintAll());
  addEventListener("beforeprint", () => { document.documentElement.dataset.print = ""; paintAll(printSize); });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.print;
    paintAll(() => ({ autosize: true, width: null, height: null }));
  });
})();
