"use strict";
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], key = (row, i) => {
    const cell = row.cells[i], number = cell.matches("[data-value]") ? cell : cell.querySelector("[data-value]");
    return number ? +number.dataset.value : cell.textContent;
  };
  [...table.tHead.rows[0].cells].forEach((head, i) => head.onclick = () => {
    const down = head.ariaSort !== "descending", sign = down ? -1 : 1;
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.ariaSort = down ? "descending" : "ascending";
    const order = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
      : typeof a === "number" ? 1 : typeof b === "number" ? -1 : a.localeCompare(b, "en", { numeric: true });
    body.append(...[...body.rows].sort((a, b) => sign * order(key(a, i), key(b, i))));
  });
  if (body.rows.length < 8) continue;
  const search = document.createElement("input");
  search.type = "search";
  search.placeholder = "filter rows";
  search.oninput = () => {
    const words = search.value.toLowerCase();
    for (const row of body.rows) {
      const whole = [...row.cells].map(cell => cell.title || cell.textContent).join(" ");
      row.hidden = !whole.toLowerCase().includes(words);
    }
  };
  table.parentNode.before(search);
}
