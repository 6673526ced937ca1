#include "planner/timeline/timeline_page.h"

#include <algorithm>

#include "common/indexed.h"
#include "common/text.h"
#include "planner/timeline/html_text.h"
#include "planner/timeline/timeline_svg.h"

namespace rp {

namespace {

constexpr std::size_t kMaxShapes = 12000;  // about 130 bytes each
constexpr double kLeastPixels = 0.4;

// From blue to orange and from light to dark, so that colours can be distinguished without red and
// green too. Shades are partly transparent.
constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--bg:#fff;--ink:#1b1f24;--dim:#5b6470;--line:#d9dee4;--zoom:1;
--F:#0072b2;--R:#62b4e6;--U:#7a1f56;--B:#e08a00;--W:#e9d63c;--O:#3b7d6e;--Z:#7d8590;--X:#d5d9de;
--I:#62b4e6;--P:#0072b2;--D:#e08a00;--S:#e1e5ea;--T:#c3cbd4;--V:#f3f5f7;--M:#8a94a0}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--ink:#e6e9ed;--dim:#9aa4af;--line:#323941;
--F:#2f8fd0;--R:#9fd6f7;--U:#d77fb0;--B:#e69a1f;--W:#efe06a;--O:#5bb5a0;--Z:#8a929c;--X:#353b43;
--I:#9fd6f7;--P:#2f8fd0;--D:#e69a1f;--S:#2a3038;--T:#424b56;--V:#1d2126;--M:#6f7a86}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1800px;padding:20px 24px;background:var(--bg);color:var(--ink);
font:15px/1.45 system-ui,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1,h2,p,ul,td.o{overflow-wrap:anywhere}
h1{font-size:24px;line-height:1.25;margin:0 0 8px}
h2{font-size:18px;margin:32px 0 4px}
p{margin:4px 0;max-width:110ch}
p.c{color:var(--dim);font-size:13px}
ul{list-style:none;display:flex;flex-wrap:wrap;gap:4px 22px;margin:6px 0;padding:0}
li span{color:var(--dim)}
table{max-width:760px;border-collapse:collapse;margin:14px 0;font-variant-numeric:tabular-nums}
th,td{padding:5px 14px 3px 0;text-align:right;vertical-align:bottom}
th:first-child,td:first-child{text-align:left}
th{font-weight:600;font-size:13px;border-bottom:1px solid var(--line)}
tr+tr>td:first-child{font-weight:600}
td.o,tr+tr>td.o{text-align:left;font-weight:400;font-size:12px;color:var(--dim);padding:0 0 6px;border-bottom:1px solid var(--line)}
ul.y i{display:inline-block;width:16px;height:13px;margin-right:6px;vertical-align:-1px;background:var(--c);border:1px solid var(--line)}
ul.y i.h{height:5px;border:0;vertical-align:3px}
li.z{margin-left:auto}
li.z button{font:inherit;min-width:32px;color:inherit;background:var(--S);border:1px solid var(--line);border-radius:4px;margin-left:4px}
div.d{display:flex;margin:8px 0;border:1px solid var(--line);border-radius:6px;padding:6px 0 4px 8px}
div.b{overflow-x:auto;flex:1;min-width:0}
svg{display:block}
svg.n{flex:none}
svg.t{min-width:900px;width:calc(100% * var(--zoom))}
text{font-size:12px;fill:var(--ink)}
svg.s text,svg.n text.u{font-size:10px}
.t>text{font-size:11px}
.t>text.c,.t>text.i{text-anchor:middle}
.t>text.e{text-anchor:end}
.t>text.i,.t>text.k{pointer-events:none}
.t>text.i{paint-order:stroke;stroke:var(--bg);stroke-width:2.5px;stroke-linejoin:round}
.t>text.k{font-size:10px}
line.g{stroke:var(--line)}
line.l{stroke:var(--dim);stroke-dasharray:3 3}
.t rect,path.M{shape-rendering:crispEdges}
path.M{fill:var(--M)}
rect:hover,.q:hover>rect{stroke:var(--ink);stroke-width:1.5px;vector-effect:non-scaling-stroke}
@media(max-width:600px){body{padding:12px 12px;font-size:14px}h1{font-size:20px}td,th{padding-right:9px;font-size:12px}div.d{padding-left:4px}}
)";

// Only for zooming; the page is complete without it. It contains no < and &, so that the page is
// XML too.
constexpr const char* kScript = R"(
(function(){var root=document.documentElement,zoom=1,boxes=[].slice.call(document.querySelectorAll('.b'));
function set(to){zoom=Math.max(1,Math.min(32,to));root.style.setProperty('--zoom',zoom);}
var bar=document.querySelector('.y');if(!bar)return;
var item=document.createElement('li');item.className='z';
[['\u2212','zoom out',0.5],['+','zoom in',2]].forEach(function(each){var button=document.createElement('button');
button.textContent=each[0];button.title=each[1];button.setAttribute('aria-label',each[1]);
button.onclick=function(){set(zoom*each[2]);};item.appendChild(button);});
bar.appendChild(item);
boxes.forEach(function(box){box.addEventListener('scroll',function(){boxes.forEach(function(other){
if(other!==box){if(other.scrollLeft!==box.scrollLeft)other.scrollLeft=box.scrollLeft;}});},{passive:true});});})();
)";

