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
