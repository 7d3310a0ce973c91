// Figures are fetched and drawn when they come near the screen, in the colours of the page, and fit the paper when printed.
// Plotly's own sliders do not hear the keyboard, so a figure's slider is one of the page's.
"use strict";
(() => {
  const INK = "#1b1f24", QUIET = "#57606a"; // as report/paint.py has them
  const PAPER = 680; // pixels that fit the width of a printed page
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const config = {displayModeBar: false, displaylogo: false, responsive: true};
  const made = (tag, values = {}) => Object.assign(document.createElement(tag), values);
  const plain = text => (text ?? "figure").replace(/<[^>]*>/g, " ").trim();
  const query = place => new URLSearchParams(Object.entries(place.dataset).filter(([key]) => !["drawn", "url"].includes(key)));
  const places = () => [...document.querySelectorAll("figure[data-figure]")];
  const plots = () => [...document.querySelectorAll("figure .plot")].filter(plot => plot.data);

  // The script that draws is large: it is fetched for the first figure that comes near, and the page does not wait for it.
  let loading = null;
  const plotly = () => loading ??= new Promise((resolve, reject) => {
    const script = made("script", {src: "/static/plotly.min.js", onload: resolve});
    script.onerror = () => reject(new Error("the script that draws figures is not there"));
    document.head.append(script);
  });

  // A figure in the page's colours: every pair of axes, polar grounds, lines in ink, small print. Before it is drawn, and once.
  const tinted = told => {
    const {data, layout} = structuredClone(told);
    const [paper, ink, quiet, faint, line] = ["--paper", "--ink", "--quiet", "--faint", "--line"].map(css);
    Object.assign(layout, {paper_bgcolor: paper, plot_bgcolor: paper, font: {...layout.font, color: ink}});
    layout.hoverlabel = {...layout.hoverlabel, bgcolor: paper, font: {color: ink}};
    for (const name of new Set(["xaxis", "yaxis", ...Object.keys(layout).filter(key => /^[xy]axis\d+$/.test(key))])) {
      const axis = layout[name] ??= {};
      Object.assign(axis, {gridcolor: faint, linecolor: line, tickfont: {...axis.tickfont, color: quiet}});
      if (axis.title) axis.title.font = {...axis.title.font, color: quiet};
    }
    if (layout.polar) {
      const {radialaxis, angularaxis} = layout.polar;
      layout.polar.bgcolor = paper;
      layout.polar.radialaxis = {...radialaxis, gridcolor: faint, tickfont: {...radialaxis?.tickfont, color: quiet}};
      layout.polar.angularaxis = {...angularaxis, gridcolor: faint, linecolor: line, tickfont: {...angularaxis?.tickfont, color: ink}};
    }
    if (layout.title?.text) layout.title.text = layout.title.text.replaceAll(QUIET, quiet);
    for (const trace of data) if (trace.line?.color === INK) trace.line.color = ink;
    return [data, layout];
  };
  const show = plot => Plotly.react(plot, ...tinted(plot.told), config);

  // A range over the steps of Plotly's slider, which is taken out of the layout.
  const slid = (place, layout, plot) => {
    const slider = layout.sliders?.[0];
    if (!slider || slider.steps.length < 2) return [];
    layout.sliders = [];
    layout.margin = {...layout.margin, t: Math.max(48, (layout.margin?.t ?? 48) - 68)};
    const id = `slider-${place.dataset.figure}`;
    const range = made("input", {type: "range", id, min: 0, max: slider.steps.length - 1, value: slider.active ?? 0});
    const shown = made("output", {textContent: slider.steps[range.value].label});
    range.addEventListener("input", () => {
      const step = slider.steps[range.value];
      shown.textContent = step.label;
      plot.told.data[0] = {...plot.told.data[0], ...Object.fromEntries(Object.entries(step.args[0]).map(([k, [v]]) => [k, v]))};
      show(plot);
    });
    const row = made("div", {className: "row no-print"});
    row.append(made("label", {htmlFor: id, textContent: slider.currentvalue?.prefix ?? "step"}), range, shown);
    return [row];
  };

  const draw = async place => {
    place.dataset.drawn = "yes";
    try {
      const [answer] = await Promise.all([fetch(`${place.dataset.url ?? "/api/run/figure"}?${query(place)}`), plotly()]);
      const {data, layout, error} = await answer.json();
      if (!answer.ok) throw new Error(error);
      const plot = place.querySelector(".plot") ?? made("div", {className: "plot"});
      place.replaceChildren(...slid(place, layout, plot), plot);
      plot.style.minHeight = `${layout.height ?? 360}px`;
      plot.told = {data, layout};
      await show(plot);
      plot.setAttribute("role", "img");
      plot.setAttribute("aria-label", plain(layout.title?.text));
    } catch (error) {
      place.textContent = `This figure cannot be shown: ${error.message}`;
    }
  };
  // One after the other, in the order they came near, with a picture on the screen in between.
  let last = Promise.resolve();
  const queue = place => {
    place.dataset.drawn = "yes";
    last = last.then(() => draw(place)).then(() => new Promise(requestAnimationFrame));
  };
  const near = new IntersectionObserver(seen => {
    for (const {isIntersecting, target} of seen) {
      if (isIntersecting && !target.dataset.drawn) queue(target);
    }
  }, {rootMargin: "400px"});
  const watch = () => places().forEach(place => near.observe(place));

  addEventListener("theme", () => plots().forEach(show));
  addEventListener("beforeprint", () => {
    places().filter(place => !place.dataset.drawn).forEach(draw);
    plots().forEach(plot => Plotly.relayout(plot, {width: PAPER}));
  });
  addEventListener("afterprint", () => plots().forEach(plot => Plotly.relayout(plot, {width: null, autosize: true})));
  window.rounds = {draw, watch};
  watch();
})();
