// Charts come alive here; until then, and on paper, each is the SVG that stands in the page.
"use strict";
(function () {
  const options = {
    renderer: "svg",
    actions: { export: true, source: false, compiled: false, editor: false },
  };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  async function enliven(chart) {
    const live = chart.querySelector(".live");
    const still = chart.querySelector(".static");
    const spec = JSON.parse(chart.querySelector(".spec").textContent);
    live.hidden = false;
    still.classList.add("replaced");
    try {
      await window.vegaEmbed(live, spec, {
        ...options,
        downloadFileName: "kvtop-" + (chart.closest("figure")?.id || "chart"),
        tooltip: { theme: dark.matches ? "dark" : "light" },
      });
      live.querySelector("summary")?.setAttribute("aria-label", "Save this chart");
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
