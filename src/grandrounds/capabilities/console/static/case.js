// What-if: controls request a new prediction for all changed values. Also shows log-odds on request.
"use strict";
(() => {
  const odds = document.getElementById("log-odds");
  odds?.addEventListener("change", () => {
    const place = document.querySelector("figure[data-figure=waterfall]");
    place.dataset.scale = odds.checked ? "log-odds" : "risk";
    rounds.draw(place);
  });
  const panel = document.getElementById("what-if");
  if (!panel) return;
  const answer = document.getElementById("answer");
  const reset = document.getElementById("reset");
  const another = document.getElementById("another");
  const controls = [...panel.querySelectorAll(".control")];
  const resting = answer.firstElementChild;
  const moved = new Map(); // column -> value
  const percent = share => `${(100 * share).toFixed(1)}%`;
  const signed = (value, digits) => `${value > 0 ? "+" : value < 0 ? "\u2212" : ""}${Math.abs(value).toFixed(digits)}`;
  const make = (tag, text = "", name = "") => {
    const made = document.createElement(tag);
    made.textContent = names.visible(text);
    if (name) made.className = name;
    return made;
  };

  const table = told => {
    const made = make("table");
    const head = made.createTHead().insertRow();
    for (const [text, name] of [["column", ""], ["value", "number"], [panel.dataset.unit, "number"], ["change", "number"]]) {
      head.append(make("th", text, name));
    }
    const body = made.createTBody();
    for (const {label, value, value_after, before, after, change} of told.reasons.slice(0, 12)) {
      const row = body.insertRow();
      row.append(make("td", label, "column"));
      row.append(make("td", value === value_after ? value : `${value} \u2192 ${value_after}`, "number"));
      row.append(make("td", `${signed(before, 3)} \u2192 ${signed(after, 3)}`, "number"));
      row.append(make("td", signed(change, 3), "number"));
    }
    return made;
  };
  const mark = risk => {
    const after = document.getElementById("scale-after");
    after.setAttribute("visibility", risk === null ? "hidden" : "visible");
    if (risk !== null) after.setAttribute("d", `M${(1000 * risk).toFixed(1)} 62 l-9 16 h18 z`);
    document.getElementById("key-after").hidden = risk === null;
  };
  const show = told => {
    const big = make("p", "", "big");
    const same = told.decision_before === told.decision_after;
    big.append(make("b", percent(told.after)), make("span", `${signed(told.points, 1)} points, from ${percent(told.before)};`, "quiet"),
      make("span", same ? `still ${told.decision_after}` : `${told.decision_before} \u2192 ${told.decision_after}`, same ? "quiet" : "turned"));
    const rest = [], more = make("details");
    more.append(make("summary", "Observed outcomes and changed contributions"));
    if (told.band) more.append(make("p", `${told.band.said} ${told.band.verdict}`, "quiet"));
    if (told.reasons.length) more.append(table(told));
    more.open = answer.querySelector("details")?.open ?? false;
    if (more.children.length > 1) rest.push(more);
    for (const note of told.notes) rest.push(make("p", note, "warn"));
    answer.replaceChildren(big, ...rest);
    mark(told.after);
  };
  let asked = 0, waiting = null;
  const ask = async () => {
    const mine = ++asked;
    reset.disabled = moved.size === 0;
    if (!moved.size) {
      answer.replaceChildren(resting);
      mark(null);
      return;
    }
    const query = new URLSearchParams({run: panel.dataset.run, case: panel.dataset.case});
    const csrf = document.querySelector('input[name="csrf"]')?.value ?? "";
    try {
      const got = await fetch(`/api/case/what-if?${query}`, {method: "POST",
        headers: {"content-type": "application/json", "x-csrf-token": csrf}, body: JSON.stringify(Object.fromEntries(moved))});
      const told = await got.json();
      if (mine !== asked) return;
      if (!got.ok) throw new Error(told.error);
      show(told);
    } catch (error) {
      if (mine === asked) answer.replaceChildren(make("p", error.message, "warn"));
    }
  };
  const soon = () => { clearTimeout(waiting); waiting = setTimeout(ask, 120); };

  const unset = (control, missing) => { // a missing value has no place on its slider
    const range = control.querySelector("input[type=range]");
    if (!range) return;
    control.classList.toggle("unset", missing);
    if (missing) range.setAttribute("aria-valuetext", "missing");
    else range.removeAttribute("aria-valuetext");
  };
  const set = (control, value) => { // a number, a word, or null for missing
    const own = control.querySelector("[data-own]").dataset.own;
    const text = value === null ? "" : String(value);
    const same = control.dataset.kind !== "choice" ? text === "" ? own === "" : own !== "" && Number(own) === Number(text) : text === own;
    if (same) moved.delete(control.dataset.column);
    else moved.set(control.dataset.column, value);
    control.classList.toggle("moved", !same);
    unset(control, value === null);
    soon();
  };
  for (const control of controls) {
    const select = control.querySelector("select");
    if (select) {
      select.addEventListener("change", () => set(control, select.value === "" ? null
        : control.dataset.kind === "yes-no" ? Number(select.value) : select.value));
      continue;
    }
    const [range, number] = ["range", "number"].map(kind => control.querySelector(`input[type=${kind}]`));
    range.addEventListener("input", () => { number.value = range.value; set(control, Number(range.value)); });
    number.addEventListener("input", () => {
      if (number.validity.badInput) return;
      if (number.value !== "") range.value = number.value;
      set(control, number.value === "" ? null : Number(number.value));
    });
  }
  const back = control => {
    const held = control.querySelector("[data-own]");
    const own = held.dataset.own;
    for (const input of control.querySelectorAll("input")) {
      input.value = own !== "" || input.type === "number" ? own : input.min;
    }
    unset(control, own === "");
    if (held.tagName === "SELECT") held.value = own;
    control.classList.remove("moved");
  };
  reset.addEventListener("click", () => {
    controls.forEach(back);
    moved.clear();
    ask();
  });
  another?.addEventListener("change", () => {
    const control = controls.find(c => c.dataset.column === another.value);
    if (!control) return;
    control.hidden = false;
    another.selectedOptions[0].remove();
    another.value = "";
    control.querySelector("input, select").focus();
  });
  controls.forEach(back); // a browser may bring back what was typed before the page was loaded again
})();
