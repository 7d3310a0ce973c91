// Light or dark: as the system says, until somebody chooses.
"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem("theme");
  const now = () => chosen() ?? (dark.matches ? "dark" : "light");
  const show = () => {
    root.dataset.theme = now();
    dispatchEvent(new CustomEvent("theme"));
  };
  show();
  dark.addEventListener("change", show);
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      localStorage.setItem("theme", now() === "dark" ? "light" : "dark");
      show();
    });
  });
})();
