#include "planner/timeline/timeline_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "common/text.h"
#include "planner/timeline/html_text.h"

namespace rp {

namespace {

constexpr int kUnits = 100000;  // the width of a diagram, in the units of its coordinates
constexpr int kAxisHeight = 24, kStripHeight = 12, kLaneHeight = 4, kLanePitch = 5, kMaxNameLetters = 16;
constexpr int kAreaHeight = 30, kAreaPitch = 38;
constexpr std::size_t kMaxPoints = 2000;  // of a strip; with more points, one step per pixel
constexpr double kLetterWidth = 6.6;      // px, of the widest letters

const std::array<std::pair<const char*, std::vector<TimelineSpan> TimelineRow::*>, 3> kLanes = {
    {{"I", &TimelineRow::upload_inputs}, {"P", &TimelineRow::upload_weights}, {"D", &TimelineRow::download}}};

// Prints `decimals` digits behind the point, without zeros at the end.
std::string number_text(double value, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  std::string out = text.data();
  if (out.find('.') != std::string::npos) {
    out.erase(out.find_last_not_of('0') + 1);
    if (out.back() == '.') out.pop_back();
  }
  return out == "-0" ? "0" : out;
}

// Returns the smallest of 1, 2, 5, 10, 20, 50, … (and 0.5, 0.2, …) that is at least `least`.
double round_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::string tick_text(double ms, double step_ms) {
  const bool seconds = step_ms >= 1000;
  const double value = seconds ? ms / 1000 : ms, step = seconds ? step_ms / 1000 : step_ms;
  const int decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 6);
  return number_text(value, decimals) + (seconds ? " s" : " ms");
}

class Drawing {
 public:
  Drawing(const TimelineSection& section, double scale_ms, double least_ms)
      : section_(section), scale_ms_(scale_ms), least_ms_(least_ms) {
    for (const TimelineRow& row : section.rows) {
      for (const auto& [name, lane] : kLanes) has_lanes_ = has_lanes_ || !(row.*lane).empty();
      for (const TimelineSpan& span : row.compute) {
        has_steps_ = has_steps_ || span.step >= 0;
        num_microbatches_ = std::max(num_microbatches_, span.microbatch + 1);
        max_letters_ = std::max(max_letters_, span.text.size());
      }
    }
    const std::size_t count = section.rows.size();
    compute_height_ = count <= 16 ? 20 : count <= 32 ? 14 : 10;
    gap_ = count <= 16 ? 7 : 4;
    pitch_ = compute_height_ + (has_steps_ ? kStripHeight : 0) + (has_lanes_ ? 3 * kLanePitch + 1 : 0) + gap_;
    rows_end_ = kAxisHeight + static_cast<int>(count) * pitch_;
    height_ = rows_end_ + static_cast<int>(section.strips.size()) * kAreaPitch;
  }

  std::string draw() const {
    std::string out = "<div class=\"d\">" + names() + "<div class=\"b\" tabindex=\"0\">";
    out += cat("<svg class=\"t\" height=\"", height_, "\" role=\"img\" aria-label=\"", html_text(section_.title),
               "\">\n", axis());
    std::string labels;
    out += cat("<svg viewBox=\"0 0 ", kUnits, " ", height_, "\" preserveAspectRatio=\"none\" width=\"100%\" height=\"",
               height_, "\">\n");
    int top = kAxisHeight;
    for (const TimelineRow& row : section_.rows) {
      out += draw_row(row, top, labels);
      top += pitch_;
    }
    for (const TimelineStrip& strip : section_.strips) {
      out += draw_strip(strip, top);
      top += kAreaPitch;
    }
    return out + "</svg>\n" + labels + "</svg></div></div>\n";
  }

