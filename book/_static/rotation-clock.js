// The rotation clock: RoPE's pairs of channels as hands that turn with the position.
//
// In a page (Markdown, or a Markdown cell of a notebook):
//
//   <div class="rotation-clock" data-head-dim="8" data-base="10000">What the clock shows, in words, for places
//   without this script (JupyterLab).</div>
//
// The script replaces the words by the clock: one dial for each pair g = 0 … d/2 − 1, θ_g = base^(−2g/d) radians
// a token; a blue hand for the query at angle mθ_g and an orange one for the key at nθ_g, counter-clockwise from
// the right; sliders for m, n and base; a button that shifts both positions; a table with θ_g, mθ_g, nθ_g,
// (n − m)θ_g and its cosine. Pages without such a div are left alone.

"use strict";

(() => {
  const BASES = [10, 100, 1000, 10000, 100000, 500000, 1000000];
  const LAST = 200; // largest position on the sliders
  const START = { m: 10, n: 6 };
  const R = 44; // of a dial, in units of its 100 × 100 drawing
  let clocks = 0;

  const minus = (text) => text.replace("-", "−");
  const fixed = (x) => minus((Math.abs(x) < 5e-5 ? 0 : x).toFixed(4));
  const short = (x) => String(Number(x.toPrecision(4)));

  function make(tag, attributes = {}, ...children) {
    const svg = ["svg", "circle", "line", "path", "g"].includes(tag);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  // Angles are counter-clockwise from the right, as in the book; the y axis of SVG points down.
  const point = (angle, r) => `${r * Math.cos(angle)} ${-r * Math.sin(angle)}`;

  // The way from the query's hand to the key's, without whole turns.
  function arc(from, by, r) {
    const rest = by % (2 * Math.PI);
    if (Math.abs(rest) < 1e-9) return "";
    const flags = `${Math.abs(rest) > Math.PI ? 1 : 0} ${rest > 0 ? 0 : 1}`;
    return `M ${point(from, r)} A ${r} ${r} 0 ${flags} ${point(from + rest, r)}`;
  }

  function dial(g) {
    const hand = (who, length) =>
      make("g", { class: `clock-hand clock-${who}` },
        make("line", { x1: 0, y1: 0, x2: length, y2: 0 }), make("circle", { cx: length, cy: 0, r: 3.5 }));
    const parts = { q: hand("q", R - 6), k: hand("k", R - 16), arc: make("path", { class: "clock-arc" }) };
    const ticks = [0, 1, 2, 3].map((i) =>
      make("line", { class: "clock-tick", x1: R - 4, x2: R, transform: `rotate(${90 * i})` }));
    parts.svg = make("svg", { viewBox: "-50 -50 100 100", role: "img" },
      make("circle", { class: "clock-face", r: R }), ...ticks, parts.arc, parts.k, parts.q);
    parts.caption = make("figcaption", {}, `pair ${g}`);
    parts.node = make("figure", { class: "clock-dial" }, parts.svg, parts.caption);
    return parts;
  }

  function slider(id, text, max, value) {
    const input = make("input", { type: "range", id, min: 0, max, step: 1, value });
    const output = make("output", { for: id });
    return { input, output, node: make("div", { class: "clock-slider" }, make("label", { for: id }, text), input, output) };
  }

  function build(root) {
    const headDim = Number(root.dataset.headDim ?? 8);
    const firstBase = BASES.indexOf(Number(root.dataset.base ?? 10000));
    if (!Number.isInteger(headDim) || headDim < 2 || headDim % 2 || firstBase < 0) return; // the words stay
    const id = `rotation-clock-${++clocks}`;
    const pairs = Array.from({ length: headDim / 2 }, (_, g) => g);

    const m = slider(`${id}-m`, "position m of the query", LAST, START.m);
    const n = slider(`${id}-n`, "position n of the key", LAST, START.n);
    const base = slider(`${id}-base`, "base", BASES.length - 1, firstBase);
    const shifts = [1, 10].map((by) => {
      const button = make("button", { type: "button", "data-shift": by }, `Shift both by ${by}`);
      button.addEventListener("click", () => {
        m.input.value = Number(m.input.value) + by;
        n.input.value = Number(n.input.value) + by;
        draw(`Both shifted by ${by}. `);
      });
      return button;
    });
    const reset = make("button", { type: "button" }, "Start again");
    reset.addEventListener("click", () => {
      [m.input.value, n.input.value, base.input.value] = [START.m, START.n, firstBase];
      draw();
    });

    const dials = pairs.map(dial);
    const said = make("p", { class: "clock-said", "aria-live": "polite" });
    const heads = ["pair g", "θ_g", "m θ_g", "n θ_g", "(n − m) θ_g", "cos (n − m) θ_g"];
    const rows = pairs.map((g) => make("tr", {}, make("th", { scope: "row" }, String(g)),
      ...heads.slice(1).map(() => make("td"))));
    const head = make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, ...subscript(text))));
    const table = make("table", { class: "clock-table" },
      make("caption", {}, "Angles in radians. The last two columns depend on n − m alone."),
      make("thead", {}, head), make("tbody", {}, ...rows));

    function draw(news = "") {
      const [atM, atN, b] = [Number(m.input.value), Number(n.input.value), BASES[base.input.value]];
      m.output.value = atM;
      n.output.value = atN;
      base.output.value = b;
      base.input.setAttribute("aria-valuetext", b);
      for (const button of shifts) button.disabled = Math.max(atM, atN) + Number(button.dataset.shift) > LAST;
      pairs.forEach((g) => {
        const theta = b ** ((-2 * g) / headDim);
        const [q, k, between] = [atM * theta, atN * theta, (atN - atM) * theta];
        const { svg, caption, q: handQ, k: handK, arc: path } = dials[g];
        handQ.style.transform = `rotate(${-q}rad)`;
        handK.style.transform = `rotate(${-k}rad)`;
        path.setAttribute("d", arc(q, between, 16));
        svg.setAttribute("aria-label", `Pair ${g}: query at ${fixed(q)}, key at ${fixed(k)} radians.`);
        caption.textContent = `pair ${g}: ${fixed(between)}`;
        const cells = rows[g].querySelectorAll("td");
        [short(theta), ...[q, k, between, Math.cos(between)].map(fixed)].forEach((text, i) => {
          cells[i].textContent = text;
        });
      });
      said.textContent = `${news}Query at ${atM}, key at ${atN}: offset n − m = ${minus(String(atN - atM))}.`;
    }

    for (const { input } of [m, n, base]) input.addEventListener("input", () => draw());
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", "Rotation clock");
    root.replaceChildren(
      make("div", { class: "clock-dials" }, ...dials.map((d) => d.node)),
      make("p", { class: "clock-key" }, make("span", { class: "clock-name-q" }, "long hand: query"), " · ",
        make("span", { class: "clock-name-k" }, "short hand, dashed: key"), " · below each dial: the angle from query to key; the arc leaves out whole turns"),
      make("div", { class: "clock-controls" }, m.node, n.node, base.node,
        make("div", { class: "clock-buttons" }, ...shifts, reset)),
      said, make("div", { class: "clock-scroll", tabindex: 0, role: "region", "aria-label": "Table of angles" }, table));
    draw();
  }

  function subscript(text) {
    const [before, after] = text.split("_g");
    return after === undefined ? [text] : [before, make("sub", {}, "g"), after];
  }

  document.querySelectorAll(".rotation-clock").forEach(build);
})();
