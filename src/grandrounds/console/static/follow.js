// Follows running runs. A browser has six connections per host, so hidden tabs hold none; and
// a refused or lost stream is requested again.
"use strict";
(() => {
  const AGAIN = 10_000; // milliseconds
  const follow = heard => {
    let stream = null, waiting = null, over = false;
    const stop = () => {
      clearTimeout(waiting);
      stream?.close();
      stream = null;
    };
    const start = () => {
      stop();
      if (over || document.hidden) return;
      stream = new EventSource("/api/live");
      stream.addEventListener("runs", event => heard(JSON.parse(event.data)));
      stream.addEventListener("error", () => { // browsers reconnect by themselves, but not after a refusal
        if (stream?.readyState !== EventSource.CLOSED) return;
        stop();
        waiting = setTimeout(start, AGAIN);
      });
    };
    document.addEventListener("visibilitychange", start);
    start();
    return {close: () => { over = true; stop(); }};
  };
  // a page that waits for the result of a run is loaded again when the run ends
  const reloadAtEnd = () => {
    const waiting = document.getElementById("waiting");
    if (waiting?.dataset.state !== "running") return;
    const following = follow(runs => {
      const told = runs[waiting.dataset.run];
      if (told === undefined || told.state === "running") return;
      following.close();
      location.reload();
    });
  };
  window.rounds = Object.assign(window.rounds ?? {}, {follow, reloadAtEnd});
})();
