"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const places = figures.map((_, number) => document.getElementById(`chart-${number}`));
  const boxes = [...document.querySelectorAll("[data-switch]")];
  const off = new Set();  // methods that are switched off
  const touch = matchMedia("(pointer: coarse)").matches;
  const PRINT_GAP = 20, PRINT_WIDTH = 660, PRINT_HEIGHT = 220;
  const MOST_BANDS = 3, LABEL_HEIGHT = 14, LABEL_MARGIN = 130, LABELLED = 420;
  const UNITS = { h: 3600, min: 60, s: 1, GiB: 1024, MiB: 1 };

  // the page's colours, on every chart

  function colours(place) {
    const style = getComputedStyle(document.documentElement);
    const [ground, ink, quiet, line, grid, raised, sans] = ["ground", "ink", "quiet", "line", "grid", "raised", "sans"]
      .map((name) => style.getPropertyValue(`--${name}`).trim());
    const axes = Object.keys(place.layout).filter((key) => /^[xy]axis\d*$/.test(key));
    const ofAxis = { color: quiet, gridcolor: grid, linecolor: line, tickcolor: line };
    return {
      "paper_bgcolor": ground, "font.color": quiet, "font.family": sans,
      "hoverlabel.bgcolor": raised, "hoverlabel.bordercolor": line, "hoverlabel.font.color": ink,
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
      plot_bgcolor: "rgba(0, 0, 0, 0)", modebar: { bgcolor: "rgba(0, 0, 0, 0)" },
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

  // which methods are shown

  function shown(meta) {
    if (!meta.group) return off.size === 0;  // the front, of all methods together
    return !off.has(meta.group) && (!meta.band || boxes.length - off.size <= MOST_BANDS);
  }

  function showAll() {
    for (const row of document.querySelectorAll("tr[data-group]")) {
      row.classList.toggle("off", off.has(row.dataset.group));
    }
    for (const place of places) {
      Plotly.restyle(place, { visible: place.data.map((trace) => shown(trace.meta)) });
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

  figures.forEach((figure, number) => {
    const filename = figure.title.toLowerCase().replace(/[^\p{L}\d]+/gu, "-").replace(/^-|-$/g, "");
    const picture = { modeBarButtons: [["toImage"]], displaylogo: false, toImageButtonOptions: { format: "svg", filename } };
    Plotly.newPlot(places[number], figure.traces, layoutOf(figure, places[number]), { responsive: true, ...picture });
  });
  paintAll().then(() => { showAll(); document.documentElement.dataset.drawn = ""; });
  places.forEach((place) => {
    const moved = (change) => Object.keys(change).some((key) => /^[xy]axis/.test(key) || key === "autosize");
    place.on("plotly_relayout", (change) => { if (moved(change)) label(place); });
    place.on("plotly_clickannotation", (event) => isolate(event.annotation.name));
  });

  for (const box of boxes) {
    const note = () => (box.checked ? off.delete(box.dataset.switch) : off.add(box.dataset.switch));
    note();  // browsers keep a box's state over a reload
    box.addEventListener("change", () => { note(); showAll(); });
    box.parentElement.addEventListener("dblclick", () => isolate(box.dataset.switch));
    box.parentElement.title = "click: on or off; double click: this method alone";
  }
  const all = document.getElementById("show-all");
  all.hidden = false;
  all.addEventListener("click", () => isolate(""));
  document.querySelectorAll("table.results").forEach(sortable);
  addEventListener("resize", () => setTimeout(() => places.forEach(label), 300));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paintAll());
  addEventListener("beforeprint", () => { document.documentElement.dataset.print = ""; paintAll(printSize); });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.print;
    paintAll(() => ({ autosize: true, width: null, height: null }));
  });
})();
