// The script that draws figures is large, and a browser needs a second or two to read it the first time: here, while somebody
// types or looks at the list, and not on the next page.
"use strict";
addEventListener("load", () => (window.requestIdleCallback ?? setTimeout)(() => {
  const script = document.createElement("script");
  script.src = "/static/plotly.min.js";
  document.head.append(script);
}));
