// Follows the runs of the list, and counts those chosen to compare. Search, order and pages are the server's.
"use strict";
(() => {
  const compare = document.getElementById("compare-chosen");
  const boxes = () => [...document.querySelectorAll('#runs input[form="compare"]')];
  const choose = () => {
    const chosen = boxes().filter(box => box.checked).length;
    compare.disabled = !chosen;
    compare.textContent = chosen ? `Compare ${chosen} ${chosen === 1 ? "run" : "runs"}` : "Compare chosen runs";
  };
  document.getElementById("runs").addEventListener("change", choose);
  choose();

  // a new or finished run loads this page of the list again; the selection stays
  const PARTS = ["#counts", "#now", "#count", "#runs tbody"];
  const read = async () => {
    const answer = await fetch(location.href, rounds.automatic);
    const text = (await answer.text()).replace(/<style[^]*?<\/style>/g, ""); // the policy of this page has another nonce
    const page = new DOMParser().parseFromString(text, "text/html");
    if (page.querySelector("#runs") === null) { location.reload(); return; } // signed out meanwhile
    const chosen = new Set(boxes().filter(box => box.checked).map(box => box.value));
    if (!document.querySelector("#now") !== !page.querySelector("#now")) { location.reload(); return; }
    for (const part of PARTS) {
      const [now, old] = [page.querySelector(part), document.querySelector(part)];
      if (now && old) old.replaceChildren(...now.childNodes);
    }
    for (const box of boxes()) box.checked = chosen.has(box.value);
    choose();
  };
  let [reading, more] = [false, false];
  const again = async () => {
    more = true; // updates that arrive during the request may not be in the list yet
    if (reading) return;
    reading = true;
    try {
      while (more) { more = false; await read(); }
    } finally { reading = false; }
  };

  const write = (place, {rounds, of}) => {
    const text = place.querySelector(".rounds");
    if (text) text.textContent = "exact" in text.dataset ? `${rounds} ${rounds === 1 ? "exchange" : "exchanges"}` : `${rounds} of ${of} rounds`;
    const bar = place.querySelector("progress");
    if (bar) bar.value = rounds;
  };
  const seen = new Map(); // states by run
  let first = true;
  rounds.follow(runs => {
    for (const [name, told] of Object.entries(runs)) {
      const places = document.querySelectorAll(`[data-run="${CSS.escape(name)}"]`);
      const shown = [...places].find(place => place.dataset.state)?.dataset.state ?? seen.get(name);
      if (first ? shown !== undefined && shown !== told.state : shown !== told.state) again();
      seen.set(name, told.state);
      places.forEach(place => write(place, told));
    }
    first = false;
  });
})();
