// The number of chosen runs, and the figures of a comparison with a choice of axes.
"use strict";
(() => {
  const choice = document.getElementById("choice");
  if (choice) {
    const chosen = document.getElementById("chosen");
    const form = choice.closest("form");
    const tell = () => {
      const count = form.querySelectorAll("input:checked").length;
      chosen.textContent = count ? `${count} ${count === 1 ? "run" : "runs"} chosen` : "";
    };
    form.addEventListener("change", tell);
    tell();
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
