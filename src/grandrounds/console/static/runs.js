// Filter and sort the list of runs, and follow running ones.
"use strict";
(() => {
  const table = document.getElementById("runs");
  const body = table.tBodies[0];
  const text = document.getElementById("filter");
  const state = document.getElementById("state");
  const count = document.getElementById("count");
  const rows = () => [...body.rows].filter(row => row.dataset.run !== undefined);

  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows()) {
      const said = row.textContent.toLowerCase();
      row.hidden = !(words.every(word => said.includes(word)) && (!state.value || row.dataset.state === state.value));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows().length} runs`;
  };
  text.addEventListener("input", filter);
  state.addEventListener("change", filter);

  const compare = document.getElementById("compare-chosen");
  const choose = () => {
    const chosen = body.querySelectorAll('input[form="compare"]:checked').length;
    compare.disabled = !chosen;
    compare.textContent = chosen ? `Compare ${chosen} ${chosen === 1 ? "run" : "runs"}` : "Compare chosen runs";
  };
  body.addEventListener("change", choose);
  choose();

  const value = (row, k, kind) => {
    const cell = row.cells[k];
    if (kind !== "number") return cell.textContent.trim().toLowerCase();
    return cell.dataset.value === "" ? NaN : Number(cell.dataset.value);
  };
  const heads = [...table.tHead.rows[0].cells];
  const sort = () => {
    const k = heads.findIndex(head => head.hasAttribute("aria-sort"));
    if (k < 0) return;
    const up = heads[k].getAttribute("aria-sort") === "ascending";
    const kind = heads[k].dataset.kind;
    const order = (a, b) => {
      const [x, y] = [value(a, k, kind), value(b, k, kind)];
      if (kind === "number") return (isNaN(x) - isNaN(y)) || (up ? x - y : y - x) || 0; // unknown values come last
      return up ? x.localeCompare(y) : y.localeCompare(x);
    };
    body.append(...rows().sort(order));
  };
  heads.forEach(head => head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    sort();
  }));

  // a new or finished run reloads the table; filter, order and selection stay
  const read = async () => {
    const page = await (await fetch("/")).text();
    const [from, to] = [page.indexOf("<tbody>"), page.indexOf("</tbody>")];
    if (from < 0) { location.reload(); return; } // signed out meanwhile
    const now = new DOMParser().parseFromString(`<table>${page.slice(from, to)}</table>`, "text/html").querySelector("tbody");
    const chosen = new Set([...body.querySelectorAll('input[form="compare"]:checked')].map(box => box.value));
    body.replaceChildren(...now.rows);
    for (const box of body.querySelectorAll('input[form="compare"]')) box.checked = chosen.has(box.value);
    sort();
    filter();
    choose();
  };
  let [reading, more] = [false, false];
  const again = async () => {
    more = true; // updates that arrive during the request may not be in the table yet
    if (reading) return;
    reading = true;
    try {
      while (more) { more = false; await read(); }
    } finally { reading = false; }
  };

  // progress: rounds and states from the server
  rounds.follow(runs => {
    for (const [name, told] of Object.entries(runs)) {
      const row = rows().find(r => r.dataset.run === name);
      if (!row || (told.state === "finished" && row.dataset.state !== "finished")) {
        again();
        continue;
      }
      row.dataset.state = told.state;
      const tag = row.querySelector(".tag");
      tag.textContent = told.state;
      tag.className = `tag ${told.state}`;
      const cell = row.querySelector(".rounds");
      cell.dataset.value = told.rounds;
      cell.firstChild.textContent = "exact" in cell.dataset ? `${told.rounds} ${told.rounds === 1 ? "exchange" : "exchanges"}` : `${told.rounds} of ${told.of}`;
      const bar = cell.querySelector("progress");
      if (bar) bar.value = told.rounds;
    }
  });
})();
