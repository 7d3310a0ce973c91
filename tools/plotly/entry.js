// The parts of plotly.js that our figures need: scatter is in the core.
const Plotly = require("plotly.js/lib/core");
Plotly.register([
  require("plotly.js/lib/bar"),
  require("plotly.js/lib/heatmap"),
  require("plotly.js/lib/image"),
  require("plotly.js/lib/scatterpolar"),
  require("plotly.js/lib/waterfall"),
]);
module.exports = Plotly;
