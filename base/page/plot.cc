#include "base/page/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/checked_math.h"

namespace tessera {
namespace {

constexpr double kPanelWidth = 560, kPanelHeight = 380, kLegendWidth = 250, kTitleHeight = 44;
constexpr double kLeft = 70, kRight = 18, kTop = 34, kBottom = 48;  // around the axes
constexpr double kLegendLine = 18;

std::string Escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string Text(double x, double y, const std::string& text, const std::string& attributes) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, attributes,
                         Escape(text));
}

std::string Line(double x1, double y1, double x2, double y2, const std::string& colour) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
                         x1, y1, x2, y2, colour);
}

// Consecutive colours are far apart on the colour wheel.
std::string Colour(size_t i) {
  return i == 0 ? "#222"
                : absl::StrFormat("hsl(%d,70%%,%d%%)", static_cast<int>(i * 137 % 360),
                                  i % 2 == 0 ? 42 : 55);
}

double Width(size_t i) { return std::max(5.0 - 0.9 * static_cast<double>(i), 1.2); }

struct AxisLimits {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();
  void Add(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

// Returns a round distance for at most about six ticks.
double TickDistance(const AxisLimits& range) {
  const double raw = std::max(range.most - range.least, 1e-12) / 6;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

// Data to pixels of one panel.
class Scale {
 public:
  Scale(const Panel& panel, double left, double top)
      : log_(panel.log_y), left_(left + kLeft), top_(top + kTop) {
    for (const Curve& curve : panel.curves) {
      for (const auto& [x, y] : curve.points) {
        x_.Add(x);
        if (!log_ || y > 0) y_.Add(log_ ? std::log10(y) : y);
      }
    }
    if (!(y_.least <= y_.most)) y_ = {-1, 0};  // no value that could be drawn
    if (log_) y_ = {std::floor(y_.least) - 1, std::ceil(y_.most)};
    if (y_.least == y_.most) y_.most += 1;
    if (x_.least == x_.most) x_.most += 1;
  }

  double X(double x) const { return left_ + (x - x_.least) / (x_.most - x_.least) * width(); }
  double Y(double y) const {
    const double shown = !log_ ? y : y > 0 ? std::log10(y) : y_.least;
    return Shown(shown);
  }
  double Shown(double y) const {
    return top_ + (1 - (y - y_.least) / (y_.most - y_.least)) * height();
  }

  const AxisLimits& x() const { return x_; }
  const AxisLimits& y() const { return y_; }  // of exponents where the axis is logarithmic
  double left() const { return left_; }
  double top() const { return top_; }
  static double width() { return kPanelWidth - kLeft - kRight; }
  static double height() { return kPanelHeight - kTop - kBottom; }

 private:
  const bool log_;
  const double left_, top_;
  AxisLimits x_, y_;
};

std::string Axes(const Panel& panel, const Scale& scale) {
  std::string svg;
  const double right = scale.left() + Scale::width(), bottom = scale.top() + Scale::height();
  const double y_tick = panel.log_y ? 1 : TickDistance(scale.y());
  for (double y = std::ceil(scale.y().least / y_tick) * y_tick; y <= scale.y().most + 1e-9;
       y += y_tick) {
    absl::StrAppend(&svg, Line(scale.left(), scale.Shown(y), right, scale.Shown(y), "#ddd"));
    const std::string label = !panel.log_y ? absl::StrFormat("%g", y)
                              : y <= scale.y().least + .5
                                  ? "0"
                                  : absl::StrFormat("1e%d", static_cast<int>(std::lround(y)));
    absl::StrAppend(&svg, Text(scale.left() - 6, scale.Shown(y) + 4, label, "text-anchor=\"end\""));
  }
  const double x_tick = TickDistance(scale.x());
  for (double x = std::ceil(scale.x().least / x_tick) * x_tick; x <= scale.x().most + 1e-9;
       x += x_tick) {
    absl::StrAppend(&svg, Line(scale.X(x), bottom, scale.X(x), bottom + 4, "#222"));
    absl::StrAppend(
        &svg, Text(scale.X(x), bottom + 18, absl::StrFormat("%g", x), "text-anchor=\"middle\""));
  }
  absl::StrAppend(&svg, Line(scale.left(), scale.top(), scale.left(), bottom, "#222"),
                  Line(scale.left(), bottom, right, bottom, "#222"));
  const double middle_x = (scale.left() + right) / 2, middle_y = (scale.top() + bottom) / 2;
  absl::StrAppend(
      &svg,
      Text(middle_x, scale.top() - 12, panel.title, "text-anchor=\"middle\" font-weight=\"bold\""),
      Text(middle_x, bottom + 38, panel.x_label, "text-anchor=\"middle\""),
      Text(scale.left() - 52, middle_y, panel.y_label,
           absl::StrFormat("text-anchor=\"middle\" transform=\"rotate(-90 %.1f %.1f)\"",
                           scale.left() - 52, middle_y)));
  return svg;
}

class Names {
 public:
  size_t Index(const std::string& name) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found != names_.end()) return static_cast<size_t>(found - names_.begin());
    names_.push_back(name);
    return names_.size() - 1;
  }
  const std::vector<std::string>& all() const { return names_; }

 private:
  std::vector<std::string> names_;
};

std::string Curves(const Panel& panel, const Scale& scale, Names& names) {
  std::string svg;
  for (size_t i = 0; i < panel.curves.size(); ++i) {
    absl::StrAppend(
        &svg,
        absl::StrFormat("<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%.1f\" points=\"",
                        Colour(names.Index(panel.curves[i].name)), Width(i)));
    for (const auto& [x, y] : panel.curves[i].points) {
      absl::StrAppend(&svg, absl::StrFormat("%.1f,%.1f ", scale.X(x), scale.Y(y)));
    }
    absl::StrAppend(&svg, "\"/>\n");
  }
  return svg;
}

}  // namespace

std::string PlotSvg(const std::string& title, const std::vector<Panel>& panels, int columns) {
  const int rows = CeilDivide(static_cast<int>(panels.size()), columns);
  const double legend_left = columns * kPanelWidth;
  const double width = legend_left + kLegendWidth;
  std::string body;
  Names names;
  for (size_t i = 0; i < panels.size(); ++i) {
    const int row = static_cast<int>(i) / columns, column = static_cast<int>(i) % columns;
    const Scale scale(panels[i], column * kPanelWidth, kTitleHeight + row * kPanelHeight);
    absl::StrAppend(&body, Axes(panels[i], scale), Curves(panels[i], scale, names));
  }
  for (size_t i = 0; i < names.all().size(); ++i) {
    const double y = kTitleHeight + kTop + static_cast<double>(i) * kLegendLine;
    absl::StrAppend(
        &body,
        absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                        "stroke-width=\"3\"/>\n",
                        legend_left, y, legend_left + 24, y, Colour(i)),
        Text(legend_left + 32, y + 4, names.all()[i], ""));
  }
  const double height =
      std::max(kTitleHeight + rows * kPanelHeight,
               kTitleHeight + kTop + kLegendLine * static_cast<double>(names.all().size() + 1));
  return absl::StrCat(
      absl::StrFormat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                      "font-family=\"sans-serif\" font-size=\"12\">\n"
                      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                      width, height),
      Text(width / 2, 26, title, "text-anchor=\"middle\" font-size=\"17\" font-weight=\"bold\""),
      body, "</svg>\n");
}

}  // namespace tessera