 private:
  std::string names() const {
    std::size_t letters = 0;
    std::string texts;
    const auto add = [&](const std::string& whole, const char* kind, int y) {
      std::string name = whole;
      if (name.size() > kMaxNameLetters) name = name.substr(0, kMaxNameLetters - 1) + "…";
      letters = std::max(letters, std::min<std::size_t>(name.size(), kMaxNameLetters));
      texts += cat("<text", kind, " y=\"", y, "\">", html_text(name));
      if (name != whole) texts += "<title>" + html_text(whole) + "</title>";
      texts += "</text>\n";
    };
    for (std::size_t i = 0; i < section_.rows.size(); ++i) {
      add(section_.rows[i].name, "", kAxisHeight + static_cast<int>(i) * pitch_ + compute_height_ / 2 + 4);
    }
    for (std::size_t i = 0; i < section_.strips.size(); ++i) {
      const int top = rows_end_ + static_cast<int>(i) * kAreaPitch;
      add(section_.strips[i].name, "", top + 12);
      add(section_.strips[i].note, " class=\"u\"", top + 26);
    }
    const int width = static_cast<int>(static_cast<double>(letters) * kLetterWidth) + 10;
    return cat("<svg class=\"n", compute_height_ < 14 ? " s" : "", "\" width=\"", width, "\" height=\"", height_,
               "\">\n", texts, "</svg>");
  }

  [[nodiscard]] double fraction(double ms) const { return (ms - section_.first_ms) / scale_ms_; }
  [[nodiscard]] std::string percent(double ms) const { return number_text(100 * fraction(ms), 3) + "%"; }
  [[nodiscard]] int units(double ms) const { return static_cast<int>(std::lround(kUnits * fraction(ms))); }
  [[nodiscard]] double axis_of(double ms) const { return ms - section_.first_ms + section_.axis_ms; }

  // Returns lines from top to bottom at round times of the axis.
  std::string axis() const {
    constexpr int kMaxTicks = 10;
    const double step = round_step(scale_ms_ / kMaxTicks), end = section_.axis_ms + section_.length_ms;
    std::string out;
    for (double tick = std::ceil(section_.axis_ms / step - 1e-9); tick * step <= end + 1e-9 * scale_ms_; ++tick) {
      const double at = tick * step - section_.axis_ms + section_.first_ms, place = fraction(at);
      const char* anchor = place < 0.03 ? "" : place > 0.97 ? " class=\"e\"" : " class=\"c\"";
      out += cat("<line class=\"g\" x1=\"", percent(at), "\" x2=\"", percent(at), "\" y1=\"16\" y2=\"", height_,
                 "\"/><text", anchor, " x=\"", percent(at), "\" y=\"11\">", tick_text(tick * step, step), "</text>\n");
    }
    const std::string last = percent(section_.first_ms + section_.length_ms);
    return out + cat("<line class=\"l\" x1=\"", last, "\" x2=\"", last, "\" y1=\"16\" y2=\"", height_, "\"/>\n");
  }

  std::string draw_row(const TimelineRow& row, int top, std::string& labels) const {
    std::string out = cat("<g transform=\"translate(0 ", top, ")\">\n");
    out += cat("<rect class=\"V\" width=\"", units(section_.first_ms + section_.length_ms), "\" height=\"",
               compute_height_, "\"/>\n");
    for (const TimelineShape& shape : timeline_shapes(section_, row.compute, least_ms_)) {
      out += rectangle(shape, shape_class(shape), 0, compute_height_);
      labels += label(shape, top);
    }
    int y = compute_height_;
    if (has_steps_) {
      out += steps(row, top, labels);
      y += kStripHeight;
    }
    for (const auto& [name, lane] : kLanes) {
      for (const TimelineShape& shape : timeline_shapes(section_, row.*lane, least_ms_))
        out += rectangle(shape, name, y + 1, kLaneHeight);
      y += kLanePitch;
    }
    return out + "</g>\n";
  }

  std::string draw_strip(const TimelineStrip& strip, int top) const {
    const int end = units(section_.first_ms + section_.length_ms);
    const std::string title = strip.hover.empty() ? "" : "<title>" + html_text(strip.hover) + "</title>";
    std::string out = cat("<g transform=\"translate(0 ", top, ")\">", title, "\n<rect class=\"V\" width=\"", end,
                          "\" height=\"", kAreaHeight, "\"/>\n");
    const double least_ms = strip.points.size() > kMaxPoints ? scale_ms_ / kTimelineWidth : 0;
    std::string path = cat("M0 ", kAreaHeight);
    for (const TimelinePoint& point : strip_points(section_, strip, least_ms)) {
      const double share = strip.full > 0 ? std::clamp(point.amount / strip.full, 0.0, 1.0) : 0;
      path += cat("H", units(point.ms), "V", number_text(kAreaHeight * (1 - share), 1));
    }
    return out + cat("<path class=\"M\" d=\"", path, "H", end, "V", kAreaHeight, "Z\"/></g>\n");
  }

