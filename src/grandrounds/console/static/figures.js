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

  // The page's colours for everything that has one of its own: every pair of axes, polar grounds, lines in ink, small print.
  const paint = async plot => {
    const colours = {
      paper_bgcolor: css("--paper"), plot_bgcolor: css("--paper"), "font.color": css("--ink"),
      "hoverlabel.bgcolor": css("--paper"), "hoverlabel.font.color": css("--ink"),
    };
    for (const name of Object.keys(plot.layout).filter(key => /^[xy]axis\d*$/.test(key))) {
      Object.assign(colours, {
        [`${name}.gridcolor`]: css("--faint"), [`${name}.linecolor`]: css("--line"),
        [`${name}.tickfont.color`]: css("--quiet"), [`${name}.title.font.color`]: css("--quiet"),
      });
    }
    if (plot.layout.polar) {
      Object.assign(colours, {
        "polar.bgcolor": css("--paper"), "polar.radialaxis.gridcolor": css("--faint"), "polar.angularaxis.gridcolor": css("--faint"),
        "polar.radialaxis.tickfont.color": css("--quiet"), "polar.angularaxis.linecolor": css("--line"),
        "polar.angularaxis.tickfont.color": css("--ink"),
      });
    }
    if (plot.titled) colours["title.text"] = plot.titled.replaceAll(QUIET, css("--quiet"));
    const inked = [...plot.inked.keys()].filter(k => plot.inked[k]);
    if (inked.length) await Plotly.restyle(plot, {"line.color": css("--ink")}, inked);
    await Plotly.relayout(plot, colours);
  };

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
      Plotly.restyle(plot, ...step.args);
    });
    const row = made("div", {className: "row no-print"});
    row.append(made("label", {htmlFor: id, textContent: slider.currentvalue?.prefix ?? "step"}), range, shown);
    return [row];
  };

  const draw = async place => {
    place.dataset.drawn = "yes";
    try {
      const answer = await fetch(`${place.dataset.url ?? "/api/run/figure"}?${query(place)}`);
      const {data, layout, error} = await answer.json();
      if (!answer.ok) throw new Error(error);
      const plot = place.querySelector(".plot") ?? made("div", {className: "plot"});
      place.replaceChildren(...slid(place, layout, plot), plot);
      plot.style.minHeight = `${layout.height ?? 360}px`;
      plot.inked = data.map(trace => trace.line?.color === INK);
      plot.titled = layout.title?.text;
      await Plotly.react(plot, data, layout, config);
      await paint(plot);
      plot.setAttribute("role", "img");
      plot.setAttribute("aria-label", plain(layout.title?.text));
    } catch (error) {
      place.textContent = `This figure cannot be shown: ${error.message}`;
    }
  };
  const near = new IntersectionObserver(seen => {
    for (const {isIntersecting, target} of seen) {
      if (isIntersecting && !target.dataset.drawn) draw(target);
    }
  }, {rootMargin: "400px"});
  const watch = () => places().forEach(place => near.observe(place));

  addEventListener("theme", () => plots().forEach(paint));
  addEventListener("beforeprint", () => {
    places().filter(place => !place.dataset.drawn).forEach(draw);
    plots().forEach(plot => Plotly.relayout(plot, {width: PAPER}));
  });
  addEventListener("afterprint", () => plots().forEach(plot => Plotly.relayout(plot, {width: null, autosize: true})));
  window.rounds = {draw, watch};
  watch();
})();
