"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const form = document.querySelector(".tools");
  const search = document.getElementById("search");
  const verdict = document.getElementById("verdict");
  const state = document.getElementById("state");
  const runs = all("article").map((article) => ({
    article,
    text: article.textContent.toLowerCase(),
    marks: all(`[data-run="${CSS.escape(article.id)}"]`),
    claims: all("tr[data-verdict]", article),
    parts: all("details", article).map((part) => ({ part, text: part.textContent.toLowerCase() })),
  }));
  const opened = new Set();

  function show() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (text) => words.every((word) => text.includes(word));
    let seen = 0;
    let claims = 0;
    for (const part of opened) part.open = false;
    opened.clear();
    for (const run of runs) {
      let fits = has(run.text) && (!state.value || run.article.dataset.state === state.value);
      let left = 0;
      for (const row of run.claims) {
        const there = !verdict.value || (row.dataset.verdict === verdict.value && has(row.textContent.toLowerCase()));
        row.hidden = !there;
        left += there;
      }
      if (verdict.value && !left) fits = false;
      run.article.hidden = !fits;
      for (const mark of run.marks) mark.hidden = !fits;
      seen += fits;
      claims += fits ? left : 0;
      if (fits && words.length)
        for (const { part, text } of run.parts)
          if (!part.open && has(text)) {
            part.open = true;
            opened.add(part);
          }
    }
    document.body.classList.toggle("by-verdict", Boolean(verdict.value));
    document.getElementById("nothing").hidden = seen > 0;
    const asked = words.length || verdict.value || state.value;
    document.getElementById("status").textContent = asked
      ? `${seen} of ${runs.length} runs${verdict.value ? `, ${claims} claims` : ""}`
      : "";
  }

  function value(cell) {
    const text = cell.dataset.sort ?? cell.textContent.trim();
    const number = Number(text);
    return text !== "" && !Number.isNaN(number) ? number : text.toLowerCase();
  }

  function sort(table, column, heading) {
    const up = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [value(row.cells[column]), row]);
    rows.sort(([a], [b]) => {
      const order =
        typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
      return up ? order : -order;
    });
    body.append(...rows.map(([, row]) => row));
  }

  for (const table of all("table.sortable"))
    all("thead th", table).forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      button.addEventListener("click", () => sort(table, column, heading));
      heading.append(button);
    });

  // A table that fits needs no stop of the Tab key.
  const fit = () => {
    for (const box of all(".scroll"))
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
  };
  fit();
  addEventListener("resize", fit);
  document.addEventListener("toggle", fit, true);

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("details:not([open])");
    for (const part of closed) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of closed) part.open = false;
  });

  form.hidden = false;
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(show));
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.closest("input, select, textarea")) {
      event.preventDefault();
      search.focus();
    }
  });
})();
