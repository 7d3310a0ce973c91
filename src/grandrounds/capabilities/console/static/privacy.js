// Reloads the page when the account has been computed.
"use strict";
(() => {
  const going = document.querySelector("[data-poll]");
  if (!going) return;
  const ask = async () => {
    const answer = await fetch(`/api/privacy?${new URLSearchParams({run: going.dataset.poll})}`);
    if (answer.status === 425) setTimeout(ask, 1000);
    else if (answer.ok) location.reload();
    else going.textContent = (await answer.json()).error;
  };
  ask();
})();
