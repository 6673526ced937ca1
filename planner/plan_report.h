// planner/plan_report.h
// The answer of `rp-plan plan`: as text, as JSON, and as a page.
#pragma once

#include <string>

#include "planner/plan_command.h"
#include "planner/timeline/timeline_page.h"

namespace rp {

[[nodiscard]] std::string answer_text(const PlanAnswer& answer);
[[nodiscard]] std::string answer_json(const PlanAnswer& answer);
// Returns a page with two steps, their copies and their updates. REQUIRES: the answer was made with
// `for_page`.
[[nodiscard]] TimelinePage answer_page(const PlanAnswer& answer);

}  // namespace rp