  // Shades distinguish microbatches: from strong to weak over a step, and each odd one weaker than
  // its neighbours.
  [[nodiscard]] std::string shape_class(const TimelineShape& shape) const {
    std::string name = kPhaseClasses[shape.span->phase];
    const int m = shape.span->microbatch;
    if (shape.num_spans > 1 || m < 0) return name;
    const int ramp = num_microbatches_ < 2 ? 0 : static_cast<int>(std::lround(8.0 * m / (num_microbatches_ - 1)));
    return name + ' ' + static_cast<char>('a' + ramp + (m % 2 == 1 ? 3 : 0));
  }

  std::string rectangle(const TimelineShape& shape, const std::string& name, int y, int height) const {
    const auto rect = [&](double start, double end, const std::string& style, double busy) {
      const int x = units(start);
      std::string out = cat("<rect class=\"", style, "\" x=\"", x, "\"");
      if (y > 0) out += cat(" y=\"", y, "\"");
      out += cat(" width=\"", std::max(1, units(end) - x), "\" height=\"", height, "\"");
      if (busy < 0.95) out += cat(" fill-opacity=\"", number_text(std::max(0.3, busy), 2), "\"");
      return out;
    };
    const double length = shape.end_ms - shape.start_ms;
    const std::string times =
        number_text(axis_of(shape.start_ms), 3) + " to " + number_text(axis_of(shape.end_ms), 3) + " ms";
    if (shape.num_spans > 1) {
      return rect(shape.start_ms, shape.end_ms, name, length > 0 ? shape.busy_ms / length : 1) +
             cat("><title>", shape.num_spans, " narrow ones, ", number_text(shape.busy_ms, 3), " ms together\n", times,
                 "</title></rect>\n");
    }
    const TimelineSpan& span = *shape.span;
    const std::string title = cat("<title>", html_text(span.hover), "\n", number_text(axis_of(span.start_ms), 3),
                                  " to ", number_text(axis_of(span.end_ms), 3), " ms</title>");
    const double cut = std::min(span.start_ms + span.recompute_ms, shape.end_ms);
    if (span.recompute_ms <= 0 || cut <= shape.start_ms)
      return rect(shape.start_ms, shape.end_ms, name, 1) + ">" + title + "</rect>\n";
    std::string recompute = name;
    recompute.front() = 'R';
    return "<g class=\"q\">" + title + rect(shape.start_ms, cut, recompute, 1) + "/>" +
           rect(cut, shape.end_ms, name, 1) + "/></g>\n";
  }

  std::string label(const TimelineShape& shape, int top) const {
    const std::string& text = shape.span->text;
    const double room = kTimelineWidth * (fraction(shape.end_ms) - fraction(shape.start_ms));
    if (shape.num_spans > 1 || text.empty() || compute_height_ < 14 ||
        static_cast<double>(max_letters_) * kLetterWidth + 4 > room)
      return "";
    return cat("<text class=\"i\" x=\"", percent((shape.start_ms + shape.end_ms) / 2), "\" y=\"",
               top + compute_height_ / 2 + 4, "\">", html_text(text), "</text>\n");
  }

