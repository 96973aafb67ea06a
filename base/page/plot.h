#ifndef TESSERA_BASE_PAGE_PLOT_H_
#define TESSERA_BASE_PAGE_PLOT_H_

// Line plots as SVG: a grid of panels, each with a title, axes and curves, and one legend for all.

#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct Curve {
  std::string name;                               // one name has one colour in all panels
  std::vector<std::pair<double, double>> points;  // x ascending
};

struct Panel {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_y = false;  // values of 0 and below are drawn at the lower edge
  std::vector<Curve> curves;
};

// Draws `columns` panels a row. The legend lists names in order of first appearance; later curves
// are drawn thinner, so that one that lies on another shows both.
std::string PlotSvg(const std::string& title, const std::vector<Panel>& panels, int columns);

}  // namespace tessera

#endif  // TESSERA_BASE_PAGE_PLOT_H_
