// SPDX-License-Identifier: MIT OR Apache-2.0
"use strict";
const PAUSE_MS = 1000;
const main = document.querySelector("main");

async function look() {
  // A hidden page needs nothing, and a marked text must stay for the copy.
  if (!document.hidden && getSelection().isCollapsed) {
    try {
      const answer = await fetch("/live", { cache: "no-store" });
      if (!answer.ok) throw answer;
      const fresh = await answer.text();
      const scrolled = [...main.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
      main.innerHTML = fresh;
      main.querySelectorAll(".scroll").forEach((box, at) => (box.scrollLeft = scrolled[at] || 0));
      document.body.classList.remove("gone");
    } catch {
      document.body.classList.add("gone");
    }
  }
  setTimeout(look, PAUSE_MS);
}
setTimeout(look, PAUSE_MS);
