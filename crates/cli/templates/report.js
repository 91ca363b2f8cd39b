"use strict";
// Tooltips: the drawings carry their words as titles, which work without this script too.
const tip = document.getElementById("tip");
for (const title of document.querySelectorAll(".plot rect > title")) {
  const shape = title.parentNode;
  shape.dataset.tip = title.textContent;
  title.remove();
}
function showTip(event) {
  const shape = event.target.closest("[data-tip]");
  tip.hidden = !shape;
  if (!shape) return;
  tip.textContent = shape.dataset.tip;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
  const above = event.clientY - box.height - 14;
  tip.style.left = Math.max(8, left) + "px";
  tip.style.top = (above < 8 ? event.clientY + 18 : above) + "px";
}
document.addEventListener("pointermove", showTip);
document.addEventListener("pointerdown", showTip);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

// The decision table: sorting by a click on a column's name, and filtering.
const table = document.getElementById("decisions");
if (table) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
  };
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const isNumber = head.classList.contains("number");
      const before = head.getAttribute("aria-sort");
      const first = isNumber ? "descending" : "ascending";
      const second = isNumber ? "ascending" : "descending";
      const order = before === first ? second : first;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      rows.sort((a, b) => {
        const left = valueOf(a, column);
        const right = valueOf(b, column);
        if (isNumber) return sign * (left - right);
        return sign * left.localeCompare(right, "en", { numeric: true });
      });
      body.append(...rows);
    });
  });
  const find = document.getElementById("find");
  const choice = document.getElementById("choice");
  const shown = document.getElementById("shown");
  const filter = () => {
    const wanted = find.value.toLowerCase();
    let count = 0;
    for (const row of rows) {
      const fits = row.textContent.toLowerCase().includes(wanted)
        && (!choice.value || row.cells[2].textContent === choice.value);
      row.hidden = !fits;
      count += fits ? 1 : 0;
    }
    shown.textContent = count + " of " + rows.length + " blocks";
  };
  const form = document.getElementById("filters");
  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
}
