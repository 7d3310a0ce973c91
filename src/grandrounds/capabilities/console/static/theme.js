// Light or dark theme: the system's, unless the user has chosen one. Print is light.
"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paper = matchMedia("print");
  let printing = false;
  const chosen = () => localStorage.getItem("theme");
  const now = () => printing || paper.matches ? "light" : chosen() ?? (dark.matches ? "dark" : "light");
  const show = () => {
    const told = now();
    document.getElementById("theme")?.setAttribute("aria-pressed", String(told === "dark"));
    if (root.dataset.theme === told) return;
    root.dataset.theme = told;
    dispatchEvent(new CustomEvent("theme"));
  };
  show();
  dark.addEventListener("change", show);
  paper.addEventListener("change", show);
  addEventListener("beforeprint", () => { printing = true; show(); });
  addEventListener("afterprint", () => { printing = false; show(); });
  addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme").addEventListener("click", () => {
      localStorage.setItem("theme", now() === "dark" ? "light" : "dark");
      show();
    });
  });
})();
