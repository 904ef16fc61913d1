"use strict";
const DATA = JSON.parse(document.getElementById("run-data").textContent);
const find = (selector, root = document) => root.querySelector(selector);
const findAll = (selector, root = document) => [...root.querySelectorAll(selector)];
// Called after the colours of the page have changed.
const repaint = [];

// Colours: of the system, or chosen.
for (const input of findAll("input[name=theme]"))
  input.addEventListener("change", () => {
    if (input.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = input.value;
    repaint.forEach((paint) => paint());
  });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => repaint.forEach((paint) => paint()));

// Copy buttons. A page opened from a file may not have the clipboard's interface.
for (const button of findAll(".copy"))
  button.addEventListener("click", async () => {
    const code = find("code", button.parentNode);
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
      getSelection().removeAllRanges();
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });

// The contents show where the reader is.
const watch = new IntersectionObserver((seen) => {
  for (const { target, isIntersecting } of seen) find(`nav [href="#${target.id}"]`).ariaCurrent = isIntersecting ? "true" : null;
}, { rootMargin: "-30% 0px -70%" });
findAll("nav a").forEach((link) => watch.observe(find(link.hash)));

// What is folded is printed too, except the metrics that nobody opened.
addEventListener("beforeprint", () => findAll("#scores details").forEach((part) => (part.open = true)));

// One cursor over all curves: each shows its record nearest to that epoch.
const plain = (value) => {
  if (value === null) return "not finite";
  const size = Math.abs(value);
  return size >= 1e6 || (size > 0 && size < 1e-4) ? value.toExponential(2) : String(+value.toPrecision(4));
};
const plots = findAll("svg[data-curve]").map((svg) => {
  const [left, right, width, low, high] = svg.dataset.box.split(" ").map(Number);
  const output = find("output", svg.closest("figure"));
  return { svg, left, right, width, low, high, output, curve: DATA.curves[svg.dataset.curve], line: find(".cursor", svg) };
});
function showEpoch(epoch) {
  for (const { svg, left, right, low, high, output, curve, line } of plots) {
    if (epoch === null || !svg.checkVisibility()) {
      line.style.visibility = "hidden";
      output.textContent = output.dataset.last;
      continue;
    }
    const away = curve.epochs.map((each) => Math.abs(each - epoch)), best = away.indexOf(Math.min(...away));
    const x = left + ((curve.epochs[best] - low) / (high - low)) * (right - left);
    line.setAttribute("transform", `translate(${x.toFixed(1)} 0)`);
    line.style.visibility = "visible";
    output.textContent = `${plain(curve.values[best])} in epoch ${plain(curve.epochs[best])}`;
  }
}
for (const { svg, left, right, width, low, high } of plots) {
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const share = (((event.clientX - box.left) / box.width) * width - left) / (right - left);
    showEpoch(low + Math.min(1, Math.max(0, share)) * (high - low));
  });
  svg.addEventListener("pointerleave", () => showEpoch(null));
}

// A comparison: a run that is pointed at stands out in all drawings; a heading sorts.
for (const part of findAll("[data-run]")) {
  const pick = (on) => {
    document.body.classList.toggle("picked", on);
    findAll(`.n${part.dataset.run}`).forEach((line) => line.classList.toggle("on", on));
  };
  for (const name of ["pointerenter", "focus"]) part.addEventListener(name, () => pick(true));
  for (const name of ["pointerleave", "blur"]) part.addEventListener(name, () => pick(false));
}
const readCell = (cell) => {
  const text = cell.dataset.value ?? cell.textContent.trim();
  const number = parseFloat(text.replace(/,/g, "").replace("\u2212", "-"));
  return Number.isNaN(number) ? text : number;
};
for (const table of findAll("table.sortable"))
  for (const heading of findAll("thead th", table)) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const falling = heading.getAttribute("aria-sort") !== "descending";
      findAll("th", heading.parentNode).forEach((each) => each.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
      const rows = findAll("tbody tr", table).map((row) => [readCell(row.cells[heading.cellIndex]), row]);
      rows.sort(([a], [b]) => (falling ? compare(b, a) : compare(a, b)));
      find("tbody", table).append(...rows.map(([, row]) => row));
    });
  }
