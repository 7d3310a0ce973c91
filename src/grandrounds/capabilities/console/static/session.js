// Clears the page when its session ends, by the server's time limit and by polling the server, which does not count
// as using the session. Locks it after a time without input in any tab. A shared computer then shows no patient data.
"use strict";
(() => {
  const EVERY = 30_000, ANSWER = 5_000; // milliseconds between two questions, and for an answer
  const after = seconds => Date.now() + 1000 * seconds; // wall-clock time, which continues while the computer sleeps
  const page = location.pathname + location.search;
  const {session, lock} = document.body.dataset;
  const csrf = document.querySelector('input[name="csrf"]')?.value ?? "";
  let ends = after(Number(session)), over = false, timer = null;

  const made = (tag, values, ...inside) => {
    const found = Object.assign(document.createElement(tag), values);
    found.append(...inside);
    return found;
  };
  const empty = (title, sentence, ...rest) => { // nothing of the page stays in the document
    over = true;
    clearTimeout(timer);
    document.title = `${title} \u00b7 Grand Rounds`;
    document.body.replaceChildren(made("main", {}, made("section", {className: "card narrow", role: "alert"},
      made("h1", {textContent: title}), made("p", {textContent: sentence}), ...rest)));
    document.body.hidden = false;
  };
  const clear = () => empty("Session ended", "This page was cleared.", made("p", {}, made("a", {
    href: `/sign-in?${new URLSearchParams({next: page})}`, textContent: "Sign in again"})));

  const quiet = lock === undefined ? Infinity : 1000 * Number(lock);
  const tabs = lock === undefined ? null : new BroadcastChannel("rounds-input");
  const unlock = `/unlock?${new URLSearchParams({next: page})}`;
  let used = Date.now(), told = 0, watch = null;
  const leave = () => {
    clearTimeout(watch);
    empty("Locked", "This page was not used for a while.", made("p", {}, made("a", {href: unlock, textContent: "Unlock"})));
  };
  const locked = async () => { // the server locks the session too: other tabs and Back show nothing
    if (over) return;
    leave();
    tabs?.postMessage("locked");
    try {
      await fetch("/lock", {method: "POST", headers: {"x-csrf-token": csrf}, signal: AbortSignal.timeout(ANSWER)});
      location.replace(unlock);
    } catch { /* server not reachable: the page stays empty */ }
  };
  const check = () => {
    clearTimeout(watch);
    if (over || quiet === Infinity) return;
    const left = used + quiet - Date.now();
    if (left <= 0) locked();
    else watch = setTimeout(check, Math.min(left + 20, EVERY));
  };
  const input = () => {
    const now = Date.now();
    if (now - used >= quiet) return check(); // the computer slept: this input comes too late
    used = now;
    if (now - told > 1000) { told = now; tabs?.postMessage("input"); }
  };
  if (tabs) {
    for (const name of ["pointerdown", "pointermove", "keydown", "wheel", "touchstart"]) addEventListener(name, input, {passive: true, capture: true});
    tabs.addEventListener("message", ({data}) => {
      if (data === "input") used = Date.now();
      else if (data === "locked" && !over) { leave(); location.replace(unlock); }
    });
    check();
  }

  const ask = async () => {
    if (over) return;
    clearTimeout(timer);
    if (Date.now() >= ends) document.body.hidden = true; // until the server confirms that another tab used the session
    try {
      const answer = await fetch("/api/session", {cache: "no-store", signal: AbortSignal.timeout(ANSWER)});
      if (answer.status === 401) return clear();
      if (answer.ok) {
        const state = await answer.json();
        ends = after(state.seconds);
        if (state.locked && tabs && !over) { leave(); return location.replace(unlock); }
      }
    } catch { /* server not reachable: the time limit applies */ }
    if (over) return;
    if (Date.now() >= ends) return clear();
    document.body.hidden = false;
    timer = setTimeout(ask, Math.min(EVERY, Math.max(ends - Date.now(), 500)));
  };
  addEventListener("pageshow", ({persisted}) => { // a page restored by the Back button
    if (persisted) { document.body.hidden = true; check(); ask(); }
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) { check(); ask(); } });
  timer = setTimeout(ask, Math.min(EVERY, Math.max(ends - Date.now(), 500)));
})();
