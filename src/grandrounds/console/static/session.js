// Clears the page when its session ends, by the server's time limit and by polling the server, which does not count
// as using the session. A shared computer then shows no patient data.
"use strict";
(() => {
  const EVERY = 30_000, ANSWER = 5_000; // milliseconds between two questions, and for an answer
  const after = seconds => Date.now() + 1000 * seconds; // wall-clock time, which continues while the computer sleeps
  let ends = after(Number(document.body.dataset.session)), over = false, timer = null;

  const clear = () => {
    over = true;
    clearTimeout(timer);
    const made = (tag, values, ...inside) => {
      const found = Object.assign(document.createElement(tag), values);
      found.append(...inside);
      return found;
    };
    const next = new URLSearchParams({next: location.pathname + location.search});
    const again = made("a", {href: `/sign-in?${next}`, textContent: "Sign in again"});
    document.title = "Session ended \u00b7 Grand Rounds";
    document.body.replaceChildren(made("main", {}, made("section", {className: "card narrow", role: "alert"},
      made("h1", {textContent: "Session ended"}), made("p", {textContent: "This page was cleared."}), made("p", {}, again))));
    document.body.hidden = false;
  };
  const ask = async () => {
    if (over) return;
    clearTimeout(timer);
    if (Date.now() >= ends) document.body.hidden = true; // until the server confirms that another tab used the session
    try {
      const answer = await fetch("/api/session", {cache: "no-store", signal: AbortSignal.timeout(ANSWER)});
      if (answer.status === 401) return clear();
      if (answer.ok) ends = after((await answer.json()).seconds);
    } catch { /* server not reachable: the time limit applies */ }
    if (over) return;
    if (Date.now() >= ends) return clear();
    document.body.hidden = false;
    timer = setTimeout(ask, Math.min(EVERY, Math.max(ends - Date.now(), 500)));
  };
  addEventListener("pageshow", ({persisted}) => { // a page restored by the Back button
    if (persisted) { document.body.hidden = true; ask(); }
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
  timer = setTimeout(ask, Math.min(EVERY, Math.max(ends - Date.now(), 500)));
})();
