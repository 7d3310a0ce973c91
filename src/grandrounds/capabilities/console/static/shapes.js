// One shape at a time: a list and a slider over columns, and a slider along the values. The cursor over the figure moves it too.
"use strict";
(() => {
  rounds.reloadAtEnd();
  const panel = document.getElementById("shape");
  if (!panel) return;
  const [column, place, value] = ["column", "place", "value"].map(id => document.getElementById(id));
  const [sentence, point] = ["sentence", "point"].map(id => document.getElementById(id));
  const figure = panel.querySelector("figure");
  let columns = [];
  const chosen = () => columns[column.selectedIndex];

  // The mark is a series of its own, the last one, in the figure and in the copy that a change of colours draws again.
  const MARK = "selected value";
  const mark = () => {
    const plot = figure.querySelector(".plot");
    const told = chosen()?.points[Number(value.value)];
    if (!plot?.told || !told || figure.dataset.shown !== chosen().column) return;
    const lying = chosen().kind === "category";
    const [key, other] = lying ? ["y", "x"] : ["x", "y"];
    const names = plot.told.data.find(trace => trace.name === "effect")[key];
    const missing = told.x === null;
    const at = {[key]: [lying ? names[Number(value.value)] : missing ? "missing" : told.x], [other]: [told.effect]};
    const colour = getComputedStyle(document.documentElement).getPropertyValue("--orange").trim();
    const made = {type: "scatter", mode: "markers", name: MARK, hoverinfo: "skip", showlegend: false, ...at,
      marker: {size: 14, color: colour, symbol: "circle-open", line: {width: 3}}, ...(missing && !lying ? {xaxis: "x2"} : {})};
    const kept = plot.told.data.filter(trace => trace.name !== MARK);
    plot.told.data = [...kept, made];
    const drawn = plot.data.filter(trace => trace.name !== MARK);
    Plotly.react(plot, [...drawn, made], plot.layout, {displayModeBar: false, displaylogo: false, responsive: true});
  };
  const tell = () => {
    const told = chosen().points[Number(value.value)];
    point.textContent = names.visible(told.text);
    value.setAttribute("aria-valuetext", names.visible(told.text));
    mark();
  };
  const hovered = event => {
    const at = event.points.find(one => one.data.name === "effect" || one.data.name === "missing");
    if (!at) return;
    const last = chosen().points.length - 1;
    value.value = at.data.name === "missing" ? last : at.pointNumber;
    tell();
  };
  const draw = async () => {
    figure.dataset.column = chosen().column;
    delete figure.dataset.shown;
    const asked = chosen().column;
    await rounds.draw(figure);
    if (asked !== chosen().column) return;
    figure.dataset.shown = asked;
    const plot = figure.querySelector(".plot");
    plot?.removeAllListeners?.("plotly_hover");
    plot?.on?.("plotly_hover", hovered);
    mark();
  };
  const show = () => {
    const told = chosen();
    if (place) {
      place.value = column.selectedIndex + 1;
      place.setAttribute("aria-valuetext", `${column.selectedIndex + 1} of ${columns.length}: ${names.visible(told.label)}`);
    }
    sentence.textContent = names.visible(told.sentence);
    value.max = told.points.length - 1;
    value.value = told.first;
    history.replaceState(null, "", `?${new URLSearchParams({run: panel.dataset.run, column: told.column})}`);
    tell();
    draw();
  };
  column.addEventListener("change", show);
  let moving = null;
  place?.addEventListener("input", () => {
    column.selectedIndex = Number(place.value) - 1;
    place.setAttribute("aria-valuetext", `${place.value} of ${columns.length}: ${names.visible(chosen().label)}`);
    clearTimeout(moving);
    moving = setTimeout(show, 120);
  });
  value.addEventListener("input", tell);
  for (const link of document.querySelectorAll("a[data-column]")) {
    link.addEventListener("click", event => {
      event.preventDefault();
      column.value = link.dataset.column;
      show();
      panel.scrollIntoView();
      column.focus({preventScroll: true});
    });
  }
  const start = async () => {
    const answer = await fetch(`/api/run/shapes?${new URLSearchParams({run: panel.dataset.run})}`);
    const told = await answer.json();
    if (!answer.ok) {
      point.textContent = told.error;
      return;
    }
    columns = told.columns;
    show();
  };
  start();
})();