  // Returns a strip below the row's compute that shows the steps.
  std::string steps(const TimelineRow& row, int top, std::string& labels) const {
    const double window_end = section_.first_ms + section_.length_ms;
    std::string out;
    for (std::size_t i = 0; i < row.compute.size();) {
      const int step = row.compute[i].step;
      double start = row.compute[i].start_ms, end = row.compute[i].end_ms;
      for (; i < row.compute.size() && row.compute[i].step == step; ++i) end = std::max(end, row.compute[i].end_ms);
      start = std::max(start, section_.first_ms);
      end = std::min(end, window_end);
      if (step < 0 || end <= start) continue;
      const int x = units(start);
      out +=
          cat("<rect class=\"", step % 2 == 0 ? "S" : "T", "\" x=\"", x, "\" y=\"", compute_height_, "\" width=\"",
              std::max(1, units(end) - x), "\" height=\"", kStripHeight, "\"><title>step ", step, "</title></rect>\n");
      const std::string text = cat("step ", step);
      if (static_cast<double>(text.size()) * kLetterWidth + 4 > kTimelineWidth * (fraction(end) - fraction(start)))
        continue;
      labels += cat("<text class=\"k\" x=\"", percent(start), "\" dx=\"3\" y=\"",
                    top + compute_height_ + kStripHeight - 2, "\">", text, "</text>\n");
    }
    return out;
  }

  const TimelineSection& section_;
  const double scale_ms_, least_ms_;
  bool has_lanes_ = false, has_steps_ = false;
  int num_microbatches_ = 0;
  // The letters in the longest text of a span. Shorter texts are also left out if the longest one
  // does not fit; otherwise the labels would look random.
  std::size_t max_letters_ = 0;
  int compute_height_ = 0, gap_ = 0, pitch_ = 0, rows_end_ = 0, height_ = 0;
};

}  // namespace

std::vector<TimelineShape> timeline_shapes(const TimelineSection& section, const std::vector<TimelineSpan>& spans,
                                           double least_ms) {
  std::vector<TimelineShape> shapes;
  const double window_end = section.first_ms + section.length_ms;
  double longest = 0;
  bool open = false;  // true if the last shape may take more spans
  for (const TimelineSpan& span : spans) {
    const double start = std::max(span.start_ms, section.first_ms), end = std::min(span.end_ms, window_end);
    if (end < start || (end == start && span.end_ms > span.start_ms)) continue;
    const bool narrow = end - start < least_ms;
    if (narrow && open && start - shapes.back().end_ms < least_ms) {
      TimelineShape& last = shapes.back();
      last.end_ms = std::max(last.end_ms, end);
      last.busy_ms += end - start;
      ++last.num_spans;
      if (end - start > longest) {
        longest = end - start;
        last.span = &span;
      }
      open = last.end_ms - last.start_ms < least_ms;
      continue;
    }
    shapes.push_back({.start_ms = start, .end_ms = end, .busy_ms = end - start, .num_spans = 1, .span = &span});
    longest = end - start;
    open = narrow;
  }
  return shapes;
}

std::vector<TimelinePoint> strip_points(const TimelineSection& section, const TimelineStrip& strip, double least_ms) {
  const double window_end = section.first_ms + section.length_ms;
  std::vector<TimelinePoint> steps;
  const auto add = [&steps](double ms, double amount) {
    if (steps.empty() || steps.back().amount != amount) steps.push_back({.ms = ms, .amount = amount});
  };
  TimelinePoint open{.ms = section.first_ms};  // the largest amount since `open.ms`
  double last = 0;
  for (const TimelinePoint& point : strip.points) {
    if (point.ms >= window_end) break;
    if (point.ms <= section.first_ms) {
      open.amount = last = point.amount;
      continue;
    }
    if (point.ms - open.ms < least_ms) {
      open.amount = std::max(open.amount, point.amount);
    } else {
      add(open.ms, open.amount);
      if (last != open.amount) add(std::min(open.ms + least_ms, point.ms), last);
      open = point;
    }
    last = point.amount;
  }
  add(open.ms, open.amount);
  if (last != open.amount && open.ms + least_ms < window_end) add(open.ms + least_ms, last);
  return steps;
}

std::size_t num_timeline_shapes(const TimelineSection& section, double least_ms) {
  std::size_t count = 0;
  for (const TimelineRow& row : section.rows) {
    count += timeline_shapes(section, row.compute, least_ms).size();
    for (const auto& [name, lane] : kLanes) count += timeline_shapes(section, row.*lane, least_ms).size();
  }
  return count;
}

std::string timeline_svg(const TimelineSection& section, double scale_ms, double least_ms) {
  return Drawing(section, scale_ms, least_ms).draw();
}

}  // namespace rp
