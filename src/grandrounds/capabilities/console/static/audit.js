// Follows running checks, checks ledgers in turn, shows raw entries, and downloads proofs.
"use strict";
(() => {
  const pause = ms => new Promise(done => setTimeout(done, ms));
  const check = async (run, deep, options) => {
    for (;;) {
      const answer = await fetch(`/api/audit/check?${new URLSearchParams({run, deep})}`, options);
      const told = await answer.json();
      if (!answer.ok) throw new Error(told.error);
      if (told.state !== "is being checked") return told;
      await pause(1000);
    }
  };

  const going = document.querySelector("[data-poll]");
  if (going) {
    check(going.dataset.poll, going.dataset.deep).then(() => location.reload(), error => { going.textContent = error.message; });
  }

  const all = document.getElementById("check-all");
  if (all) {
    const said = document.getElementById("checked");
    // Checks ledgers in turn; returns how many do not verify.
    const checkRows = async (rows, deep, options) => {
      let wrong = 0;
      for (const [k, row] of rows.entries()) {
        if (!deep && all.disabled) break; // the user asked for more
        said.textContent = `Checking ${k + 1} of ${rows.length}`;
        const state = row.querySelector(".state");
        try {
          const told = await check(row.dataset.check, deep, options);
          const bad = told.fails, many = told.findings.length;
          wrong += bad;
          row.classList.toggle("found", bad);
          const keys = told.simulated && !bad ? ", by simulated keys" : "";
          state.textContent = many ? `${told.state}: ${many} ${many === 1 ? "finding" : "findings"}` : `${told.state}${keys}`;
        } catch (error) {
          wrong += 1;
          row.classList.add("found");
          state.textContent = error.message;
        }
      }
      return wrong;
    };
    all.addEventListener("click", async () => {
      all.disabled = true;
      const rows = [...document.querySelectorAll("tr[data-check]")];
      const wrong = await checkRows(rows, true);
      said.textContent = wrong ? `${wrong} of ${rows.length} do NOT verify, or are unfinished` : `All ${rows.length} verify`;
      all.disabled = false;
    });
    // The newest ledgers that were not checked are checked without a click, one at a time; the files that they name, by a click.
    const newest = [...document.querySelectorAll("tr[data-unchecked]")].slice(0, 50);
    checkRows(newest, false, rounds.automatic).then(() => { if (newest.length && !all.disabled) said.textContent = ""; });
  }

  for (const button of document.querySelectorAll("button.entry")) {
    button.addEventListener("click", async () => {
      const row = button.closest("tr");
      if (row.nextElementSibling?.classList.contains("whole")) {
        row.nextElementSibling.remove();
        button.setAttribute("aria-expanded", "false");
        return;
      }
      const answer = await fetch(`/api/audit/entry?${new URLSearchParams({run: button.dataset.run, number: button.dataset.entry})}`);
      const told = await answer.json();
      const below = document.createElement("tr");
      below.className = "whole";
      const cell = below.insertCell();
      cell.colSpan = row.cells.length;
      const text = document.createElement("pre");
      text.textContent = answer.ok ? JSON.stringify(told, null, 1) : told.error;
      cell.append(text);
      row.after(below);
      button.setAttribute("aria-expanded", "true");
    });
  }

  const proof = document.getElementById("proof");
  if (proof) {
    const said = document.getElementById("proof-said");
    proof.addEventListener("submit", async event => {
      event.preventDefault();
      const query = new URLSearchParams([...new FormData(proof)].filter(([, value]) => value !== ""));
      const answer = await fetch(`${proof.action}?${query}`);
      if (!answer.ok) {
        said.textContent = (await answer.json()).error;
        return;
      }
      const name = /filename="([^"]+)"/.exec(answer.headers.get("content-disposition"))?.[1] ?? "proof.json";
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await answer.blob());
      link.download = name;
      link.click();
      URL.revokeObjectURL(link.href);
      said.textContent = `${name} was made.`;
    });
  }
})();
