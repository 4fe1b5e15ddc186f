"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const places = figures.map((_, number) => document.getElementById(`chart-${number}`));
  const touch = matchMedia("(pointer: coarse)").matches;
  const PRINT_GAP = 20, PRINT_WIDTH = 660, PRINT_HEIGHT = 220;

  function theme() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    return { ground: value("--ground"), ink: value("--ink"), quiet: value("--quiet"), line: value("--line"),
             grid: value("--grid"), raised: value("--raised"), sans: value("--sans") };
  }

  function axisColours(axis) {
    const t = theme();
    return { [`${axis}.color`]: t.quiet, [`${axis}.gridcolor`]: t.grid, [`${axis}.linecolor`]: t.line,
             [`${axis}.tickcolor`]: t.line };
  }

  function colours() {
    const t = theme();
    return {
      "font.color": t.quiet, "font.family": t.sans,
      "hoverlabel.bgcolor": t.raised, "hoverlabel.bordercolor": t.line, "hoverlabel.font.color": t.ink,
      ...axisColours("xaxis"), ...axisColours("yaxis"),
    };
  }

  function layoutOf(figure) {
    const axis = { zeroline: false, automargin: true, fixedrange: touch, tickfont: { size: 12 } };
    return {
      ...figure.layout,
      xaxis: { ...axis, showline: true, showgrid: false, ...figure.layout.xaxis },
      yaxis: { ...axis, ...figure.layout.yaxis },
      margin: { l: 40, r: 12, t: 8, b: 40 },
      paper_bgcolor: "rgba(0, 0, 0, 0)", plot_bgcolor: "rgba(0, 0, 0, 0)",
      font: { size: 12 }, hoverlabel: { align: "left", namelength: -1, font: { size: 12 } },
      dragmode: touch ? false : "zoom", autosize: true, showlegend: false,
    };
  }

  function paintAll(extra = () => ({})) {
    return Promise.all(places.map((place) => Plotly.relayout(place, { ...colours(), ...extra(place) })));
  }

  function printSize(place) {
    const wide = getComputedStyle(place.parentElement).gridColumnEnd === "-1";
    return { width: wide ? PRINT_WIDTH : (PRINT_WIDTH - PRINT_GAP) / 2, height: PRINT_HEIGHT };
  }

  function show(group, visible) {
    for (const row of document.querySelectorAll(`tr[data-group="${group}"]`)) row.classList.toggle("off", !visible);
    for (const place of places) {
      const traces = place.data.flatMap((trace, number) => (trace.meta.group === group ? [number] : []));
      if (traces.length) Plotly.restyle(place, { visible }, traces);
    }
  }

  figures.forEach((figure, number) => {
    Plotly.newPlot(places[number], figure.traces, layoutOf(figure), { responsive: true, displayModeBar: false });
  });
  paintAll().then(() => { document.documentElement.dataset.drawn = ""; });

  for (const box of document.querySelectorAll("[data-switch]")) {
    // browsers keep a box's state over a reload
    if (!box.checked) show(box.dataset.switch, false);
    box.addEventListener("change", () => show(box.dataset.switch, box.checked));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paintAll());
  addEventListener("beforeprint", () => { document.documentElement.dataset.print = ""; paintAll(printSize); });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.print;
    paintAll(() => ({ autosize: true, width: null, height: null }));
  });
})();
