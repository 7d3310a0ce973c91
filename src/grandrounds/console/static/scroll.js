// A box whose table is too wide for it can be reached and scrolled by keyboard; one that fits is no stop on the way.
"use strict";
(() => {
  const named = box => box.dataset.label ?? box.querySelector("caption")?.textContent ?? document.querySelector("h1").textContent;
  const look = box => {
    const scrolls = box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1;
    if (scrolls === box.hasAttribute("tabindex") || (!scrolls && box === document.activeElement)) return;
    const told = {tabindex: "0", role: "region", "aria-label": named(box)};
    for (const [key, value] of Object.entries(told)) scrolls ? box.setAttribute(key, value) : box.removeAttribute(key);
  };
  // what was taken out of the page is in no box any more
  const boxes = seen => new Set(seen.map(({target}) => target.closest(".scroll")).filter(Boolean));
  const sizes = new ResizeObserver(seen => boxes(seen).forEach(look));
  const watch = box => [box, ...box.children].forEach(part => sizes.observe(part));
  const changes = new MutationObserver(seen => boxes(seen).forEach(watch)); // what is observed anew is looked at
  for (const box of document.querySelectorAll(".scroll")) {
    watch(box);
    changes.observe(box, {childList: true});
  }
})();
