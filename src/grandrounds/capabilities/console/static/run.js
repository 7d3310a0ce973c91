// The page of a run: the weights of a round by site, and the progress of a run that is not finished.
"use strict";
// Explains a site's weight in a round: a slider over rounds, a button per site, and the explanation.
const weighing = run => {
  const slider = document.getElementById("round");
  const shown = document.getElementById("round-shown");
  const said = document.getElementById("round-why");
  const sites = document.getElementById("sites");
  const why = document.getElementById("why");
  let byItself = false; // the page asks because a round was added, and not because of the user
  const get = async (path, query) => {
    const answer = await fetch(`${path}?${new URLSearchParams({run, ...query})}`, byItself ? rounds.automatic : {});
    const told = await answer.json();
    if (!answer.ok) throw new Error(told.error);
    return told;
  };
  const say = (where, lines) => where.replaceChildren(...lines.map(line => {
    const p = document.createElement("p");
    p.textContent = names.visible(line);
    return p;
  }));
  let chosen = null;
  const explain = async site => {
    chosen = site;
    for (const button of sites.children) button.setAttribute("aria-pressed", String(button.dataset.site === site));
    const round = slider.value;
    const lines = await get("/api/run/why", {round, site}).catch(error => [error.message]);
    if (chosen === site && slider.value === round) say(why, lines); // a late answer does not replace that of a later click
  };
  const tell = () => {
    shown.textContent = slider.value;
    slider.setAttribute("aria-valuetext", `round ${slider.value} of ${slider.max}`);
  };
  const addButton = site => {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.site = site;
    button.addEventListener("click", () => { byItself = false; explain(site); });
    return button;
  };
  // One request at a time: a round that comes meanwhile is shown after this one, so that a fast run starves nothing.
  let current = null, again = false;
  const show = () => {
    tell();
    again = true;
    return current ??= (async () => {
      try {
        while (again) { again = false; await showRound(); }
      } finally { current = null; }
    })();
  };
  const showRound = async () => {
    const round = await get("/api/run/round", {round: slider.value});
    chosen ??= round.sites[0]?.site ?? null; // the heaviest site is explained first
    said.textContent = names.visible(round.why);
    const before = new Map([...sites.children].map(button => [button.dataset.site, button]));
    const held = sites.contains(document.activeElement) ? document.activeElement.dataset.site : null;
    const buttons = round.sites.map(({site, weight, missing}) => {
      const button = before.get(site) ?? addButton(site); // a button that is pressed at this moment stays
      button.setAttribute("aria-pressed", String(site === chosen));
      button.replaceChildren(names.bdi(site), missing !== null ? ": missing" : weight === null ? "" : ` ${(100 * weight).toFixed(1)}%`);
      return button;
    });
    if (buttons.length !== sites.children.length || buttons.some((button, k) => button !== sites.children[k])) {
      sites.replaceChildren(...buttons);
      if (held !== null) buttons.find(button => button.dataset.site === held)?.focus(); // keep the keyboard focus
    }
    if (round.sites.some(({site}) => site === chosen)) await explain(chosen);
    else why.replaceChildren();
    const drawn = document.querySelector('figure[data-figure="weights-by-signal"]');
    if (drawn) {
      drawn.dataset.round = slider.value;
      if (drawn.dataset.drawn && moved) rounds.draw(drawn);
      moved = false;
    }
  };
  let moved = false; // by the user: a live run's figures are drawn by `rounds.refresh`
  let waiting = null;
  slider.addEventListener("input", () => {
    [moved, byItself] = [true, false];
    tell();
    clearTimeout(waiting);
    waiting = setTimeout(show, 120);
  });
  if (!slider.disabled) show();

  // a click on a site in a figure selects that site; figures shorten long names
  const same = (called, site) => called === names.visible(site) || (called.endsWith("\u2026") && names.visible(site).startsWith(called.slice(0, -1)));
  document.addEventListener("picked", async ({detail: {round, called}}) => {
    const at = round ?? Number(slider.value);
    const there = (await get("/api/run/round", {round: at})).sites.find(({site}) => called.some(name => same(name, site)));
    if (there === undefined) return;
    chosen = there.site;
    slider.value = at;
    moved = true;
    await show();
    [...sites.children].find(button => button.dataset.site === chosen)?.focus();
  });
  return newest => {
    const last = slider.value === slider.max || slider.disabled;
    slider.disabled = false;
    slider.max = newest;
    if (last) slider.value = newest;
    byItself = true;
    show();
  };
};

(() => {
  const head = document.getElementById("run-head");
  const run = head.dataset.run;
  const advance = document.getElementById("why-panel") ? weighing(run) : () => {};
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      button.textContent = "Copied";
    });
  }
  // a running run: update the number of rounds, and reload the page at the end
  const state = document.getElementById("state");
  if (state.textContent === "finished") return;
  const follow = rounds.follow(runs => {
    const told = runs[run];
    if (told === undefined) return;
    const first = head.dataset.rounds === "0" && told.rounds > 0; // now there are figures
    if (first || (told.state !== "running" && state.textContent !== told.state)) {
      follow.close();
      location.reload();
      return;
    }
    for (const place of document.querySelectorAll("#rounds, .rounds-done")) place.textContent = told.rounds;
    if (told.rounds > Number(head.dataset.rounds)) {
      head.dataset.rounds = told.rounds;
      advance(told.rounds);
      rounds.refresh();
    }
  });
})();
