// A box with an overflowing table is keyboard-focusable; one that fits is not.
"use strict";
(() => {
  const named = box => box.dataset.label ?? box.querySelector("caption")?.textContent ?? document.querySelector("h1").textContent;
  const look = box => {
    const scrolls = box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1;
    if (scrolls === box.hasAttribute("tabindex") || (!scrolls && box === document.activeElement)) return;
    const told = {tabindex: "0", role: "region", "aria-label": named(box)};
    for (const [key, value] of Object.entries(told)) scrolls ? box.setAttribute(key, value) : box.removeAttribute(key);
  };
  // elements removed from the page are in no box
  const boxes = seen => new Set(seen.map(({target}) => target.closest(".scroll")).filter(Boolean));
  const sizes = new ResizeObserver(seen => boxes(seen).forEach(look));
  const watch = box => [box, ...box.children].forEach(part => sizes.observe(part));
  const changes = new MutationObserver(seen => boxes(seen).forEach(watch)); // observing an element triggers a check
  for (const box of document.querySelectorAll(".scroll")) {
    watch(box);
    changes.observe(box, {childList: true});
  }
})();
