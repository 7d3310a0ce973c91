// Numbers of a figure: its name, a description and a table, for screen readers and for copying.
"use strict";
(() => {
  const ROWS = 200, COLUMNS = 40; // of larger figures the table is cut, and says so
  const NAMES = 8; // series that a figure's description names
  const made = (tag, values = {}) => Object.assign(document.createElement(tag), values);
  const entities = {lt: "<", gt: ">", amp: "&"};
  // Plotly's small HTML as plain text: it is only ever put into a page by textContent.
  const plain = text => String(text ?? "").replace(/<br\s*\/?>/gi, " ").replace(/<[^>]*>/g, "")
    .replace(/&(lt|gt|amp);/g, (_, name) => entities[name]).trim();
  const axis = (layout, ref) => layout[`${ref[0]}axis${ref.slice(1)}`] ?? {};
  const title = found => plain(found.title?.text);
  const seen = data => data.filter(trace => trace.hoverinfo !== "skip" && (trace.x ?? trace.theta)?.length);

  const rounded = value => {
    if (value === null || value === undefined || Number.isNaN(value)) return "\u2013";
    if (typeof value !== "number") return plain(value);
    return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
  };
  const exact = value => value === null || value === undefined || Number.isNaN(value) ? "" : typeof value === "number" ? String(value) : plain(value);
  // A value with the interval that its figure draws around it.
  const spread = (value, error, k, number) => {
    const [up, down] = [error?.array?.[k] ?? 0, error?.arrayminus?.[k] ?? error?.array?.[k] ?? 0];
    return up || down ? `${number(value)} (${number(value - down)} to ${number(value + up)})` : number(value);
  };

  // The names and values of the points of a line, bar, step or radar series.
  const series = (trace, layout, number) => {
    if (trace.theta) {
      const said = typeof trace.customdata?.[0] === "string" ? trace.customdata : trace.r;
      const keys = [...new Set(trace.theta)]; // a radar ends where it began
      return {name: plain(trace.name), of: "", is: "", keys: keys.map(plain), values: keys.map((_, k) => number(said[k]))};
    }
    const [across, up] = [axis(layout, trace.xaxis ?? "x"), axis(layout, trace.yaxis ?? "y")];
    const lying = trace.orientation === "h" || (up.type === "category" && across.type !== "category");
    const [keys, values, of, is] = lying ? [trace.y, trace.x, up, across] : [trace.x, trace.y, across, up];
    const panel = layout.annotations?.[Number((trace.xaxis ?? "x1").slice(1) || 1) - 1]?.text; // a figure of several panels
    const name = plain(trace.name) || plain(panel) || title(is) || "value";
    const [own, other] = lying ? [trace.error_x, trace.error_y] : [trace.error_y, trace.error_x];
    return {
      name, of: title(of), is: title(is),
      keys: keys.map((key, k) => typeof key === "number" ? spread(key, other, k, number) : plain(key)),
      values: trace.type === "waterfall" ? trace.text.map(number) : values.map((value, k) => spread(value, own, k, number)),
    };
  };
  const heat = ({x, y, z, text}, layout, number) => ({
    head: [title(axis(layout, "y")) || "name", ...x.map(plain)],
    rows: y.map((name, i) => [plain(name), ...x.map((_, j) => number(text?.[i]?.[j] ?? z[i]?.[j]))]),
  });
  // One column per series where series share their points, else one below the other.
  const table = ({data, layout}, number = rounded) => {
    const traces = seen(data);
    if (traces[0]?.type === "heatmap") return heat(traces[0], layout, number);
    const all = traces.map(trace => series(trace, layout, number));
    const keys = [...new Set(all.flatMap(one => one.keys.map(String)))];
    const once = all.every(one => new Set(one.keys).size === one.keys.length);
    const [of, is] = ["of", "is"].map(part => all.map(one => one[part]).find(Boolean));
    if (once && keys.length <= 1.5 * Math.max(0, ...all.map(one => one.keys.length))) {
      const held = all.map(one => new Map(one.keys.map((key, k) => [String(key), one.values[k]])));
      return {head: [of ?? "name", ...all.map(one => one.name)], rows: keys.map(key => [key, ...held.map(one => one.get(key) ?? "\u2013")])};
    }
    return {
      head: ["series", of ?? "name", is ?? "value"],
      rows: all.flatMap(one => one.keys.map((key, k) => [one.name, String(key), one.values[k]])),
    };
  };

  // All numbers of a figure as CSV, unrounded. A spreadsheet would run a text that begins like a formula: it gets an apostrophe.
  const cell = text => `"${(/^([=+@\t\r]|-(?!\d))/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
  const csv = told => {
    const {head, rows} = table(told, exact);
    return `\ufeff${[head, ...rows].map(row => row.map(text => cell(String(text))).join(",")).join("\r\n")}\r\n`;
  };

  const shown = (told, link) => {
    const {head, rows} = table(told);
    const made_of = made("table");
    const line = made_of.createTHead().insertRow();
    head.slice(0, COLUMNS).forEach((text, k) => line.append(made("th", {scope: "col", className: k ? "number" : "", textContent: text})));
    const body = made_of.createTBody();
    for (const row of rows.slice(0, ROWS)) {
      const cells = row.slice(0, COLUMNS).map((text, k) => made(k ? "td" : "th", {className: k ? "number" : "arm", textContent: text}));
      cells[0].scope = "row";
      body.insertRow().append(...cells);
    }
    const cut = [[rows.length, ROWS, "rows"], [head.length, COLUMNS, "columns"]].filter(([all, most]) => all > most)
      .map(([all, most, what]) => `${most} of ${all} ${what}`);
    const box = made("div", {className: "scroll"});
    Object.entries({role: "region", tabindex: 0, "aria-label": `Numbers: ${name(told)}`}).forEach(([key, value]) => box.setAttribute(key, value));
    box.append(made_of);
    const note = made("p", {className: "quiet small", textContent: cut.length ? `This table has ${cut.join(" and ")}. ` : ""});
    note.append(made("a", {href: link, textContent: cut.length ? "Complete data as JSON" : "Data as JSON"}));
    return [box, note];
  };

  const halves = ({layout}) => String(layout.title?.text ?? "figure").split(/<br\s*\/?>/i);
  const name = told => plain(halves(told)[0]);
  // Description of a figure for screen readers: its name, its note and its series.
  const described = told => {
    const names = [...new Set(seen(told.data).map(trace => plain(trace.name)).filter(Boolean))];
    const more = names.length > NAMES ? ` and ${names.length - NAMES} more` : "";
    const parts = [name(told), plain(halves(told).slice(1).join(" ")), names.length ? `Shown: ${names.slice(0, NAMES).join(", ")}${more}` : ""];
    return [...parts.filter(Boolean), "The numbers are in the table below"].map(part => part.replace(/[.?]?$/, end => end || ".")).join(" ");
  };
  // A table that is made when it is opened, and made anew when the figure changes.
  const folded = (told, link) => {
    const details = made("details", {className: "numbers"});
    const summary = made("summary", {textContent: "Numbers"});
    details.append(summary);
    details.fill = () => { if (details.open) details.replaceChildren(summary, ...shown(told(), link())); };
    details.addEventListener("toggle", details.fill);
    return details;
  };
  window.rounds = Object.assign(window.rounds ?? {}, {plain, name, described, folded, csv});
})();
