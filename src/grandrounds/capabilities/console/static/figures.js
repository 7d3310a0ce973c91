// Figures are fetched and drawn when they come near the screen, in the colours of the page, and fit the paper when printed.
// Plotly's sliders have no keyboard support, so the page adds a slider of its own.
"use strict";
(() => {
  const INK = "#1b1f24", QUIET = "#57606a"; // and ON_DARK: as report/style.py has them
  const ON_DARK = [["#003377", "#7da7f5"], ["#994422", "#e08a5e"], ["#663333", "#d68f8f"], ["#554466", "#b7a3d9"], ["#c3c9cf", "#6b747e"]];
  const PAPER = {width: 680, height: 300}; // pixels: the width of a printed page, and three figures on it
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const config = {displayModeBar: false, displaylogo: false, responsive: true};
  const made = (tag, values = {}) => Object.assign(document.createElement(tag), values);
  const query = place => new URLSearchParams(Object.entries(place.dataset).filter(([key]) => !["drawn", "url"].includes(key)));
  const address = place => `${place.dataset.url ?? "/api/run/figure"}?${query(place)}`;
  const places = () => [...document.querySelectorAll("figure[data-figure]")];
  const plots = () => [...document.querySelectorAll("figure .plot")].filter(plot => plot.data);

  // The script that draws is large: it is fetched for the first figure that comes near, and the page does not wait for it.
  let loading = null;
  const plotly = () => loading ??= new Promise((resolve, reject) => {
    const script = made("script", {src: document.querySelector("meta[name=plotly]").content, onload: resolve});
    script.onerror = () => reject(new Error("the script that draws figures could not be loaded"));
    document.head.append(script);
  });

  // Replaces the figure's ink, small print and paper colours by those of the page; data and colour scales stay.
  const KEPT = new Set(["x", "y", "z", "r", "theta", "name", "customdata", "hovertemplate", "colorscale", "template"]);
  const dyed = (value, by) => {
    if (typeof value === "string") return by.get(value) ?? value.replaceAll(`color:${QUIET}`, `color:${by.get(QUIET)}`);
    if (Array.isArray(value)) return value.map(one => dyed(one, by));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, held]) => [key, KEPT.has(key) ? held : dyed(held, by)]));
  };
  // A heat map on dark paper: a scale that begins with white begins with the paper, and its darkest colour is the lightest.
  const channels = colour => [1, 3, 5].map(k => parseInt(colour.slice(k, k + 2), 16));
  const pale = colour => /^#[0-9a-f]{6}$/i.test(colour) && channels(colour).every(channel => channel >= 0xe0);
  const lit = colour => { // the same hue with the opposite lightness
    const [low, high] = [Math.min(...channels(colour)), Math.max(...channels(colour))];
    return `rgb(${channels(colour).map(channel => Math.round(30 + 0.85 * (channel + 255 - low - high))).join(",")})`;
  };
  const dimmed = (trace, paper, faint) => {
    if (document.documentElement.dataset.theme !== "dark" || !Array.isArray(trace.colorscale)) return trace;
    const rises = trace.colorscale[0][1] === "#ffffff";
    trace.colorscale = trace.colorscale.map(([at, colour]) => [at, pale(colour) ? (rises ? paper : faint) : rises ? lit(colour) : colour]);
    return trace;
  };
  // A figure in the page's colours: every pair of axes, polar grounds, lines in ink, small print. Before it is drawn, and once.
  const tinted = told => {
    const [paper, ink, quiet, faint, line] = ["--paper", "--ink", "--quiet", "--faint", "--line"].map(css);
    const dark = document.documentElement.dataset.theme === "dark" ? ON_DARK : [];
    const by = new Map([[INK, ink], [QUIET, quiet], ["#000000", ink], ["#ffffff", paper], ...dark]);
    const layout = dyed(structuredClone(told.layout), by);
    // text in a heat map lies on coloured cells: Plotly chooses its colour
    const data = structuredClone(told.data).map(trace => trace.type === "heatmap" ? dimmed(trace, paper, faint) : dyed(trace, by));
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
    return [data, layout];
  };
  const show = plot => Plotly.react(plot, ...tinted(plot.told), config);
  // For screen readers: a name, a description and the numbers.
  const tell = (place, plot) => {
    place.setAttribute("aria-label", rounds.name(plot.told));
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", rounds.described(plot.told));
    place.querySelector(".numbers")?.fill();
  };

  // A range over the steps of Plotly's slider, which is taken out of the layout.
  const slid = (place, layout, plot) => {
    const slider = layout.sliders?.[0];
    if (!slider || slider.steps.length < 2) return [];
    layout.sliders = [];
    layout.margin = {...layout.margin, t: Math.max(48, (layout.margin?.t ?? 48) - 68)};
    const id = `slider-${place.dataset.figure}`;
    const label = slider.currentvalue?.prefix ?? "step";
    const range = made("input", {type: "range", id, min: 0, max: slider.steps.length - 1, value: slider.active ?? 0});
    const shown = made("output", {htmlFor: id, ariaLive: "off"}); // the range input announces it
    const say = () => {
      shown.textContent = slider.steps[range.value].label;
      range.setAttribute("aria-valuetext", `${label} ${shown.textContent}`);
    };
    range.addEventListener("input", () => {
      say();
      const step = slider.steps[range.value];
      plot.told.data[0] = {...plot.told.data[0], ...Object.fromEntries(Object.entries(step.args[0]).map(([k, [v]]) => [k, v]))};
      show(plot);
      tell(place, plot);
    });
    say();
    const row = made("div", {className: "row no-print"});
    row.append(made("label", {htmlFor: id, textContent: label}), range, shown);
    return [row];
  };

  // A click on a point dispatches an event with its round and its names.
  const picked = (place, {points: [point]}) => {
    const over = point.xaxis?.title?.text === "round" ? Number(point.x) : null;
    const bars = point.data.type === "bar";
    const called = over !== null ? [point.data.name, point.y] : bars ? [point.x] : [];
    place.dispatchEvent(new CustomEvent("picked", {bubbles: true, detail: {round: over, called: called.map(rounds.plain)}}));
  };

  // Buttons that save a figure: an image in the colours of paper, or its numbers. Names of files have no patient.
  const fileName = (place, ending) => [place.dataset.run, place.dataset.comparison, place.dataset.figure].filter(Boolean)
    .join("-").replace(/[^\p{L}\p{N}.-]+/gu, "-").slice(0, 120) + `.${ending}`;
  const save = (url, name) => made("a", {href: url, download: name}).click();
  const image = format => async (place, plot) => {
    const {data, layout} = structuredClone(plot.told);
    const size = {width: Math.max(700, plot.clientWidth), height: layout.height ?? 400, scale: 2};
    save(await Plotly.toImage({data, layout}, {format, ...size}), fileName(place, format));
  };
  const numbers = (place, plot) => {
    const url = URL.createObjectURL(new Blob([rounds.csv(plot.told)], {type: "text/csv"}));
    save(url, fileName(place, "csv"));
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  };
  const saving = (place, plot) => {
    const row = made("div", {className: "save no-print"});
    row.setAttribute("role", "group");
    row.setAttribute("aria-label", "Save this figure");
    for (const [label, make] of [["PNG", image("png")], ["SVG", image("svg")], ["CSV", numbers]]) {
      const button = made("button", {type: "button", textContent: label, title: `Save as ${label}`});
      button.addEventListener("click", () => make(place, plot));
      row.append(button);
    }
    return row;
  };

  const draw = async (place, options) => {
    place.dataset.drawn = "yes";
    try {
      const [answer] = await Promise.all([fetch(address(place), options), plotly()]);
      const {data, layout, error} = await answer.json();
      if (!answer.ok) throw new Error(error);
      const drawn = place.querySelector(".plot");
      const plot = drawn ?? made("div", {className: "plot"});
      const row = slid(place, layout, plot);
      if (drawn) {
        place.querySelector(":scope > .row")?.replaceWith(...row);
      } else {
        // a table that the page itself has beside the figure is not made twice
        const beside = place.nextElementSibling?.tagName === "DETAILS";
        place.replaceChildren(...row, plot, saving(place, plot), ...(beside ? [] : [rounds.folded(() => plot.told, () => address(place))]));
      }
      plot.style.minHeight = `${layout.height ?? 360}px`;
      plot.told = {data, layout};
      await show(plot);
      if (!drawn) plot.on("plotly_click", event => picked(place, event));
      tell(place, plot);
    } catch (error) {
      if (!options || !place.querySelector(".plot")) place.textContent = `This figure cannot be shown: ${error.message}`;
    }
  };
  // One after the other, in the order they came near, with a repaint in between.
  let last = Promise.resolve();
  const queue = (place, options) => {
    place.dataset.drawn = "yes";
    last = last.then(() => draw(place, options)).then(() => new Promise(requestAnimationFrame));
  };
  const [close, outdated] = [new Set(), new Set()]; // figures near the screen, and those that have newer numbers
  const update = () => [...outdated].filter(place => close.has(place)).forEach(place => {
    outdated.delete(place);
    queue(place, rounds.automatic);
  });
  const near = new IntersectionObserver(seen => {
    for (const {isIntersecting, target} of seen) {
      if (isIntersecting) close.add(target); else close.delete(target);
      if (isIntersecting && !target.dataset.drawn) queue(target);
    }
    if (!updating) update();
  }, {rootMargin: "400px"});
  // Figures of a live run: those near the screen are drawn again, with a pause in between; the others when they come near.
  const PAUSE = 4_000; // milliseconds
  let updating = null, more = false;
  const refresh = () => {
    places().filter(place => place.dataset.drawn).forEach(place => outdated.add(place));
    if (updating) { more = true; return; }
    update();
    updating = last.then(() => new Promise(resolve => setTimeout(resolve, PAUSE))).then(() => {
      updating = null;
      if (more) { more = false; refresh(); }
    });
  };
  const watch = () => places().forEach(place => near.observe(place));
  const undrawn = () => places().filter(place => !place.dataset.drawn);
  const all = () => {
    undrawn().forEach(place => queue(place));
    return last;
  };

  addEventListener("theme", () => plots().forEach(show));
  // A page is printed once all its figures are drawn.
  const printed = async () => { await all(); print(); };
  addEventListener("keydown", event => {
    if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "p" || !undrawn().length) return;
    event.preventDefault();
    printed();
  });
  for (const button of document.querySelectorAll("button[data-print]")) button.addEventListener("click", printed);
  const sheet = ({told: {layout}}) => {
    const {type, title} = layout.yaxis ?? {};
    const rows = type === "category" || layout.polar || title?.text?.length > 26; // as high as it has rows, or words up its side
    return {width: PAPER.width, height: rows ? layout.height : Math.min(layout.height, PAPER.height)};
  };
  addEventListener("beforeprint", () => plots().forEach(plot => Plotly.relayout(plot, sheet(plot))));
  addEventListener("afterprint", () => plots().forEach(show));
  Object.assign(window.rounds, {draw, watch, all, refresh});
  watch();
})();
