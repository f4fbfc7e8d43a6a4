// What the pages do beyond showing: counts that grow while data is looked through or a run goes on, and sliders.
"use strict";

function watch() {
  const state = document.getElementById("state");
  if (!state) return;
  const renew = document.getElementById("renew");
  const { ask, page, size, found } = state.dataset;
  let rest = 400;
  renew.addEventListener("click", () => location.reload());

  function show(now) {
    document.getElementById("status").textContent = now.status;
    for (const [name, rows] of Object.entries(now.row_sets)) {
      for (const place of document.querySelectorAll(`[data-count="${name}"]`)) place.textContent = rows;
    }
    for (const name of ["stage", "rule", "language"]) fill(document.getElementById(name), now[name]);
    const more = now.rows > Number(size);
    if (more && Number(size) === 0) location.reload();
    renew.hidden = !(more || (state.dataset.done && now.found !== Number(found)));
  }

  async function poll() {
    if (!document.hidden) {
      try {
        const answer = await fetch(`state?${ask}&page=${page}&size=${size}`);
        if (answer.ok) {
          const now = await answer.json();
          show(now);
          rest = now.done ? 2000 : 700;
        }
      } catch (gone) {
        document.getElementById("status").textContent = "The server has ended. Start gristmill view again.";
        return;
      }
    }
    setTimeout(poll, rest);
  }
  setTimeout(poll, state.dataset.done ? 2000 : rest);
}

function fill(select, choices) {
  if (!select || !choices || document.activeElement === select) return;
  const chosen = select.value;
  const labels = [["", "all"], ...choices.map(([value, rows]) => [value, `${value} (${rows.toLocaleString("en")})`])];
  if (chosen && !choices.some(([value]) => value === chosen)) labels.push([chosen, chosen]);
  select.replaceChildren(...labels.map(([value, label]) => new Option(label, value, false, value === chosen)));
}

function asking() {
  const form = document.querySelector("form.ask");
  if (!form) return;
  for (const select of form.querySelectorAll("select")) {
    select.addEventListener("change", () => {
      const range = select.name === "score" && !form.elements.least.value && !form.elements.most.value;
      const way = select.name === "down" && !form.elements.sort.value;
      if (!range && !way) form.requestSubmit();
    });
  }
  form.addEventListener("submit", () => {  // an address without what was left empty
    const ranged = form.elements.least && (form.elements.least.value || form.elements.most.value);
    for (const control of form.elements) {
      if (!control.value || (control.name === "score" && !ranged)) control.disabled = true;
    }
    setTimeout(() => { for (const control of form.elements) control.disabled = false; });
  });
}

function sliding() {
  const form = document.getElementById("whatif");
  if (!form) return;
  const edges = JSON.parse(form.dataset.facts).edges;
  const bars = [...form.querySelectorAll("rect")];
  let waiting = 0, asked = 0;

  function value(share, whole) {
    const along = share * (edges.length - 1), index = Math.min(Math.floor(along), edges.length - 2);
    const exact = edges[index] + (along - index) * (edges[index + 1] - edges[index]);
    return whole ? Math.round(exact) : Number(exact.toPrecision(4));
  }

  function place(number) {
    for (let index = 0; index < edges.length - 1; index++) {
      if (number <= edges[index + 1]) {
        const inside = Math.max(number - edges[index], 0) / ((edges[index + 1] - edges[index]) || 1);
        return (index + inside) / (edges.length - 1);
      }
    }
    return 1;
  }

  function draw() {
    const limits = {};
    for (const name of ["low", "high"]) {
      const text = document.getElementById(`${name}-number`).value;
      limits[name] = text === "" ? null : Number(text);
      const line = document.getElementById(`${name}-line`);
      const at = limits[name] === null ? -10 : place(limits[name]) * 640;
      line.setAttribute("x1", at);
      line.setAttribute("x2", at);
      document.getElementById(`${name}-range`).setAttribute("aria-valuetext", text || "no limit");
    }
    bars.forEach((bar, index) => {
      const below = limits.low !== null && edges[index + 1] <= limits.low;
      const above = limits.high !== null && edges[index] > limits.high;
      bar.classList.toggle("out", below || above);
    });
    clearTimeout(waiting);
    waiting = setTimeout(count, 120);
  }

  async function count() {
    const mine = ++asked;
    const parameters = new URLSearchParams(new FormData(form));
    history.replaceState(null, "", `whatif?${parameters}`);
    const answer = await fetch(`counts?${parameters}`);
    if (answer.ok && mine === asked) document.getElementById("counts").innerHTML = await answer.text();
  }

  for (const range of form.querySelectorAll("input[type=range]")) {
    const number = document.getElementById(range.dataset.for);
    const end = range.id.startsWith("low") ? 0 : 1000;
    range.addEventListener("input", () => {
      number.value = Number(range.value) === end ? "" : value(range.value / 1000, range.dataset.whole);
      draw();
    });
    number.addEventListener("input", () => {
      range.value = number.value === "" ? end : Math.round(place(Number(number.value)) * 1000);
      draw();
    });
  }
  form.addEventListener("submit", (event) => { event.preventDefault(); count(); });
}

function listening() {
  for (const picture of document.querySelectorAll("img.waveform")) {
    const player = picture.parentElement.querySelector("audio");
    picture.addEventListener("click", (event) => {
      const box = picture.getBoundingClientRect();
      if (!player || !Number.isFinite(player.duration)) return;
      player.currentTime = ((event.clientX - box.left) / box.width) * player.duration;
      player.play();
    });
  }
}

document.addEventListener("DOMContentLoaded", () => { watch(); asking(); sliding(); listening(); });
