// Filter and sort the list of runs, and follow those that are at work.
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
  heads.forEach((head, k) => head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const kind = head.dataset.kind;
    const order = (a, b) => {
      const [x, y] = [value(a, k, kind), value(b, k, kind)];
      if (kind === "number") return (isNaN(x) - isNaN(y)) || (up ? x - y : y - x) || 0; // what is not known comes last
      return up ? x.localeCompare(y) : y.localeCompare(x);
    };
    body.append(...rows().sort(order));
  }));

  // what goes on: rounds and states as the server says them; a run that is new, or done, is read in with the page
  const follow = new EventSource("/api/live");
  follow.addEventListener("runs", event => {
    for (const [name, told] of Object.entries(JSON.parse(event.data))) {
      const row = rows().find(r => r.dataset.run === name);
      if (!row || (told.state === "finished" && row.dataset.state !== "finished")) {
        follow.close();
        location.reload();
        return;
      }
      row.dataset.state = told.state;
      const tag = row.querySelector(".tag");
      tag.textContent = told.state;
      tag.className = `tag ${told.state}`;
      const cell = row.querySelector(".rounds");
      cell.dataset.value = told.rounds;
      cell.firstChild.textContent = `${told.rounds} of ${told.of}`;
      const bar = cell.querySelector("progress");
      if (bar) bar.value = told.rounds;
    }
  });
})();
