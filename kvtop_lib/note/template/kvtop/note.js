// Charts come alive here; until then, and on paper, each is the SVG that stands in the page.
"use strict";
(function () {
  const options = {
    renderer: "svg",
    actions: { export: true, source: false, compiled: false, editor: false },
    downloadFileName: "kvtop",
  };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  async function enliven(chart) {
    const live = chart.querySelector(".live");
    const still = chart.querySelector(".static");
    const spec = JSON.parse(chart.querySelector(".spec").textContent);
    live.hidden = false;
    still.classList.add("replaced");
    try {
      await window.vegaEmbed(live, spec, { ...options, tooltip: { theme: dark.matches ? "dark" : "light" } });
      chart.classList.add("ready");
    } catch (error) {
      live.hidden = true;
      still.classList.remove("replaced");
      console.error("chart kept as a picture:", error);
    }
  }

  Promise.all([...document.querySelectorAll(".chart")].map(enliven)).then(() => {
    document.documentElement.dataset.charts = "ready";
  });
})();
