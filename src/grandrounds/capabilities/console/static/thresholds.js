// The slider of the threshold explorer: figures of the chosen threshold, for the patients of the page and for each hospital.
// All numbers come from the API; nothing is computed here but their text.
"use strict";
(() => {
  const explorer = document.getElementById("explorer");
  if (!explorer) return;
  document.getElementById("site")?.addEventListener("change", event => event.target.form.submit());
  const [slider, shown, own, meaning, counts, at] = ["threshold", "shown", "own", "meaning", "counts", "at"].map(id => document.getElementById(id));
  const start = Number(explorer.dataset.own);
  const whole = value => value.toLocaleString("en-US");
  const percent = value => `${(100 * value).toFixed(1)}%`;
  const digits = key => key === "alerts_per_100" ? 1 : 4;
  const shares = new Set(["sensitivity", "specificity", "ppv", "accuracy"]);
  const text = (key, value) => shares.has(key) ? percent(value) : value.toFixed(digits(key));
  const interval = (key, {low, high}) => low === null ? "" : shares.has(key)
    ? `${(100 * low).toFixed(1)} to ${(100 * high).toFixed(1)}`
    : `${low.toFixed(Math.max(1, digits(key) - 1))} to ${high.toFixed(Math.max(1, digits(key) - 1))}`;
  const quiet = said => Object.assign(document.createElement("span"), {className: "quiet ci", textContent: said});

  const tiles = step => {
    for (const tile of explorer.querySelectorAll(".tile")) {
      const {key} = tile.dataset, found = step[key];
      tile.querySelector("b").textContent = found ? text(key, found.value) : "–";
      tile.querySelector(".ci").textContent = found ? `95% CI ${interval(key, found)}` : "";
    }
  };
  // The steps of a hospital next to a threshold: the same one twice where its counts have an edge there.
  const next = (steps, threshold) => {
    const above = steps.findIndex(step => step.threshold > threshold - 1e-9);
    const exact = above >= 0 && Math.abs(steps[above].threshold - threshold) < 1e-9;
    return exact ? [steps[above], steps[above]] : [steps[Math.max(0, above - 1)], steps[above < 0 ? steps.length - 1 : above]];
  };
  const cell = (place, key, [below, above]) => {
    const [first, second] = [below[key], above[key]];
    if (below === above) {
      place.replaceChildren(...(first ? [text(key, first.value), " ", quiet(interval(key, first))] : [quiet("–")]));
    } else if (first && second) {
      const ends = [first.value, second.value].sort((a, b) => a - b).map(value => text(key, value));
      place.replaceChildren(quiet(ends[0] === ends[1] ? ends[0] : ends.join(" to ")));
    } else {
      place.replaceChildren(quiet("–"));
    }
  };
  const hospitals = (found, threshold) => {
    const by = new Map(found.hospitals.map(curve => [curve.name, curve]));
    for (const row of document.querySelectorAll("#each tbody tr")) {
      const steps = next(by.get(row.dataset.site).steps, threshold);
      for (const place of row.querySelectorAll("[data-key]")) cell(place, place.dataset.key, steps);
    }
    if (at) at.textContent = percent(threshold);
  };
  const show = (found, curve) => {
    const k = Number(slider.value), step = curve.steps[k];
    const is = k === start ? ` This is ${explorer.dataset.ownName}.` : "";
    shown.textContent = percent(step.threshold);
    slider.setAttribute("aria-valuetext", percent(step.threshold));
    meaning.textContent = `A predicted risk of ${percent(step.threshold)} or more raises an alert.${is}`;
    own.disabled = k === start;
    counts.textContent = `${whole(step.true_positives)} of ${whole(curve.events)} patients with the event are found, ${whole(step.false_negatives)} are missed; ${whole(step.false_positives)} of ${whole(curve.rows - curve.events)} without it get an alert.`;
    tiles(step);
    hospitals(found, step.threshold);
  };
  const begin = async () => {
    const answer = await fetch(`/api/v1/runs/${encodeURIComponent(explorer.dataset.run)}/thresholds`);
    if (!answer.ok) throw new Error((await answer.json()).error);
    const found = await answer.json();
    const curve = explorer.dataset.site ? found.hospitals.find(one => one.name === explorer.dataset.site) : found.overall;
    slider.addEventListener("input", () => show(found, curve));
    own.addEventListener("click", () => { slider.value = start; show(found, curve); });
    slider.disabled = curve.steps.length < 4;
    slider.setAttribute("aria-valuetext", percent(curve.steps[start].threshold));
    explorer.dataset.ready = "yes";
  };
  begin().catch(error => { meaning.textContent = `The slider cannot be used: ${error.message}`; slider.disabled = true; });
})();
