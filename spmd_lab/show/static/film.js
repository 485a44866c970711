"use strict";

// Plays a film: the frames lie compressed in the page, and are shown one at a time.
(async () => {
  const byId = (id) => document.getElementById(id);
  const packed = Uint8Array.from(atob(byId("film").textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const film = JSON.parse(await new Response(stream).text());

  let visible = film.frames.map((_, index) => index);
  let place = 0;
  let timer = null;

  const holdings = (frame, rank) => {
    const known = frame.holdings.some((held) => held.values.length);
    const heading = ["value", "layout", `rank ${rank} holds`, ...(known ? ["numbers"] : [])];
    const rows = frame.holdings.map((held) => {
      const { html, shapes } = film.layouts[held.layout];
      const shape = shapes[shapes.length > 1 ? rank : 0];
      const cells = [held.title, html, shape, ...(known ? [held.values[rank] ?? ""] : [])];
      return `<tr>${cells.map((cell) => `<td>${cell}</td>`).join("")}</tr>`;
    });
    return rows.length ? `<table><tr>${heading.map((word) => `<th>${word}</th>`).join("")}</tr>${rows.join("")}</table>` : "";
  };

  const show = () => {
    const index = visible[place];
    const empty = index === undefined;
    byId("nothing").hidden = !empty;
    byId("frame").hidden = empty;
    byId("step").max = String(Math.max(visible.length - 1, 0));
    byId("step").value = String(place);
    byId("count").textContent = `${visible.length ? place + 1 : 0} of ${visible.length}`;
    if (empty) return;
    const frame = film.frames[index];
    byId("frame").innerHTML = frame.html;
    const rank = Number(byId("rank").value);
    byId("rank-name").textContent = `rank ${rank} of ${film.ranks}`;
    byId("frame").querySelector("[data-holdings]").innerHTML = holdings(frame, rank);
    const picture = byId("frame").querySelector("[data-picture]");
    if (picture) picture.src = `data:image/svg+xml,${encodeURIComponent(frame.picture)}`;
    const mark = byId("mark");
    if (mark) mark.style.left = `${frame.left}%`;
  };

  const go = (target) => {
    place = Math.min(Math.max(target, 0), Math.max(visible.length - 1, 0));
    show();
  };

  const filter = () => {
    const [module, axis, kind] = ["module", "axis", "kind"].map((id) => byId(id).value);
    const before = visible[place] ?? 0;
    visible = film.frames.flatMap((frame, index) => {
      const inside = !module || frame.module === module || frame.module.startsWith(`${module}.`);
      const over = !axis || frame.axes.includes(axis);
      const of = !kind || (kind === "any" ? frame.kinds.length > 0 : frame.kinds.includes(kind));
      return inside && over && of ? [index] : [];
    });
    const next = visible.findIndex((index) => index >= before);
    go(next < 0 ? visible.length - 1 : next);
  };

  // Shows a frame, through any filter.
  const jump = (index) => {
    if (!visible.includes(index)) {
      for (const id of ["module", "axis", "kind"]) byId(id).value = "";
      filter();
    }
    go(visible.indexOf(index));
  };

  // The card of another step is drawn when its node is opened.
  const unfold = (event) => {
    for (const slot of event.target.querySelectorAll(":scope > div > [data-card]:empty")) {
      slot.innerHTML = film.frames[slot.dataset.card].card;
      const button = document.createElement("button");
      button.textContent = "go to this step";
      button.addEventListener("click", () => jump(Number(slot.dataset.card)));
      slot.append(button);
    }
  };

  // The visible frame that is nearest to where the strip was clicked.
  const point = (event) => {
    const { left, width } = byId("strip").getBoundingClientRect();
    const at = (100 * (event.clientX - left)) / width;
    const far = (index) => Math.abs(film.frames[index].left - at);
    go(visible.reduce((best, index, here) => (far(index) < far(visible[best]) ? here : best), 0));
  };

  const stop = () => {
    clearInterval(timer);
    timer = null;
    byId("play").textContent = "▶ play";
  };

  const play = () => {
    if (timer !== null) return stop();
    byId("play").textContent = "❚❚ pause";
    timer = setInterval(() => (place + 1 < visible.length ? go(place + 1) : stop()), 700);
    return undefined;
  };

  byId("step").addEventListener("input", (event) => go(Number(event.target.value)));
  byId("rank").addEventListener("input", show);
  byId("back").addEventListener("click", () => go(place - 1));
  byId("next").addEventListener("click", () => go(place + 1));
  byId("play").addEventListener("click", play);
  for (const id of ["module", "axis", "kind"]) byId(id).addEventListener("change", filter);
  byId("name").addEventListener("change", (event) => {
    const found = film.frames.findIndex((frame) => frame.name === event.target.value);
    if (found >= 0) jump(found);
  });
  byId("frame").addEventListener("toggle", unfold, true);
  byId("strip")?.addEventListener("click", point);
  document.addEventListener("keydown", (event) => {
    const { tagName, type } = event.target;
    if (tagName === "SELECT" || (tagName === "INPUT" && type !== "range")) return;
    if (event.key === " " ? ["BUTTON", "SUMMARY"].includes(tagName) : type === "range") return;
    const keys = { ArrowRight: () => go(place + 1), ArrowLeft: () => go(place - 1), Home: () => go(0), End: () => go(visible.length), " ": play };
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
  show();
})();
