"use strict";
// Draws the figures, those in view first, in the colours of the theme. All data are in the page.
(function () {
  const root = document.documentElement;
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const palettes = read("palettes");
  const drawn = new Map();

  // A browser may refuse to store anything for a file; the choice then lasts as long as the page.
  function stored(value) {
    try {
      if (value === undefined) return localStorage.getItem("antiphon-report-theme");
      localStorage.setItem("antiphon-report-theme", value);
    } catch (error) { /* as above */ }
    return null;
  }

  function css(name) {
    return getComputedStyle(root).getPropertyValue("--" + name).trim();
  }

  function colour(mark) {
    const name = mark.slice(1);
    return /^\d+$/.test(name) ? palettes[root.dataset.theme][Number(name)] : css(name);
  }

  // Marks stand only where Plotly expects a colour: a protocol may be called "@3".
  function coloured(value, key) {
    if (Array.isArray(value)) return value.map((one) => coloured(one, key));
    if (value !== null && typeof value === "object") {
      const made = {};
      for (const [name, one] of Object.entries(value)) made[name] = coloured(one, name);
      return made;
    }
    const mark = typeof value === "string" && value.startsWith("@");
    return mark && /color$/.test(key || "") ? colour(value) : value;
  }

  function merged(under, over) {
    const made = { ...under };
    for (const [name, one] of Object.entries(over)) {
      const both = one !== null && typeof one === "object" && !Array.isArray(one) && made[name];
      made[name] = both ? merged(made[name], one) : one;
    }
    return made;
  }

  function layoutOf(facet, narrow) {
    const axis = {
      color: css("muted"), gridcolor: css("grid"), zerolinecolor: css("line"), automargin: true,
      title: { standoff: 10, font: { size: 13 } }, tickfont: { size: narrow ? 11 : 12.5 },
    };
    const lying = facet.traces.length > 0 && facet.traces[0].orientation === "h";
    const base = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, color: css("ink"), size: 13 },
      margin: { l: 8, r: narrow ? 12 : 24, t: 26, b: 8, pad: 4 },
      xaxis: { ...axis, showgrid: lying }, yaxis: { ...axis, showgrid: !lying },
      bargap: 0.28, barmode: "overlay", hovermode: "closest", dragmode: false,
      hoverlabel: { bgcolor: css("card"), bordercolor: css("line"), font: { color: css("ink") } },
      legend: { orientation: "h", x: 0, y: -0.16, yanchor: "top", xanchor: "left",
                font: { size: 12.5 }, bgcolor: "rgba(0,0,0,0)" },
      height: facet.height,
    };
    if (lying) base.yaxis.tickfont = { size: narrow ? 11 : 13, color: css("ink") };
    return merged(base, coloured(facet.layout));
  }

  // Texts stand right of the bars: the axis goes on until the longest has room.
  function makeRoom(texts, layout, width, narrow) {
    texts.text = (narrow ? texts.meta.short : texts.text).map((one) => "\u2002" + one);
    const longest = (list) => Math.max(...list.map((one) => one.length));
    const plot = Math.max(120, width - 7 * Math.min(longest(texts.y), 40) - 50);
    const room = Math.min(8 * longest(texts.text) + 14, 0.6 * plot);
    const least = Math.min(0, ...texts.meta.least || [0]);
    const reach = texts.meta.reach || 1;
    layout.xaxis.range = [1.05 * least, reach + (reach - least) * room / (plot - room)];
  }

  function draw(box) {
    const state = drawn.get(box);
    const facet = state.data.facets[state.at];
    const target = box.querySelector(".plot");
    target.classList.remove("wait");
    if (!state.live) target.textContent = "";
    const narrow = target.clientWidth < 520;
    const layout = layoutOf(facet, narrow);
    // Room for the legend, which grows downwards: a line of it per so many letters.
    const named = facet.traces.filter((one) => one.name && one.showlegend !== false);
    if (named.length > 1) {
      const letters = named.reduce((sum, one) => sum + one.name.length + 7, 0);
      const lines = Math.ceil(letters / Math.max(18, target.clientWidth / 7.5));
      layout.height += 22 * Math.min(lines, 14);
      layout.legend.y = -62 / (facet.height - 90);
      layout.showlegend = layout.showlegend !== false;
    }
    const traces = coloured(facet.traces);
    const texts = traces.find((one) => one.meta && one.meta.reach !== undefined);
    if (texts) makeRoom(texts, layout, target.clientWidth, narrow);
    layout.width = target.clientWidth;
    target.style.minHeight = layout.height + "px";
    state.live = true;
    Plotly.react(target, traces, layout, {
      displaylogo: false, displayModeBar: false, scrollZoom: false,
      doubleClick: false, showTips: false,
    });
    const says = box.querySelector(".says");
    if (says) says.textContent = facet.says;
    box.dataset.drawn = String(state.at);
  }

  function chips(box) {
    const state = drawn.get(box);
    const rows = box.querySelectorAll(".chips");
    rows.forEach((row, which) => {
      row.querySelectorAll("button").forEach((button) => {
        button.addEventListener("click", () => {
          const wanted = state.data.facets[state.at].at.slice();
          wanted[which] = button.dataset.value;
          // Not every pair was measured: then the nearest that has what was clicked.
          let best = -1, most = -1;
          state.data.facets.forEach((facet, at) => {
            if (facet.at[which] !== wanted[which]) return;
            const same = facet.at.filter((one, where) => one === wanted[where]).length;
            if (same > most) { most = same; best = at; }
          });
          if (best >= 0) { state.at = best; press(box); draw(box); }
        });
      });
    });
    press(box);
  }

  function press(box) {
    const state = drawn.get(box);
    const at = state.data.facets[state.at].at;
    box.querySelectorAll(".chips").forEach((row, which) => {
      row.querySelectorAll("button").forEach((button) => {
        button.setAttribute("aria-pressed", String(button.dataset.value === at[which]));
      });
    });
  }

  function theme(name) {
    root.dataset.theme = name;
    const button = document.querySelector(".theme");
    button.textContent = name === "dark" ? "Light page" : "Dark page";
    document.querySelectorAll(".swatch").forEach((one) => {
      one.style.backgroundColor = colour(one.dataset.colour);
    });
    drawn.forEach((state, box) => { if (state.live) draw(box); });
  }

  // Beside the text where there is room for it, above it and folded where there is none.
  const wide = matchMedia("(min-width: 68rem)");
  const contents = document.querySelector("nav.contents details");
  const unfold = () => { contents.open = wide.matches; };
  wide.addEventListener("change", unfold);
  unfold();

  const prefers = matchMedia("(prefers-color-scheme: dark)");
  const system = () => (prefers.matches ? "dark" : "light");
  document.querySelector(".theme").addEventListener("click", () => {
    const next = root.dataset.theme === "dark" ? "light" : "dark";
    stored(next);
    theme(next);
  });
  prefers.addEventListener("change", () => { if (!stored()) theme(system()); });

  document.querySelectorAll("figure[data-figure]").forEach((box) => {
    drawn.set(box, { data: read(box.dataset.figure), at: read(box.dataset.figure).start, live: false });
    chips(box);
  });
  const asked = stored();
  theme(asked === "dark" || asked === "light" ? asked : system());

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      if (!drawn.get(entry.target).live) draw(entry.target);
    }
  }, { rootMargin: "900px 0px" });
  drawn.forEach((state, box) => seen.observe(box));
  // What is far down is drawn one by one, so that it is there when somebody arrives.
  function next() {
    const waiting = [...drawn].find(([, state]) => !state.live);
    if (waiting === undefined) return;
    seen.unobserve(waiting[0]);
    draw(waiting[0]);
    setTimeout(next, 40);
  }
  setTimeout(next, 400);
  addEventListener("beforeprint", () => drawn.forEach((state, box) => draw(box)));
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    drawn.forEach((state, box) => { if (state.live) draw(box); });
  });
})();
