// A search field and a filter for the lists of claims and of equations. Without this script the whole lists are shown.
document.addEventListener("DOMContentLoaded", () => {
  const place = document.querySelector(".ledger-controls");
  if (!place) return;

  // An item is a term with the descriptions after it.
  const items = [];
  for (const part of document.querySelectorAll(".ledger dl > *")) {
    if (part.tagName === "DT") items.push([]);
    items.at(-1).push(part);
  }
  const kinds = items.map((parts) => parts.map((p) => p.querySelector("[class^=badge-]")).find(Boolean).className.slice(6));
  const texts = items.map((parts) => parts.map((p) => p.textContent).join(" ").toLowerCase());
  const order = ["holds", "holds-if", "false", "cannot-be-tested-here", "not-yet", "checked", "definition"];

  const make = (tag, attributes, ...children) => {
    const element = Object.assign(document.createElement(tag), attributes);
    element.append(...children);
    return element;
  };
  const search = make("input", { type: "search", name: "search", autocomplete: "off" });
  const choices = ["all", ...order.filter((kind) => kinds.includes(kind))].map((kind) => {
    const radio = make("input", { type: "radio", name: "kind", value: kind, checked: kind === "all" });
    const count = kind === "all" ? items.length : kinds.filter((k) => k === kind).length;
    return make("label", {}, radio, `${kind.replaceAll("-", " ")} (${count})`);
  });
  const shown = make("output", {});
  shown.setAttribute("role", "status");
  const form = make("form", {},
    make("label", {}, "Words to find", search),
    make("fieldset", {}, make("legend", {}, "Show"), ...choices), shown);
  form.setAttribute("role", "search");
  form.setAttribute("aria-label", "the list below");

  const update = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kind = form.elements.kind.value;
    let count = 0;
    items.forEach((parts, i) => {
      const fits = (kind === "all" || kind === kinds[i]) && words.every((word) => texts[i].includes(word));
      for (const part of parts) part.hidden = !fits;
      count += fits;
    });
    for (const group of document.querySelectorAll("section:has(> .ledger)")) {
      group.hidden = !group.querySelector("dt:not([hidden])");
    }
    shown.textContent = `${count} of ${items.length} shown`;
  };
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  place.append(form);
  update();
});
