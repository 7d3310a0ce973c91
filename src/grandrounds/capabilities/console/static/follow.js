// Follows runs with short requests: no connection stays open, since a browser has six per host. Hidden tabs make none.
"use strict";
(() => {
  const SOON = 2_000, LATER = 10_000; // milliseconds: while a run is running, and otherwise
  const automatic = {headers: {"x-automatic": "1"}}; // a request that does not prolong the session
  const follow = changed => {
    let version = "", waiting = null, asking = false, over = false;
    const ask = async () => {
      if (over || asking || document.hidden) return;
      clearTimeout(waiting);
      asking = true;
      let pause = LATER;
      try {
        const answer = await fetch(`/api/v1/progress?${new URLSearchParams({since: version})}`, automatic);
        if (answer.ok) {
          const {version: newest, running, runs} = await answer.json();
          version = newest;
          if (running) pause = SOON;
          if (!over && Object.keys(runs).length) changed(runs);
        }
      } catch { /* the console is away: try again later */ }
      asking = false;
      if (!over) waiting = setTimeout(ask, pause);
    };
    document.addEventListener("visibilitychange", ask);
    ask();
    return {close: () => { over = true; clearTimeout(waiting); }};
  };
  // a page that waits for the result of a run is loaded again when the run ends
  const reloadAtEnd = () => {
    const waiting = document.getElementById("waiting");
    if (waiting?.dataset.state !== "running") return;
    const following = follow(runs => {
      const now = runs[waiting.dataset.run];
      if (now === undefined || now.state === "running") return;
      following.close();
      location.reload();
    });
  };
  window.rounds = Object.assign(window.rounds ?? {}, {follow, reloadAtEnd, automatic});
})();
