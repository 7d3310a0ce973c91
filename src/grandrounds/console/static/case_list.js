// The patients of this site, searched by POST so that no name appears in an address.
"use strict";
(() => {
  const form = document.getElementById("filters");
  const body = document.getElementById("patients").tBodies[0];
  const count = document.getElementById("count");
  const [before, after, shown] = ["before", "after", "page"].map(id => document.getElementById(id));
  const words = {test: "test", val: "validation", train: "training", new: "new patient"};
  const percent = share => `${(100 * share).toFixed(1)}%`;
  let page = 1, asked = 0;

  const cell = (row, text, name = "") => {
    const made = row.insertCell();
    if (name) made.className = name;
    made.textContent = text;
    return made;
  };
  const line = (patient, named, isRisk) => {
    const row = document.createElement("tr");
    const link = document.createElement("a");
    link.href = `/case?${new URLSearchParams({run: form.dataset.run, case: patient.case})}`;
    link.textContent = patient.case;
    cell(row, "").append(link);
    if (named) cell(row, "").append(names.bdi(patient.patient));
    cell(row, words[patient.part ?? "new"] ?? patient.part);
    cell(row, isRisk ? percent(patient.risk) : patient.risk.toPrecision(4), "number");
    const bar = cell(row, "");
    if (isRisk) {
      const meter = document.createElement("meter");
      meter.min = 0; meter.max = 1; meter.value = patient.risk;
      meter.setAttribute("aria-hidden", "true");
      bar.append(meter);
    }
    cell(row, "").append(names.bdi(patient.decision));
    cell(row, "").append(names.bdi(patient.outcome ?? "not known"));
    const told = cell(row, "");
    if (patient.verdict) {
      const tag = document.createElement("span");
      tag.className = `tag turned-${patient.verdict.replace(" ", "-")}`;
      tag.textContent = patient.verdict;
      told.append(tag);
    }
    return row;
  };
  const options = (select, counts, name) => {
    if (select.options.length > 1) return;
    for (const [key, many] of Object.entries(counts)) select.append(new Option(`${name(key)} (${many})`, key));
  };
  const show = async () => {
    const mine = ++asked;
    const {find, ...chosen} = Object.fromEntries(new FormData(form));
    const query = new URLSearchParams({run: form.dataset.run, page, ...chosen});
    const csrf = document.querySelector('input[name="csrf"]')?.value ?? "";
    try {
      const answer = await fetch(`/api/case/patients?${query}`, {method: "POST",
        headers: {"content-type": "application/json", "x-csrf-token": csrf}, body: JSON.stringify({find})});
      const told = await answer.json();
      if (mine !== asked) return;
      if (!answer.ok) throw new Error(told.error);
      options(form.elements.part, told.parts, key => words[key] ?? key);
      options(form.elements.verdict, told.verdicts, key => key);
      const named = told.patients.some(patient => patient.patient !== null);
      document.getElementById("named").hidden = !named;
      const isRisk = !told.prediction;
      document.getElementById("risk-head").textContent = told.prediction || (told.event === null ? "certainty" : `risk of ${told.event}`);
      body.replaceChildren(...told.patients.map(patient => line(patient, named, isRisk)));
      const cut = told.threshold === null ? "" : `; flagged from a risk of ${percent(told.threshold)}`;
      count.textContent = `${told.matching} of ${told.all}${cut}`;
      document.getElementById("notes").textContent = told.notes.join(" ");
      page = told.page;
      shown.textContent = `page ${told.page} of ${told.pages}`;
      before.disabled = told.page <= 1;
      after.disabled = told.page >= told.pages;
    } catch (error) {
      if (mine === asked) count.textContent = error.message;
    }
  };
  let waiting = null;
  const soon = () => { page = 1; clearTimeout(waiting); waiting = setTimeout(show, 150); };
  form.addEventListener("input", soon);
  form.addEventListener("submit", event => { event.preventDefault(); soon(); });
  before.addEventListener("click", () => { page -= 1; show(); });
  after.addEventListener("click", () => { page += 1; show(); });
  show();
})();
