"use strict";
// Adds pointing, the keyboard and the legend's switches to charts that are already drawn.
(() => {
  const hide = (element, hidden) => element.toggleAttribute("hidden", hidden);
  const all = (root, selector) => [...root.querySelectorAll(selector)];

  function enliven(figure) {
    const tip = figure.querySelector(".tip");
    const canvas = figure.querySelector(".canvas");
    const pictures = all(figure, ".canvas > svg");
    let pointed = [];

    const visible = (mark) => !mark.closest(".series").hasAttribute("hidden");
    const marksOf = (series) => all(series, ".mark").filter(visible);
    const seriesOf = (picture) => all(picture, ".series").filter((series) => marksOf(series).length);

    function told(mark) {
      const line = document.createElement("p");
      line.textContent = mark.getAttribute("aria-label");
      return line;
    }

    function point(marks) {
      pointed.forEach((mark) => mark.classList.remove("on"));
      pointed = marks;
      hide(tip, !marks.length);
      if (!marks.length) return;
      marks.forEach((mark) => mark.classList.add("on"));
      tip.replaceChildren(...marks.map(told));
      const box = canvas.getBoundingClientRect();
      const at = marks[0].querySelector(".glyph").getBoundingClientRect();
      const left = at.left + at.width / 2 - box.left - tip.offsetWidth / 2;
      tip.style.left = Math.max(0, Math.min(left, box.width - tip.offsetWidth)) + "px";
      const above = at.top - box.top - tip.offsetHeight - 10;
      tip.style.top = (above >= 0 ? above : at.bottom - box.top + 10) + "px";
    }

    // The nearest point, and those that lie on top of it.
    function nearest(picture, event) {
      const centre = (mark) => {
        const at = mark.querySelector(".glyph").getBoundingClientRect();
        return [at.left + at.width / 2, at.top + at.height / 2];
      };
      const marks = seriesOf(picture).flatMap(marksOf).map((mark) => ({ mark, at: centre(mark) }));
      const far = (one, x, y) => Math.hypot(one.at[0] - x, one.at[1] - y);
      marks.sort((one, other) => far(one, event.clientX, event.clientY) - far(other, event.clientX, event.clientY));
      if (!marks.length || far(marks[0], event.clientX, event.clientY) > 28) return [];
      return marks.filter((one) => far(one, ...marks[0].at) < 5).slice(0, 4).map((one) => one.mark);
    }

    // One stop of the tab key per series; arrows go on from there.
    function setStops() {
      for (const picture of pictures)
        for (const series of all(picture, ".series"))
          all(series, ".mark").forEach((mark) => mark.setAttribute("tabindex", marksOf(series)[0] === mark ? "0" : "-1"));
    }

    function step(picture, mark, key) {
      const rows = seriesOf(picture).map(marksOf);
      const row = rows.findIndex((marks) => marks.includes(mark));
      const column = rows[row].indexOf(mark);
      if (key === "ArrowRight") return rows[row][column + 1];
      if (key === "ArrowLeft") return rows[row][column - 1];
      if (key === "Home") return rows[row][0];
      if (key === "End") return rows[row].at(-1);
      const next = rows[row + { ArrowDown: 1, ArrowUp: -1 }[key]];
      return next && next[Math.min(column, next.length - 1)];
    }

    for (const picture of pictures) {
      all(picture, "title").forEach((title) => title.remove());
      picture.addEventListener("pointermove", (event) => point(nearest(picture, event)));
      picture.addEventListener("pointerdown", (event) => point(nearest(picture, event)));
      picture.addEventListener("pointerleave", () => point([]));
      picture.addEventListener("focusin", (event) => point([event.target.closest(".mark")].filter(Boolean)));
      picture.addEventListener("focusout", () => point([]));
      picture.addEventListener("keydown", (event) => {
        const mark = event.target.closest(".mark");
        if (event.key === "Escape") point([]);
        if (!mark || !/^(Arrow(Left|Right|Up|Down)|Home|End)$/.test(event.key)) return;
        event.preventDefault();
        const next = step(picture, mark, event.key);
        if (next) next.focus();
      });
    }
    for (const button of all(figure, ".legend button")) {
      button.disabled = false;
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        for (const picture of pictures) hide(all(picture, ".series")[Number(button.dataset.series)], !shown);
        point([]);
        setStops();
      });
    }
    setStops();
  }

  all(document, "figure.chart").forEach(enliven);
  // A link to something folded away unfolds it.
  all(document, 'a[href^="#"]').forEach((link) =>
    link.addEventListener("click", () => {
      const aim = document.getElementById(link.hash.slice(1));
      if (aim && aim.tagName === "DETAILS") aim.open = true;
    }),
  );
})();
