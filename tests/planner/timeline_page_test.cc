#include "planner/timeline/timeline_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/text.h"
#include "planner/timeline/html_text.h"
#include "planner/timeline/timeline_svg.h"
#include "tests/planner/well_formed.h"

namespace rp::test {
namespace {

using testing::HasSubstr;
using testing::Not;

TimelineSpan span(double start, double end, TimelinePhase phase = TimelinePhase::kForward) {
  return {.start_ms = start, .end_ms = end, .phase = phase, .hover = "a task"};
}

TimelinePage page_of(TimelineRow row, double length_ms) {
  TimelinePage page{.title = "A page"};
  page.sections.push_back({.title = "A section", .rows = {std::move(row)}, .length_ms = length_ms});
  return page;
}

TEST(HtmlText, LetsNoMarkupThrough) {
  EXPECT_EQ(html_text("<b a=\"1\" c='2'>&</b>"), "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;&lt;/b&gt;");
  EXPECT_EQ(html_text(std::string_view("a\0b\tc\x1b\x7f\nd", 9)), "a b c  \nd");
  EXPECT_EQ(html_text("größer – ≥ 😀"), "größer – ≥ 😀");
  EXPECT_EQ(html_text("\xff|\xc3|\xc0\xaf|\xed\xa0\x80|\xf5\x80\x80\x80|\xef\xbf\xbf|\xe2\x82"),
            "?|?|??|???|????|???|??")
      << "not UTF-8";
}

TEST(TimelinePage, HasAShapeForEverySpanAndItsHoverText) {
  TimelineRow row{.name = "GPU 0"};
  row.compute = {span(0, 10), span(10, 30, TimelinePhase::kFused), span(40, 70, TimelinePhase::kBackward)};
  row.compute[2].recompute_ms = 10;
  row.compute[2].microbatch = 3;
  row.compute[2].hover = "backward, layers 3-4";
  row.upload_inputs = {span(0, 1), span(2, 3)};
  row.upload_weights = {span(0, 5)};
  row.download = {span(20, 25)};
  const std::string html = timeline_html(page_of(row, 80));
  const PageContent content = read_page(html);
  EXPECT_EQ(content.classes.at("F"), 1);
  EXPECT_EQ(content.classes.at("U"), 1);
  EXPECT_EQ(content.classes.at("B"), 1);
  EXPECT_EQ(content.classes.at("R"), 1);
  EXPECT_EQ(content.classes.at("I"), 2);
  EXPECT_EQ(content.classes.at("P"), 1);
  EXPECT_EQ(content.classes.at("D"), 1);
  EXPECT_THAT(content.text, HasSubstr("backward, layers 3-4\n40 to 70 ms"));
  for (const char* name : {"GPU 0", "A page", "A section", "recompute", "upload of weights", "20 ms", "80 ms"}) {
    EXPECT_THAT(content.text, HasSubstr(name));
  }
  EXPECT_THAT(content.text, Not(HasSubstr("weight gradient"))) << "the legend has what is drawn";
}

TEST(TimelinePage, NeedsNothingFromElsewhere) {
  const std::string html = timeline_html(page_of({.name = "GPU 0", .compute = {span(0, 1)}}, 1));
  for (const char* outside : {"http", "src=", "href=", "@import", "url("}) EXPECT_THAT(html, Not(HasSubstr(outside)));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme:dark"));
}

TEST(TimelinePage, NamesAreText) {
  const std::string evil = "</title><script>alert('x')</script>&amp;\"";
  TimelineRow row{.name = evil, .compute = {span(0, 10)}};
  row.compute[0].hover = row.compute[0].text = evil;
  TimelinePage page = page_of(row, 10);
  page.title = page.sections[0].title = page.sections[0].caption = evil;
  page.facts = page.sections[0].figures = {{evil, evil}};
  page.columns = {evil};
  page.records = {{.cells = {evil}, .note = evil}};
  const std::string html = timeline_html(page);
  EXPECT_EQ(read_page(html).elements.at("script"), 1) << "our own";
  EXPECT_THAT(html, Not(HasSubstr("alert('")));
}

TEST(TimelinePage, WithoutAnythingIsStillAPage) {
  (void)read_page(timeline_html({.title = "Empty"}));
  (void)read_page(timeline_html(page_of({.name = "idle"}, 0)));
  (void)read_page(timeline_html(page_of({.name = "at once", .compute = {span(0, 0)}}, 0)));
}

TEST(TimelinePage, SpansAreCutAtTheWindow) {
  TimelineSection section{.first_ms = 100, .length_ms = 50, .axis_ms = 0};
  const std::vector<TimelineSpan> spans = {span(0, 90), span(95, 110), span(120, 130), span(140, 170), span(150, 160)};
  const std::vector<TimelineShape> shapes = timeline_shapes(section, spans, 0.1);
  ASSERT_EQ(shapes.size(), 3U);
  EXPECT_EQ(shapes.front().start_ms, 100);
  EXPECT_EQ(shapes.front().end_ms, 110);
  EXPECT_EQ(shapes.back().end_ms, 150);
}

TEST(TimelinePage, NarrowNeighboursAreDrawnAsOne) {
  TimelineSection section{.length_ms = 1000};
  std::vector<TimelineSpan> spans;
  for (int i = 0; i < 100; ++i) spans.push_back(span(i, i + 0.5));
  spans.push_back(span(500, 600));
  spans.push_back(span(600, 600.5, TimelinePhase::kBackward));
  const std::vector<TimelineShape> shapes = timeline_shapes(section, spans, 10);
  ASSERT_EQ(shapes.size(), 12U);
  EXPECT_EQ(shapes.front().num_spans, 11);
  EXPECT_NEAR(shapes.front().busy_ms, 5.5, 1e-9);
  EXPECT_EQ(shapes[10].num_spans, 1) << "a wide one stays as it is";
  double busy = 0;
  for (const TimelineShape& shape : shapes) busy += shape.busy_ms;
  EXPECT_NEAR(busy, 150.5, 1e-9) << "nothing is lost";
}

TEST(TimelinePage, OfManyTasksStaysSmall) {
  TimelinePage page{.title = "Many"};
  for (int section = 0; section < 7; ++section) {
    TimelineSection& next =
        page.sections.emplace_back(TimelineSection{.title = cat("section ", section), .length_ms = 4000});
    for (int gpu = 0; gpu < 64; ++gpu) {
      TimelineRow& row = next.rows.emplace_back(TimelineRow{.name = cat("GPU ", gpu)});
      for (int task = 0; task < 1000; ++task) {
        row.compute.push_back(span(4 * task, 4 * task + 3.5));
        row.compute.back().hover = "backward, layers 100-120, microbatch 127, step 6";
      }
    }
  }
  const std::string html = timeline_html(page);
  EXPECT_LT(html.size(), 2U << 20U);
  EXPECT_THAT(html, HasSubstr("drawn as one"));
  (void)read_page(html);
}

TEST(TimelinePage, MemoryIsAStripWithItsPeakNextToIt) {
  TimelinePage page = page_of({.name = "GPU 0", .compute = {span(0, 100)}}, 100);
  const std::size_t without = timeline_html(page).size();
  page.sections[0].strips = {
      {.name = "GPU 0 memory", .note = "peak 3.00 GiB", .hover = "the strip", .full = 4, .points = {{0, 1}, {50, 3}}}};
  const std::string html = timeline_html(page);
  const PageContent content = read_page(html);
  EXPECT_EQ(content.elements.at("path"), 1);
  for (const char* part : {"GPU 0 memory", "peak 3.00 GiB", "the strip", "memory in use"})
    EXPECT_THAT(content.text, HasSubstr(part));
  // A quarter of 30 pixels, then three quarters. 100 ms are 99 % of the width.
  EXPECT_THAT(html, HasSubstr("d=\"M0 30H0V22.5H49505V7.5H99010V30Z\""));
  EXPECT_GT(html.size(), without);
  page.sections[0].strips[0].full = 0;
  page.sections[0].strips[0].points.clear();
  EXPECT_THAT(timeline_html(page), HasSubstr("d=\"M0 30H0V30H99010V30Z\"")) << "nothing is nothing";
}

TEST(TimelinePage, AStripOfManyPointsKeepsItsPeaks) {
  TimelineSection section{.first_ms = 100, .length_ms = 100};
  TimelineStrip strip;
  for (int i = 0; i < 4000; ++i) strip.points.push_back({i * 0.1, i % 2 == 0 ? 10.0 : 4.0});
  strip.points[1501].amount = 50;  // at 150.1
  const std::vector<TimelinePoint> exact = strip_points(section, strip, 0), merged = strip_points(section, strip, 5);
  EXPECT_EQ(exact.size(), 1000U) << "of the window";
  EXPECT_LE(merged.size(), 42U);
  for (const std::vector<TimelinePoint>& points : {exact, merged}) {
    double peak = 0, at = 0;
    for (const TimelinePoint& point : points) {
      if (point.amount > peak) at = point.ms;
      peak = std::max(peak, point.amount);
      EXPECT_GE(point.ms, 100);
      EXPECT_LT(point.ms, 200);
    }
    EXPECT_EQ(peak, 50);
    EXPECT_NEAR(at, 150.1, 5);
  }
  strip.points = {{0, 7}};
  const std::vector<TimelinePoint> before = strip_points(section, strip, 5);
  ASSERT_EQ(before.size(), 1U);
  EXPECT_EQ(before[0].amount, 7) << "what was there before the window still is";
}

TEST(TimelinePage, StepsAreDistinguished) {
  TimelineRow row{.name = "GPU 0", .compute = {span(0, 40), span(40, 50), span(50, 100)}};
  row.compute[0].step = row.compute[1].step = 6;
  row.compute[2].step = 7;
  const PageContent content = read_page(timeline_html(page_of(row, 100)));
  EXPECT_EQ(content.classes.at("S"), 1);
  EXPECT_EQ(content.classes.at("T"), 1);
  EXPECT_THAT(content.text, HasSubstr("step 7"));
}

}  // namespace
}  // namespace rp::test
