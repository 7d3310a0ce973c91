// The script that draws figures is large, and a browser needs a second or two to parse it: preload it here, while the user
// types or reads the list.
"use strict";
addEventListener("load", () => (window.requestIdleCallback ?? setTimeout)(() => {
  const script = document.createElement("script");
  script.src = document.querySelector("meta[name=plotly]").content;
  document.head.append(script);
}));
