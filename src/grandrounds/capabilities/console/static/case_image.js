// Opacity of the heat maps over the image.
"use strict";
(() => {
  document.getElementById("print").addEventListener("click", () => print());
  const all = document.getElementById("opacity");
  const panels = [...document.querySelectorAll(".panel[data-layer]")];
  const show = (panel, value) => {
    panel.querySelector(".over").style.opacity = String(value / 100);
    const own = panel.querySelector("input");
    if (!own) return;
    own.value = value;
    own.setAttribute("aria-valuetext", `${value}%`);
  };
  for (const panel of panels) {
    panel.querySelector("input")?.addEventListener("input", event => show(panel, event.target.value));
  }
  const together = () => {
    all.nextElementSibling.value = `${all.value}%`;
    all.setAttribute("aria-valuetext", `${all.value}%`);
    panels.forEach(panel => show(panel, all.value));
  };
  all.addEventListener("input", together);
  together();
})();
