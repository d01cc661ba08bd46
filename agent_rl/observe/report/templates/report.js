"use strict";
for (const figure of document.querySelectorAll("figure")) {
  const output = figure.querySelector("output");
  if (!output) continue;
  for (const drawing of figure.querySelectorAll("svg.drawing")) {
    const places = [...drawing.querySelectorAll(".hits rect")];
    if (!places.length) continue;
    const words = places.map((place) => {
      const title = place.querySelector("title");
      title.remove();  // it is shown below the chart instead
      return title.textContent;
    });
    let at = places.length - 1;
    const show = (index) => {
      places[at].classList.remove("here");
      at = Math.max(0, Math.min(places.length - 1, index));
      places[at].classList.add("here");
      output.textContent = words[at];
    };
    const point = (event) => {
      const target = document.elementFromPoint(event.clientX, event.clientY);
      const mark = target && target.closest(".mark");
      if (mark) output.textContent = mark.querySelector("title").textContent;
      else if (places.includes(target)) show(places.indexOf(target));
    };
    drawing.addEventListener("pointermove", point);
    drawing.addEventListener("pointerdown", point);
    drawing.addEventListener("pointerleave", () => places[at].classList.remove("here"));
    drawing.setAttribute("tabindex", "0");
    drawing.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: places.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      show(to);
    });
  }
}
