"use strict";
(() => {
  const tip = document.getElementById("tip");
  const hide = () => { tip.hidden = true; };
  const show = (mark) => {
    tip.textContent = mark.dataset.text;
    tip.hidden = false;
    const box = mark.getBoundingClientRect();
    const left = box.left + box.width / 2 - tip.offsetWidth / 2;
    const above = box.top - tip.offsetHeight - 8;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 4;
    tip.style.left = `${window.scrollX + Math.max(4, Math.min(left, room))}px`;
    tip.style.top = `${window.scrollY + (above > 0 ? above : box.bottom + 8)}px`;
  };
  for (const mark of document.querySelectorAll("[data-text]")) {
    mark.addEventListener("pointerenter", () => show(mark));
    mark.addEventListener("pointerleave", hide);
    mark.addEventListener("focus", () => show(mark));
    mark.addEventListener("blur", hide);
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // A mark is shown while neither its method nor its kind is switched off.
  for (const figure of document.querySelectorAll("figure")) {
    const off = { series: new Set(), kind: new Set() };
    const apply = () => {
      for (const mark of figure.querySelectorAll("svg [data-series]")) {
        const gone = off.series.has(mark.dataset.series) || off.kind.has(mark.dataset.kind);
        mark.classList.toggle("off", gone);
      }
    };
    for (const button of figure.querySelectorAll("button[aria-pressed]")) {
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        const [which, name] = button.dataset.toggleSeries !== undefined
          ? ["series", button.dataset.toggleSeries] : ["kind", button.dataset.toggleKind];
        if (on) off[which].delete(name); else off[which].add(name);
        apply();
      });
    }
  }

  // Paper cannot be unfolded.
  window.addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("details")) folded.open = true;
  });
})();
