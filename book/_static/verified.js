// Links each printed line "eq-rope-relative holds: …" to the equation it checked, and shows that equation's number.
// Without this script the line is plain text. Loaded on every page; does nothing where no such line is.
document.addEventListener("DOMContentLoaded", () => {
  for (const output of document.querySelectorAll(".cell_output pre")) {
    const walker = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
    const texts = [];
    while (walker.nextNode()) texts.push(walker.currentNode);
    for (const text of texts) {
      const parts = text.data.split(/^(eq-[a-z0-9-]+)(?= holds: )/m);
      if (parts.length === 1) continue;
      text.replaceWith(...parts.map((part, i) => {
        const equation = i % 2 && document.getElementById(`equation-${part}`);
        if (!equation) return part;
        const link = document.createElement("a");
        link.href = `#equation-${part}`;
        link.className = "verified";
        const number = equation.querySelector(".eqno")?.firstChild?.data ?? "";
        link.textContent = `${part} ${number}`.trim();
        return link;
      }));
      output.classList.add("verified-lines");
    }
  }
});
