// The choice of runs, and the figures of a comparison with a choice of axes.
"use strict";
(() => {
  const choice = document.getElementById("choice");
  if (choice) {
    const text = document.getElementById("filter");
    const chosen = document.getElementById("chosen");
    const rows = [...choice.tBodies[0].rows];
    text.addEventListener("input", () => {
      const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
    });
    choice.addEventListener("change", () => {
      const count = choice.querySelectorAll("input:checked").length;
      chosen.textContent = `${count} ${count === 1 ? "run" : "runs"} chosen`;
    });
  }

  const pareto = document.querySelector('figure[data-figure="pareto"]');
  const [x, y] = ["x", "y"].map(id => document.getElementById(id));
  if (pareto && x && y) {
    const said = document.getElementById("axes-said");
    x.value = x.dataset.first;
    const turn = () => {
      const same = x.value === y.value;
      said.textContent = same ? "Choose two different figures." : "";
      if (same) return;
      pareto.dataset.x = x.value;
      pareto.dataset.y = y.value;
      if (pareto.dataset.drawn) rounds.draw(pareto);
    };
    for (const axis of [x, y]) axis.addEventListener("change", turn);
    turn();
  }
})();