std::string style() {
  std::string out = kStyle;
  for (const char* name : {"F", "R", "U", "B", "W", "O", "Z", "X", "I", "P", "D", "S", "T", "V"})
    out += cat("rect.", name, "{fill:var(--", name, ")}\n");
  for (int shade = 1; shade < kNumShades; ++shade) {
    out += cat("rect.", static_cast<char>('a' + shade), "{opacity:", 1 - 0.04 * shade, "}\n");
  }
  return out;
}

std::string facts(const std::vector<TimelineFact>& list) {
  if (list.empty()) return "";
  std::string out = "<ul>";
  for (const TimelineFact& fact : list)
    out += cat("<li><span>", html_text(fact.name), "</span> ", html_text(fact.value), "</li>\n");
  return out + "</ul>\n";
}

std::string table(const TimelinePage& page) {
  if (page.records.empty()) return "";
  std::string out = "<table>\n<tr>";
  for (const std::string& name : page.columns) out += cat("<th scope=\"col\">", html_text(name), "</th>");
  out += "</tr>\n";
  for (const TimelineRecord& record : page.records) {
    out += "<tr>";
    for (const std::string& cell : record.cells) out += cat("<td>", html_text(cell), "</td>");
    out += "</tr>\n";
    if (!record.note.empty())
      out += cat("<tr><td class=\"o\" colspan=\"", page.columns.size(), "\">", html_text(record.note), "</td></tr>\n");
  }
  return out + "</table>\n";
}

// Returns the legend of the colours that the page uses.
std::string legend(const TimelinePage& page, bool merges) {
  IndexedArray<TimelinePhase, bool, kNumTimelinePhases> has_phase{};
  bool shades = false, inputs = false, weights = false, downloads = false, steps = false, memory = false;
  for (const TimelineSection& section : page.sections) {
    memory = memory || !section.strips.empty();
    for (const TimelineRow& row : section.rows) {
      for (const TimelineSpan& span : row.compute) {
        has_phase[span.phase] = true;
        if (span.recompute_ms > 0) has_phase[TimelinePhase::kRecompute] = true;
        shades = shades || span.microbatch > 0;
        steps = steps || span.step >= 0;
      }
      inputs = inputs || !row.upload_inputs.empty();
      weights = weights || !row.upload_weights.empty();
      downloads = downloads || !row.download.empty();
    }
  }
  std::string out = "<ul class=\"y\">";
  const auto add = [&](bool there, const char* name, const char* text, const char* kind = "") {
    if (there) out += cat("<li><i", kind, " style=\"--c:var(--", name, ")\"></i>", text, "</li>\n");
  };
  const IndexedArray<TimelinePhase, const char*, kNumTimelinePhases> texts = {
      "forward", "recompute", "fused: forward, loss and backward", "backward", "weight gradient", "optimizer update"};
  for (const TimelinePhase phase : texts.indices()) add(has_phase[phase], kPhaseClasses[phase], texts[phase]);
  add(true, "V", "idle");
  constexpr const char* kThin = " class=\"h\"";
  add(inputs, "I", "upload of inputs", kThin);
  add(weights, "P", "upload of weights", kThin);
  add(downloads, "D", "download", kThin);
  add(memory, "M", "memory in use");
  if (shades) out += "<li><span>paler: later microbatches, and each second one</span></li>\n";
  if (merges) out += "<li><span>narrow tasks are drawn as one, paler where some of it is idle</span></li>\n";
  if (steps) out += "<li><span>strip below: the step</span></li>\n";
  return out + "</ul>\n";
}

}  // namespace

std::string timeline_html(const TimelinePage& page) {
  double scale_ms = 1e-6;
  for (const TimelineSection& section : page.sections) scale_ms = std::max(scale_ms, section.length_ms);
  scale_ms *= 1.01;  // leaves a margin behind the last end
  double least_ms = scale_ms * kLeastPixels / kTimelineWidth;
  const auto num_shapes = [&] {
    std::size_t count = 0;
    for (const TimelineSection& section : page.sections) count += num_timeline_shapes(section, least_ms);
    return count;
  };
  bool merges = false;
  while (least_ms < scale_ms && num_shapes() > kMaxShapes) {
    least_ms *= 2;
    merges = true;
  }

  std::string out =
      cat("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n<title>", html_text(page.title),
          "</title>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<style>", style(),
          "</style></head>\n<body>\n<h1>", html_text(page.title), "</h1>\n");
  out += facts(page.facts) + table(page);
  if (!page.sections.empty()) out += legend(page, merges);
  for (const TimelineSection& section : page.sections) {
    out += cat("<section><h2>", html_text(section.title), "</h2>\n", facts(section.figures));
    if (!section.caption.empty()) out += cat("<p class=\"c\">", html_text(section.caption), "</p>\n");
    out += timeline_svg(section, scale_ms, least_ms) + "</section>\n";
  }
  return out + cat("<script>", kScript, "</script>\n</body></html>\n");
}

}  // namespace rp
