// The patients of this site, searched by POST so that no name appears in an address.
"use strict";
(() => {
  const form = document.getElementById("filters");
  const body = document.getElementById("patients").tBodies[0];
  const [count, chips, event] = ["count", "chips", "event"].map(id => document.getElementById(id));
  const [before, after, shown] = ["before", "after", "page"].map(id => document.getElementById(id));
  const words = {test: "test", val: "validation", train: "training", new: "new patient"};
  const kinds = [["", "All"], ["flagged", "Flagged"], ["near miss", "Near misses"], ["missed", "Missed"],
    ["false alarm", "False alarms"], ["wrong", "Wrong"], ["incomplete", "Half of the inputs missing or more"]];
  const choices = ["flagged", "incomplete"];
  const percent = share => `${(100 * share).toFixed(1)}%`;
  let page = 1, asked = 0, chosen = "";

  const cell = (row, text, name = "") => {
    const made = row.insertCell();
    if (name) made.className = name;
    made.textContent = text;
    return made;
  };
  const tag = (text, name) => Object.assign(document.createElement("span"), {className: `tag ${name}`, textContent: text});
  const drawn = (name, values) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
    return made;
  };
  const bar = (risk, cut) => { // the risk, and the threshold as a line
    const made = drawn("svg", {class: "risk-bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true"});
    made.append(drawn("rect", {class: "ground", width: 100, height: 10}), drawn("rect", {class: cut !== null && risk >= cut
      ? "flagged" : "risk", width: (100 * risk).toFixed(2), height: 10}));
    if (cut !== null) made.append(drawn("rect", {class: "cut", x: (100 * cut - .4).toFixed(2), width: .8, height: 10}));
    return made;
  };
  const line = (patient, list) => {
    const row = document.createElement("tr");
    const link = document.createElement("a");
    link.href = `/case?${new URLSearchParams({run: form.dataset.run, case: patient.case})}`;
    if (patient.thumbnail) {
      const small = Object.assign(document.createElement("img"), {src: patient.thumbnail, alt: "", className: "thumbnail"});
      cell(row, "").append(small);
    }
    link.append(patient.patient === null ? String(patient.case) : names.bdi(patient.patient));
    const who = cell(row, "");
    who.append(link);
    if (patient.patient !== null) who.append(Object.assign(document.createElement("span"), {className: "quiet small", textContent: ` row ${patient.case}`}));
    const isRisk = !list.prediction;
    cell(row, isRisk ? percent(patient.risk) : patient.risk.toPrecision(4), "number risk");
    const place = cell(row, "");
    if (isRisk) place.append(bar(patient.risk, list.threshold));
    const flagged = list.event_class !== null && list.threshold !== null ? patient.decision === list.event_class : null;
    const decided = cell(row, "");
    if (flagged === null) decided.append(names.bdi(patient.decision));
    else decided.append(flagged ? tag("flagged", "flagged") : "not flagged");
    if (list.inputs) cell(row, patient.missing ? `${patient.missing} of ${list.inputs}` : "none", patient.missing * 2 >= list.inputs ? "number many" : "number");
    cell(row, "").append(names.bdi(patient.outcome ?? "not known"));
    const verdict = cell(row, "");
    if (patient.verdict) verdict.append(tag(patient.verdict === "right" ? "correct" : patient.verdict, `turned-${patient.verdict.replace(" ", "-")}`));
    cell(row, words[patient.part ?? "new"] ?? patient.part, "quiet");
    return row;
  };
  const splits = counts => {
    const select = form.elements.part;
    if (select.options.length > 1) return;
    for (const [key, many] of Object.entries(counts)) select.append(new Option(`${words[key] ?? key} (${many})`, key));
    select.value = form.dataset.part;
  };
  const offer = list => {
    const counts = {...list.verdicts, ...list.choices, "": form.elements.part.value ? list.parts[form.elements.part.value] ?? 0 : list.all};
    chips.replaceChildren(...kinds.filter(([key]) => counts[key] || key === chosen).map(([key, name]) => {
      const made = document.createElement("button");
      made.type = "button";
      made.setAttribute("aria-pressed", String(key === chosen));
      made.append(name, " ", Object.assign(document.createElement("b"), {textContent: counts[key] ?? 0}));
      made.addEventListener("click", () => { chosen = key; page = 1; show().then(() => chips.querySelector("[aria-pressed=true]")?.focus()); });
      return made;
    }));
  };
  const show = async () => {
    const mine = ++asked;
    const {find, ...rest} = Object.fromEntries(new FormData(form));
    const filter = chosen ? {[choices.includes(chosen) ? "choice" : "verdict"]: chosen} : {};
    const part = form.elements.part.options.length > 1 ? rest.part : form.dataset.part; // before the first answer
    const query = new URLSearchParams({run: form.dataset.run, page, ...rest, ...filter, part});
    const csrf = document.querySelector('input[name="csrf"]')?.value ?? "";
    try {
      const answer = await fetch(`/api/case/patients?${query}`, {method: "POST",
        headers: {"content-type": "application/json", "x-csrf-token": csrf}, body: JSON.stringify({find})});
      const list = await answer.json();
      if (mine !== asked) return;
      if (!answer.ok) throw new Error(list.error);
      splits(list.parts);
      offer(list);
      document.getElementById("missing-head").hidden = !list.inputs;
      document.getElementById("risk-head").textContent = list.prediction || (list.event === null ? "certainty" : "risk");
      event.textContent = list.event === null ? "" : `: risk of ${list.event}, flagged at ${percent(list.threshold)} or more`;
      body.replaceChildren(...list.patients.map(patient => line(patient, list)));
      count.textContent = `${list.matching} of ${list.all}`;
      document.getElementById("notes").textContent = list.notes.join(" ");
      page = list.page;
      shown.textContent = `page ${list.page} of ${list.pages}`;
      before.disabled = list.page <= 1;
      after.disabled = list.page >= list.pages;
    } catch (error) {
      if (mine === asked) count.textContent = error.message;
    }
  };
  let waiting = null;
  const soon = () => { page = 1; clearTimeout(waiting); waiting = setTimeout(show, 150); };
  form.addEventListener("input", soon);
  form.addEventListener("submit", happened => { happened.preventDefault(); soon(); });
  before.addEventListener("click", () => { page -= 1; show(); });
  after.addEventListener("click", () => { page += 1; show(); });
  show();
})();
