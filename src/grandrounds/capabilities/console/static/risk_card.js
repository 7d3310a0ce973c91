// The arithmetic of a risk card: ticks are added up, and the risk of the sum is the printed one of the table.
"use strict";
(() => {
  rounds.reloadAtEnd();
  const terms = [...document.querySelectorAll("#terms input")];
  if (!document.getElementById("terms")) return;
  const [total, shown, interval, also, clear] = ["total", "shown", "interval", "also", "clear"].map(id => document.getElementById(id));
  const ranges = [...document.querySelectorAll("#totals tbody tr")];
  const places = (term, key) => term.dataset[key].split(" ").filter(Boolean).map(Number);
  const text = term => term.closest("label").querySelector("span").textContent;

  const add = () => {
    const sum = terms.filter(term => term.checked).reduce((points, term) => points + Number(term.dataset.points), 0);
    const at = ranges.find(range => sum <= Number(range.dataset.last)) ?? ranges.at(-1);
    for (const range of ranges) range === at ? range.setAttribute("aria-current", "true") : range.removeAttribute("aria-current");
    const [, risk, ends, patients] = [...at.cells].map(cell => cell.textContent);
    total.textContent = sum;
    shown.textContent = risk;
    interval.textContent = `95% CI ${ends}; ${patients} patients of the fit`;
    clear.disabled = !terms.some(term => term.checked);
  };
  // "age at most 40" holds with "age at most 60" and not with "age above 70": the others follow.
  const untick = (k, changed) => {
    if (!terms[k].checked) return;
    terms[k].checked = false;
    changed.push(k);
    terms.forEach((other, j) => { if (places(other, "implies").includes(k)) untick(j, changed); });
  };
  const changed = k => {
    const moved = [];
    if (terms[k].checked) {
      for (const j of places(terms[k], "implies")) {
        if (!terms[j].checked) moved.push(j);
        terms[j].checked = true;
      }
      for (const held of [k, ...places(terms[k], "implies")]) places(terms[held], "excludes").forEach(j => untick(j, moved));
    } else {
      terms.forEach((other, j) => { if (places(other, "implies").includes(k)) untick(j, moved); });
    }
    also.textContent = moved.map(j => `${terms[j].checked ? "Also ticked" : "No longer ticked"}: ${text(terms[j])}.`).join(" ");
    add();
  };
  terms.forEach((term, k) => term.addEventListener("change", () => changed(k)));
  clear.addEventListener("click", () => {
    for (const term of terms) term.checked = false;
    also.textContent = "";
    add();
    terms[0]?.focus();
  });
  document.getElementById("print").addEventListener("click", () => print());
  for (const term of terms) term.checked = false; // a browser may bring back ticks of before
  add();
})();
