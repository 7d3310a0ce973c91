// Runs at work, as the server tells of them. A browser has six connections for a host, so a tab that is not seen holds none; and
// a stream that was refused or lost is asked for again.
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
      stream.addEventListener("error", () => { // a browser comes back by itself, but not after a refusal
        if (stream?.readyState !== EventSource.CLOSED) return;
        stop();
        waiting = setTimeout(start, AGAIN);
      });
    };
    document.addEventListener("visibilitychange", start);
    start();
    return {close: () => { over = true; stop(); }};
  };
  window.rounds = Object.assign(window.rounds ?? {}, {follow});
})();
