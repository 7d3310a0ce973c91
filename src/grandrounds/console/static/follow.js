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
  window.rounds = Object.assign(window.rounds ?? {}, {follow});
})();
